//! Texts are read as they were written, from the cache and from the database.

use futures::future::join_all;

use crate::support::{System, Topology, id, lists::List};

/// Texts that a statement, JSON or an encoding might change.
fn texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "it's",
        "\"quoted\" and \\ escaped \\n",
        "{1,2} [3] $1 $$ -- comment; DROP TABLE posts",
        "微博 🧑‍🧑‍🧒‍🧒 e\u{301} \u{1F468}\u{200D}\u{1F469}",
        "line\nline\n\nline",
        "\u{FFFD} \u{10FFFD} \u{2028}",
        "%s %00 \\u0000 null NULL",
        "<b>&amp;</b>",
        "0",
        " ' ",
    ]
    .map(str::to_owned)
    .into();
    texts.extend([1, 255, 256, 900, 1_000, 1_100, 2_000].map(|length| "a".repeat(length)));
    texts.push("微".repeat(2_000));
    texts
}

#[tokio::test]
async fn texts_are_unchanged() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let texts = texts();
        let on = system.create(id(1), "discuss").await.unwrap().id;
        let posts = join_all(texts.iter().map(|text| system.create(id(2), text))).await;
        let posts: Vec<_> = posts.into_iter().map(Result::unwrap).collect();
        let comments = join_all(texts.iter().map(|text| system.comment(id(3), on, text, 0))).await;
        let comments: Vec<_> = comments.into_iter().map(Result::unwrap).collect();
        for round in 0..3 {
            for post in &posts {
                assert_eq!(system.get(post.id, 0).await.unwrap(), *post, "round {round}");
            }
            let keys: Vec<_> = comments.iter().map(|comment| (on, comment.id)).collect();
            let found = system.batch_comments(&keys, false).await.unwrap().comments;
            assert_eq!(found, comments, "round {round}");
            let listed = List::oldest(on).whole(&system.client, 20).await;
            assert_eq!(listed.len(), comments.len());
            system.like(id(10 + round), posts[0].id).await.unwrap();
            system.unlike(id(10 + round), posts[0].id).await.unwrap();
            if round == 1 {
                system.flush().await;
            }
        }
    }
}
