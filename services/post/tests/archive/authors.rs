//! Merged lists of authors with archived posts, and the comments of an account.

use microblog_proto::post as pb;
use microblog_testkit::eventually;
use tonic::{Code, Status};

use crate::{
    aging::{Aging, on_both},
    support::{
        PATIENCE, System,
        archives::{ArchiveServer, Kind},
        id,
    },
};

on_both! { comments_of_an_account_are_listed_in_either_tier }

const AUTHORS: [u64; 3] = [id(1), id(2), id(3)];

async fn page(system: &System, before_id: u64, size: i32) -> Result<(Vec<u64>, u64), Status> {
    page_between(system, before_id, 0, size).await
}

async fn page_between(
    system: &System,
    before_id: u64,
    after_id: u64,
    page_size: i32,
) -> Result<(Vec<u64>, u64), Status> {
    let author_ids = AUTHORS.to_vec();
    let request =
        pb::ListAuthorsPostsRequest { author_ids, viewer_id: 0, page_size, before_id, after_id };
    let page = system.client.clone().list_authors_posts(request).await?.into_inner();
    Ok((page.posts.iter().map(|post| post.id).collect(), page.next_before_id))
}

#[tokio::test]
async fn pages_of_several_authors_stop_at_an_outage_and_continue() {
    let archives = ArchiveServer::start(Kind::Postgres).await;
    let aging = Aging::start(&archives, 4).await;
    let system = &aging.system;
    let mut all = Vec::new();
    for n in 0..36 {
        // The first author has few posts, and only new ones.
        let author = AUTHORS[if n % 12 == 11 { 0 } else { 1 + n % 2 }];
        all.insert(0, system.create(author, &format!("number {n}")).await.unwrap().id);
    }
    aging
        .evict(&all[12..].iter().copied().filter(|&id| !is_of_first(id)).collect::<Vec<_>>())
        .await;
    archives.postgres().kill();

    let (mut read, mut before) = (Vec::new(), 0);
    let refusal = loop {
        match page(system, before, 3).await {
            Ok((ids, next)) => {
                assert!(!ids.is_empty() && next != 0, "the page has a next cursor");
                read.extend(ids);
                before = next;
            }
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.code(), Code::Unavailable);
    assert!(read.len() >= 4 && read.len() < 12, "{read:?}");
    assert_eq!(read, all[..read.len()], "no post above the cursor is missing");
    // Both authors have four posts in Redis, down to this one or below it: no archived post is newer.
    assert_eq!(page_between(system, 0, all[7], 20).await.unwrap(), (all[..7].to_vec(), 0));
    assert_eq!(
        page_between(system, all[2], all[7], 2).await.unwrap(),
        (all[3..5].to_vec(), all[4])
    );
    let (ids, next) = page_between(system, 0, all[30], 20).await.unwrap();
    assert_eq!(ids, all[..ids.len()]);
    assert!(ids.contains(&next), "archived posts may follow");

    archives.postgres().restart().await;
    eventually("the page has a next cursor", PATIENCE, async || {
        page(system, before, 3).await.is_ok()
    })
    .await;
    while before != 0 {
        let (ids, next) = page(system, before, 5).await.unwrap();
        read.extend(ids);
        before = next;
    }
    assert_eq!(read, all);
    for (after, count) in [(0, 1), (8, 3), (20, 7), (30, 50), (35, 4)] {
        let (mut newer, mut before) = (Vec::new(), 0);
        loop {
            let (ids, next) = page_between(system, before, all[after], count).await.unwrap();
            newer.extend(ids);
            before = next;
            if before == 0 {
                break;
            }
        }
        assert_eq!(newer, all[..after], "{count} a page");
    }
}

fn is_of_first(post: u64) -> bool {
    crate::support::post(post).partition() == crate::support::user(1).partition()
}

async fn comments_by(system: &System, author_id: u64) -> Vec<(u64, String)> {
    let mut request =
        pb::ListUserCommentsRequest { author_id, page_size: 2, page_token: String::new() };
    let mut comments = Vec::new();
    loop {
        let answer = system.client.clone().list_user_comments(request.clone()).await.unwrap();
        let page = answer.into_inner();
        assert!(page.comments.iter().all(|comment| comment.author_id == author_id));
        comments.extend(page.comments.into_iter().map(|comment| (comment.id, comment.text)));
        if page.next_page_token.is_empty() {
            return comments;
        }
        request.page_token = page.next_page_token;
    }
}

async fn comments_of_an_account_are_listed_in_either_tier(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 1).await;
    let (system, fan) = (&aging.system, id(9));
    let [old, gone, hot] = ["old", "gone", "hot"].map(|text| system.create(AUTHORS[0], text));
    let (old, gone) = (old.await.unwrap().id, gone.await.unwrap().id);
    let mut comments = Vec::new();
    let comment = async |post, text: &str| {
        let made = system.comment(fan, post, text, 0).await.unwrap().id;
        system.comment(id(8), post, "somebody else", made).await.unwrap();
        (made, text.to_owned())
    };
    comments.push(comment(old, "on the old one").await);
    let on_gone = comment(gone, "on the one that goes").await;
    aging.evict(&[old]).await;
    let hot = hot.await.unwrap().id;
    for n in 0..4 {
        comments.insert(0, comment(hot, &format!("number {n}")).await);
    }
    aging.archive().await;
    let mut with_gone = comments.clone();
    with_gone.insert(4, on_gone);
    assert_eq!(comments_by(system, fan).await, with_gone);

    // A comment is added to a post that is then restored, one is deleted there, and a post is
    // deleted with its comments.
    system.delete(AUTHORS[0], gone).await.unwrap();
    comments.insert(0, comment(old, "late").await);
    let (ended, _) = comments.remove(5);
    system.uncomment(fan, old, ended).await.unwrap();
    for _ in 0..2 {
        aging.age(&AUTHORS).await;
        assert_eq!(comments_by(system, fan).await, comments);
    }
    aging.is_sound().await;
}
