//! Texts are unchanged after a round trip through a database.

use microblog_proto::post as pb;

use crate::{
    aging::{Aging, on_both},
    support::{archives::ArchiveServer, id, lists::List},
};

on_both! { texts_are_unchanged_after_a_restore }

fn texts() -> Vec<String> {
    let fixed = [
        "微博是一种基于用户关系的信息分享平台。@小明 #话题#",
        "👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇳 e\u{301} ñ Å",
        "'; DROP TABLE posts; --",
        "$1, $2, ?, ?1, :name, @name, {}, %s, \\x00, \\0",
        "it's \"quoted\" `so` ''twice''",
        "C:\\new\\table\\ \\' \\\" \\\\",
        "one\ntwo\n\nfour",
        "0",
        "NULL",
        "-1e400",
        "<script>alert(1)</script> &amp; %00",
        "مرحبا بالعالم שלום עולם",
        "𝕬𝖘𝖙𝖗𝖆𝖑 \u{10ffff}",
    ];
    let long = ["微".repeat(2_000), "👩‍👩‍👧‍👦".repeat(1_200), "a".repeat(2_000), "'".repeat(2_000)];
    fixed.into_iter().map(str::to_owned).chain(long).collect()
}

async fn texts_are_unchanged_after_a_restore(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let (mut posts, mut on) = (Vec::new(), Vec::new());
    for text in texts() {
        // The service rejects some texts; these are not archived.
        let Ok(post) = system.create(id(1), &text).await else { continue };
        on.push(system.comment(id(2), post.id, &text, 0).await.unwrap());
        posts.push(system.quote(id(3), post.id, &text).await.unwrap());
        posts.push(system.get(post.id, 0).await.unwrap());
    }
    assert!(posts.len() >= 2 * (texts().len() - 1), "{}", posts.len());
    let ids: Vec<_> = posts.iter().map(|post| post.id).collect();
    aging.evict(&ids).await;
    for (post, text) in posts.iter().zip(posts.iter().map(|post| &post.text)) {
        assert_eq!(&system.get(post.id, 0).await.unwrap().text, text);
    }
    let comments = async |post_id| {
        let request = pb::ListCommentsRequest { post_id, ..Default::default() };
        system.client.clone().list_comments(request).await.unwrap().into_inner().comments
    };
    for comment in &on {
        assert_eq!(comments(comment.post_id).await, std::slice::from_ref(comment));
    }
    // And after they were restored.
    for post in &posts {
        system.like(id(4), post.id).await.unwrap();
        let back = system.get(post.id, 0).await.unwrap();
        assert_eq!((&back.text, &back.entities), (&post.text, &post.entities));
    }
    for comment in &on {
        assert_eq!(comments(comment.post_id).await, std::slice::from_ref(comment));
    }
    assert_eq!(List::UserPosts(id(1)).whole(&system.client, 3).await.len(), posts.len() / 2);
    aging.is_sound().await;
}
