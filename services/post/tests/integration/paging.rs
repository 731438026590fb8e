//! Paging: every list can be read to its end during writes, and accepts only its own tokens.

use futures::future::join_all;
use microblog_proto::common::ErrorReason;
use microblog_testkit::Topology::{self, Cluster, Single};
use tonic::Code;

use crate::support::{System, assert_rejected, id, lists::List, names_fields};

/// The owner of the lists.
const AUTHOR: u64 = id(1);

/// Returns a system with a post, and all lists of it and its author.
async fn with_lists(topology: Topology) -> (System, [List; 5]) {
    let system = System::start(topology).await;
    let post = system.create(id(2), "listed").await.unwrap();
    (system, List::all_of(post.id, AUTHOR))
}

/// Adds an entry to a list; returns it.
async fn add(system: &System, list: List, n: u64) -> u64 {
    match list {
        List::Likers(post) => {
            system.like(id(100 + n), post).await.unwrap();
            id(100 + n)
        }
        List::Comments(post, _) => system.comment(id(3), post, "new", 0).await.unwrap().id,
        List::Reposts(post) => system.repost(id(100 + n), post).await.unwrap().id,
        List::UserPosts(author) => system.create(author, "new").await.unwrap().id,
    }
}

async fn remove(system: &System, list: List, entry: u64) {
    match list {
        List::Likers(post) => {
            system.unlike(entry, post).await.unwrap();
        }
        List::Comments(post, _) => system.uncomment(id(3), post, entry).await.unwrap(),
        List::Reposts(_) => {
            let author = system.get(entry, 0).await.unwrap().author_id;
            system.delete(author, entry).await.unwrap();
        }
        List::UserPosts(author) => system.delete(author, entry).await.unwrap(),
    }
}

async fn clear(system: &System, list: List) {
    for entry in list.whole(&system.client, 200).await {
        remove(system, list, entry).await;
    }
}

#[tokio::test]
async fn every_list_can_be_read_to_its_end_while_it_changes() {
    for topology in [Single, Cluster] {
        let (system, lists) = with_lists(topology).await;
        for list in lists {
            clear(&system, list).await;
            changes_between_pages(&system, list).await;
        }
        system.settles().await;
    }
}

