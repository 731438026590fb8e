//! Pages of timelines: full to the end, without gaps and repeats.

use std::collections::HashSet;

use microblog_proto::{gateway, post};

use crate::{
    actions::request_id,
    long_texts::{EMOJI, long},
    system::{Member, System, by_id},
    timeline_actions::{post_ids, texts, without_jobs},
};

fn numbered(posts: std::ops::Range<usize>) -> Vec<String> {
    posts.map(|i| format!("post {i}")).collect()
}

/// Ann follows Bob, who published this many posts, oldest first.
async fn readers(posts: usize) -> (System, Member, Member, Vec<u64>) {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follow(&ann, &bob).await;
    let ids = system.publish_many(&bob, numbered(0..posts)).await;
    (system, ann, bob, ids)
}

/// Which timeline is read.
#[derive(Clone, Copy)]
pub(crate) enum Which<'a> {
    Home(&'a Member),
    Friends(&'a Member),
    User(&'a Member),
}

/// Reads a timeline page by page, all full but the last, and returns its posts.
pub(crate) async fn read(system: &System, which: Which<'_>, page_size: i32) -> Vec<u64> {
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let (posts, next) = match which {
            Which::Home(viewer) => {
                let page = system.home(viewer, page_size, &token, "").await;
                (page.posts, page.next_page_token)
            }
            Which::Friends(viewer) => {
                let page = system.friends_page(viewer, page_size, &token).await;
                (page.posts, page.next_page_token)
            }
            Which::User(of) => {
                let page = system.user_timeline(None, of, page_size, &token).await;
                (page.posts, page.next_page_token)
            }
        };
        seen.extend(post_ids(&posts));
        token = next;
        if token.is_empty() {
            return seen;
        }
        assert_eq!(posts.len(), page_size as usize, "a page is short only at the end");
    }
}

#[tokio::test]
async fn pages_are_full_although_long_runs_are_deleted() {
    let (system, ann, bob, ids) = readers(200).await;
    // A run of many pages, and single posts on both sides of it.
    let is_deleted = |i: usize| (20..150).contains(&i) || i % 3 == 1;
    let (deleted, mut left): (Vec<_>, Vec<_>) =
        ids.iter().copied().enumerate().partition(|(i, _)| is_deleted(*i));
    let deleted: Vec<_> = deleted.into_iter().map(|(_, id)| id).collect();
    system.delete_many(&bob, &deleted).await;
    left.reverse();
    let left: Vec<_> = left.into_iter().map(|(_, id)| id).collect();
    for page_size in [1, 7, 20, 33, 200] {
        assert_eq!(read(&system, Which::Home(&ann), page_size).await, left, "{page_size} a page");
        assert_eq!(read(&system, Which::User(&bob), page_size).await, left, "{page_size} a page");
    }
}

#[tokio::test]
async fn a_mostly_deleted_timeline_is_read_in_one_page() {
    let (system, ann, bob, ids) = readers(1).await;
    // Nearly a full timeline, all deleted.
    let newer = |count: u64| (1..=count).map(|i| ids[0] + (i << 12));
    system.deliver(&bob, newer(750)).await;
    for page_size in [1, 20, 200] {
        let page = system.home(&ann, page_size, "", "").await;
        assert_eq!(post_ids(&page.posts), ids, "{page_size} a page");
    }
    system.deliver(&bob, newer(2_000)).await;
    let friend = system.join("friend").await;
    system.follow(&friend, &bob).await;
    system.recorder.calls();
    // Only posts beyond the stored timeline remain.
    let page = system.home(&friend, 1, "", "").await;
    assert_eq!((post_ids(&page.posts), page.next_page_token.as_str()), (ids, ""));
    let calls = system.recorder.calls();
    let slices = calls.iter().filter(|call| *call == "timeline.GetTimeline").count();
    assert!(slices <= 17, "a slice has 50 entries, but for the first: {slices}");
}

#[tokio::test]
async fn concurrent_posts_cause_no_gap_and_no_repeat() {
    let (system, ann, bob, mut ids) = readers(60).await;
    ids.reverse();
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = system.home(&ann, 9, &token, "").await;
        seen.extend(post_ids(&page.posts));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
        pages += 1;
        // One that was shown is deleted, and some are published.
        system.delete_many(&bob, &seen[pages..=pages]).await;
        system.publish_many(&bob, numbered(100..103)).await;
        system.publish_many(&ann, numbered(200..202)).await;
    }
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn concurrent_deletions_cause_no_gap_and_no_repeat() {
    let (system, ann, bob, ids) = readers(160).await;
    let kept: Vec<_> = ids.iter().copied().step_by(4).rev().collect();
    // Reads repeatedly while three of four are deleted one by one, and others are published.
    let read = async || {
        for page_size in [1, 3, 10, 2, 5] {
            let (mut seen, mut token) = (Vec::new(), String::new());
            loop {
                let page = system.home(&ann, page_size, &token, "").await;
                seen.extend(post_ids(&page.posts));
                token = page.next_page_token;
                if token.is_empty() {
                    break;
                }
            }
            assert!(seen.is_sorted_by(|a, b| a > b), "each once, newest first");
            seen.retain(|id| kept.contains(id));
            assert_eq!(seen, kept, "{page_size} a page");
        }
    };
    let change = async || {
        for (i, &id) in ids.iter().enumerate().rev().filter(|(i, _)| i % 4 != 0) {
            system.delete_many(&bob, &[id]).await;
            if i % 10 == 0 {
                system.publish(&bob, "new").await;
            }
        }
    };
    tokio::join!(read(), change());
}

#[tokio::test]
async fn new_posts_are_counted_and_shown_once() {
    let system = System::start().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follow(&ann, &bob).await;
    system.publish(&bob, "old").await;
    system.until_new(&ann, "", 1).await;
    let since = system.home(&ann, 0, "", "").await.since_token;
    assert_eq!(system.count_new(&ann, &since).await, 0);
    let page = system.home(&ann, 0, "", &since).await;
    assert!(page.posts.is_empty() && page.next_page_token.is_empty());

    let ids = system.publish_many(&bob, numbered(0..30)).await;
    system.until_new(&ann, &since, 30).await;
    // Deleted posts are counted, but not shown.
    system.delete_many(&bob, &ids[10..20]).await;
    assert_eq!(system.count_new(&ann, &since).await, 30);
    let mut expected = [numbered(0..10), numbered(20..30)].concat();
    expected.reverse();
    let first = system.home(&ann, 15, "", &since).await;
    let second = system.home(&ann, 15, &first.next_page_token, &since).await;
    assert_eq!((texts(&first.posts), texts(&second.posts)), {
        let rest = expected.split_off(15);
        (expected, rest)
    });
    assert_eq!(second.next_page_token, "");
    // Callers keep the token of the latest response.
    let since = second.since_token;
    assert_eq!(system.count_new(&ann, &since).await, 0);
    system.publish(&ann, "mine").await;
    assert_eq!(system.count_new(&ann, &since).await, 1);
    assert_eq!(texts(&system.home(&ann, 0, "", &since).await.posts), ["mine"]);

    let all = system.user_timeline(None, &bob, 200, "").await;
    system.publish(&bob, "another").await;
    let (user, since_token) = (by_id(bob.id), all.since_token);
    let request = gateway::ViewUserTimelineRequest {
        user,
        since_token,
        page_size: 0,
        page_token: String::new(),
    };
    let page = system.gateway().view_user_timeline(request).await.unwrap().into_inner();
    assert_eq!((all.posts.len(), texts(&page.posts)), (21, vec!["another".to_owned()]));
}

#[tokio::test]
async fn new_posts_of_an_account_are_shown_once_in_any_number_of_pages() {
    let (system, ann, bob, ids) = readers(5).await;
    let view = async |page_size, page_token: &str, since_token: &str| {
        let (page_token, since_token) = (page_token.to_owned(), since_token.to_owned());
        let user = by_id(bob.id);
        let request = gateway::ViewUserTimelineRequest { user, page_size, page_token, since_token };
        system.gateway().view_user_timeline(ann.request(request)).await.unwrap().into_inner()
    };
    let first = view(2, "", "").await;
    let since = first.since_token;
    let rest = view(20, &first.next_page_token, "").await;
    assert_eq!(rest.since_token, since, "the newest post is that of the first page");
    let none = view(20, "", &since).await;
    assert_eq!((none.posts.len(), none.next_page_token.as_str()), (0, ""));
    assert_eq!(none.since_token, since);
    // The newest post that was shown is deleted, and the newest new post.
    let mut new = system.publish_many(&bob, numbered(0..30)).await;
    system.delete_many(&bob, &[ids[4], new[29], new[12]]).await;
    new.truncate(29);
    new.remove(12);
    new.reverse();
    for page_size in [1, 9, 28, 29, 200] {
        let (mut seen, mut token, mut kept) = (Vec::new(), String::new(), since.clone());
        loop {
            let page = view(page_size, &token, &since).await;
            assert_eq!(kept, since, "until the last page");
            seen.extend(post_ids(&page.posts));
            (token, kept) = (page.next_page_token, page.since_token);
            if token.is_empty() {
                break;
            }
            assert_eq!(page.posts.len(), page_size as usize, "a page is short only at the end");
        }
        assert_eq!(seen, new, "{page_size} a page");
        assert!(view(20, "", &kept).await.posts.is_empty());
    }
    // Posts published between two pages are new afterwards.
    let first = view(10, "", &since).await;
    let later = system.publish_many(&bob, numbered(30..32)).await;
    let second = view(20, &first.next_page_token, &since).await;
    assert_eq!([post_ids(&first.posts), post_ids(&second.posts)].concat(), new);
    let updates = view(20, "", &second.since_token).await;
    assert_eq!(post_ids(&updates.posts), [later[1], later[0]]);
    // With a token from an empty timeline, all posts are new.
    let empty = system.user_timeline(None, &ann, 0, "").await.since_token;
    let own = system.publish_many(&ann, numbered(0..2)).await;
    let (user, since_token) = (by_id(ann.id), empty);
    let request = gateway::ViewUserTimelineRequest { user, since_token, ..Default::default() };
    let page = system.gateway().view_user_timeline(request).await.unwrap().into_inner();
    assert_eq!(post_ids(&page.posts), [own[1], own[0]]);
}

#[tokio::test]
async fn changes_while_an_account_is_read_cause_no_gap_and_no_repeat() {
    let (system, _, bob, mut ids) = readers(60).await;
    ids.reverse();
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    let mut deleted = HashSet::new();
    loop {
        let page = system.user_timeline(None, &bob, 9, &token).await;
        seen.extend(post_ids(&page.posts));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
        pages += 1;
        // Deletes the last post that was shown and one that was not, and publishes three.
        system.delete_many(&bob, &seen[seen.len() - 1..]).await;
        if let Some(&next) = ids.get(seen.len() + deleted.len() + 3) {
            system.delete_many(&bob, &[next]).await;
            deleted.insert(next);
        }
        system.publish_many(&bob, numbered(100..103)).await;
    }
    assert!(pages > 4);
    ids.retain(|id| !deleted.contains(id));
    assert_eq!(seen, ids);
}

/// Returns a text of nearly 2,000 characters and 70,000 bytes of hashtags.
pub(crate) fn tags(i: usize) -> String {
    format!("{i:04} {}", format!("#{}#", EMOJI.repeat(97)).repeat(20))
}

#[tokio::test]
async fn texts_of_maximum_length_are_all_shown_once() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follow(&ann, &bob).await;
    let root = system.publish(&ann, &tags(0)).await.id;
    let mut ids: HashSet<u64> = [root].into();
    for i in 1..200 {
        let (author_id, request_id) = (bob.id, request_id());
        let text = if i % 2 == 0 { tags(i) } else { long(i) };
        let post = if i % 4 == 0 {
            let request = post::CreatePostRequest { author_id, request_id, text };
            system.post().create_post(request).await.unwrap().into_inner().post
        } else {
            let request = post::RepostRequest { author_id, request_id, post_id: root, text };
            system.post().repost(request).await.unwrap().into_inner().post
        };
        ids.insert(post.unwrap().id);
    }
    let (mut token, mut pages) = (String::new(), 0);
    let mut seen = HashSet::new();
    loop {
        // Fits into a client's limit of 4 MiB.
        let page = system.home(&ann, 200, &token, "").await;
        for id in post_ids(&page.posts) {
            assert!(seen.insert(id), "each once");
        }
        pages += 1;
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ids);
    assert!(pages <= 11, "a page is as large as it may be: {pages}");
}
