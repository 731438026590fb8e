//! Texts of maximum length: every response fits into the client's message limit.

use std::collections::HashSet;

use microblog_proto::post;
use microblog_testkit::Topology;

use crate::{
    actions::request_id,
    system::{Flags, Jobs, System},
};

/// The longest emoji, of 35 bytes.
pub(crate) const EMOJI: &str = "👩🏻\u{200d}❤\u{fe0f}\u{200d}💋\u{200d}👨🏿";

/// Returns a text of nearly 2,000 characters and 70,000 bytes.
pub(crate) fn long(i: usize) -> String {
    format!("{i} {}", EMOJI.repeat(1_990))
}

async fn without_jobs() -> System {
    System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await
}

#[tokio::test]
async fn long_comments_are_all_shown_once() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let muted = system.join("muted").await;
    let post_id = system.publish(&ann, "what do you think?").await.id;
    for i in 0..200 {
        // Every third is hidden from Ann, so pages are filled again.
        let author_id = if i % 3 == 0 { muted.id } else { ann.id };
        let (request_id, text) = (request_id(), long(i));
        let request =
            post::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id: 0 };
        system.post().add_comment(request).await.unwrap();
    }
    system.mute(&ann, &muted).await;
    for (viewer, expected) in [(None, 200), (Some(&ann), 133)] {
        let mut seen = HashSet::new();
        let (mut token, mut pages) = (String::new(), 0);
        loop {
            let page = system.comments(viewer, post_id, 200, &token).await;
            for viewed in page.comments {
                let comment = viewed.comment.unwrap();
                assert!(comment.text.len() > 69_000);
                assert!(seen.insert(comment.id), "each once");
            }
            pages += 1;
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(seen.len(), expected);
        assert!(pages <= 6, "a page is as large as it may be: {pages}");
    }
}

#[tokio::test]
async fn long_reposts_are_all_shown_once() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, &long(0)).await.id;
    let mut made = HashSet::new();
    for i in 0..150 {
        let (request_id, text) = (request_id(), long(i));
        let request = post::RepostRequest { author_id: bob.id, request_id, post_id, text };
        made.insert(system.post().repost(request).await.unwrap().into_inner().post.unwrap().id);
    }
    let (mut seen, mut token) = (HashSet::new(), String::new());
    loop {
        let page = system.reposts(Some(&ann), post_id, 200, &token).await;
        for viewed in page.posts {
            assert!(seen.insert(viewed.post.unwrap().id), "each once");
        }
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, made);
    let repost = system.repost(&bob, post_id, &long(1)).await.id;
    let view = system.view(Some(&ann), repost).await;
    assert_eq!(view.post.unwrap().text, long(1));
    assert_eq!(view.root.unwrap().post.unwrap().text, long(0));
}