async fn changes_between_pages(system: &System, list: List) {
    let ascending = |ids: &[u64]| ids.is_sorted_by(|a, b| a < b);
    for n in 0..45 {
        add(system, list, n).await;
    }
    let before = list.whole(&system.client, 200).await;
    assert_eq!(before.len(), 45);
    let (mut seen, mut added, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    let mut token = String::new();
    for n in 45.. {
        let (page, next) = list.page(&system.client, 7, &token).await.unwrap();
        seen.extend(page);
        if next.is_empty() {
            break;
        }
        assert_eq!(seen.len() % 7, 0, "only the last page of {list:?} is short");
        // One entry is added; the one at the cursor and a later one are removed.
        added.push(add(system, list, n).await);
        remove(system, list, *seen.last().unwrap()).await;
        let coming = before.iter().filter(|entry| !seen.contains(entry) && !gone.contains(*entry));
        if let Some(&entry) = { coming }.nth(1) {
            remove(system, list, entry).await;
            gone.push(entry);
        }
        token = next;
    }
    let mut expected: Vec<_> = before.into_iter().filter(|entry| !gone.contains(entry)).collect();
    if is_oldest_first(list) {
        expected.extend(added);
        assert!(ascending(&seen), "oldest first");
    } else if !matches!(list, List::Likers(_)) {
        let reversed: Vec<_> = seen.iter().rev().copied().collect();
        assert!(ascending(&reversed), "newest first");
    }
    assert_eq!(seen, expected, "{list:?}");
}

fn is_oldest_first(list: List) -> bool {
    matches!(list, List::Comments(post, _) if list == List::oldest(post))
}

#[tokio::test]
async fn likes_with_equal_stamps_are_all_listed_once() {
    let (system, [likers, ..]) = with_lists(Single).await;
    let List::Likers(post) = likers else { panic!("the first list") };
    let likes = (0..1_100).map(|n| format!("({}, {post}, 7)", id(100 + n)));
    let likes = likes.collect::<Vec<_>>().join(", ");
    system.execute(&format!("INSERT INTO likes (account, post, since) VALUES {likes}")).await;
    system.execute(&format!("UPDATE posts SET likes = 1100 WHERE id = {post}")).await;
    system.flush().await;
    system.caches().await;

    let mut seen = likers.whole(&system.client, 7).await;
    assert_eq!(seen, likers.whole(&system.client, 200).await);
    seen.sort_unstable();
    assert_eq!(seen, (0..1_100).map(|n| id(100 + n)).collect::<Vec<_>>());
}

#[tokio::test]
async fn pages_have_20_entries_by_default_and_up_to_200() {
    let (system, lists) = with_lists(Single).await;
    for list in lists {
        // The comments are the same in either order.
        let missing = 205 - list.whole(&system.client, 200).await.len() as u64;
        join_all((0..missing).map(|n| add(&system, list, n))).await;
        for (size, expected) in [(0, 20), (1, 1), (200, 200), (201, 200), (i32::MAX, 200)] {
            let (page, next) = list.page(&system.client, size, "").await.unwrap();
            assert_eq!((page.len(), next.is_empty()), (expected, false), "{size} of {list:?}");
            let (rest, next) = list.page(&system.client, size, &next).await.unwrap();
            assert_eq!(rest.len(), expected.min(205 - expected), "{list:?}");
            assert!(rest.iter().all(|entry| !page.contains(entry)));
            assert_eq!(next.is_empty(), expected == 200);
        }
        for size in [-1, i32::MIN] {
            names_fields(list.page(&system.client, size, "").await, &["page_size"]);
        }
    }
}

#[tokio::test]
async fn a_token_is_valid_for_its_own_list_only() {
    let system = System::start(Single).await;
    let mut lists = Vec::new();
    for author in [id(1), id(2)] {
        let post = system.create(author, "first").await.unwrap();
        system.create(author, "second").await.unwrap();
        for list in List::all_of(post.id, author) {
            join_all((0..3).map(|n| add(&system, list, n))).await;
            lists.push(list);
        }
    }
    let mut tokens = Vec::new();
    for list in &lists {
        tokens.push(list.page(&system.client, 1, "").await.unwrap().1);
    }
    for list in &lists {
        for (other, token) in lists.iter().zip(&tokens) {
            let answer = list.page(&system.client, 5, token).await;
            if list == other {
                assert!(!answer.unwrap().0.is_empty());
            } else {
                assert_rejected(answer, Code::InvalidArgument, ErrorReason::PageTokenMismatch);
            }
        }
    }
    // The default order is oldest first.
    let List::Comments(post, _) = lists[1] else { panic!("comments") };
    let unspecified = List::Comments(post, 0);
    assert_eq!(unspecified.page(&system.client, 1, "").await.unwrap().1, tokens[1]);
}

#[tokio::test]
async fn a_damaged_token_is_rejected() {
    let (system, lists) = with_lists(Single).await;
    for list in lists {
        join_all((0..3).map(|n| add(&system, list, n))).await;
        let token = list.page(&system.client, 1, "").await.unwrap().1;
        let mut damaged = vec![
            token[1..].to_owned(),
            format!("{token}A"),
            format!("{token}="),
            token.to_lowercase(),
            "rubbish".to_owned(),
            " ".to_owned(),
            "微博".to_owned(),
            "A".repeat(100_000),
        ];
        for at in 0..token.len() {
            let other = if &token[at..=at] == "A" { "B" } else { "A" };
            damaged.push([&token[..at], other, &token[at + 1..]].concat());
        }
        for token in damaged {
            let answer = list.page(&system.client, 1, &token).await;
            assert_rejected(answer, Code::InvalidArgument, ErrorReason::PageTokenInvalid);
        }
    }
}

#[tokio::test]
async fn lists_of_missing_posts_are_empty_or_not_found() {
    for topology in [Single, Cluster] {
        let (system, lists) = with_lists(topology).await;
        for list in lists {
            assert_eq!(list.page(&system.client, 0, "").await.unwrap(), (vec![], String::new()));
        }
        let [of_a_post @ .., _] = List::all_of(id(99), AUTHOR);
        for list in of_a_post {
            let answer = list.page(&system.client, 0, "").await;
            assert_rejected(answer, Code::NotFound, ErrorReason::PostNotFound);
        }
        let unknown = List::Comments(id(99), 7).page(&system.client, -1, "").await;
        names_fields(unknown, &["order", "page_size"]);
    }
}
