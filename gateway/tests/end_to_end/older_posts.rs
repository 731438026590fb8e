//! Timelines back to the first post: paging is transparent across stored timelines and older posts.

use std::collections::HashSet;

use microblog_proto::gateway;
use microblog_testkit::{eventually, next_millisecond};

use crate::{
    system::{Member, System, by_id},
    timeline_actions::{SOON, post_ids, texts, without_jobs},
    timeline_pages::{Which, read, tags},
};

/// Number of posts, published by the authors in turn.
const POSTS: usize = 1_400;

/// Ann and her mutual follows Bob, Carl, Mia (whom she mutes), Una and Bea, and the posts of all,
/// oldest first.
struct Fixture {
    system: System,
    ann: Member,
    bob: Member,
    carl: Member,
    mia: Member,
    una: Member,
    bea: Member,
    posts: Vec<(u64, u64)>,
}

impl Fixture {
    /// Bob publishes most: more than a stored home timeline.
    async fn set(system: System) -> Self {
        let [ann, bob, carl] =
            [system.join("ann").await, system.join("bob").await, system.join("carl").await];
        let [mia, una, bea] =
            [system.join("mia").await, system.join("una").await, system.join("bea").await];
        for author in [&bob, &carl, &mia, &una, &bea] {
            system.follow(&ann, author).await;
            system.follow(author, &ann).await;
        }
        let mut posts = Vec::with_capacity(POSTS);
        for i in 0..POSTS {
            let author = match i % 20 {
                0 => &ann,
                4 => &carl,
                8 => &mia,
                12 => &una,
                16 => &bea,
                _ => &bob,
            };
            let ids = system.publish_many(author, vec![format!("post {i}")]).await;
            posts.push((ids[0], author.id));
        }
        // Posts of the same millisecond are ordered by id.
        posts.sort_unstable();
        Self { system, ann, bob, carl, mia, una, bea, posts }
    }

    /// Returns the posts of all except these authors, newest first.
    fn without(&self, authors: &[&Member]) -> Vec<u64> {
        let is_kept = |author| authors.iter().all(|member| member.id != author);
        let posts = self.posts.iter().rev().filter(|(_, author)| is_kept(*author));
        posts.map(|(id, _)| *id).collect()
    }

    /// Returns the posts of an author, newest first.
    fn by(&self, author: &Member) -> Vec<u64> {
        let posts = self.posts.iter().rev().filter(|(_, id)| *id == author.id);
        posts.map(|(id, _)| *id).collect()
    }

    async fn delete(&self, author: &Member, deleted: impl Iterator<Item = u64>) -> HashSet<u64> {
        let deleted: HashSet<_> = deleted.collect();
        self.system.delete_many(author, &deleted.iter().copied().collect::<Vec<_>>()).await;
        deleted
    }

    async fn unfollow(&self, author: &Member) {
        self.system.unfollow(&self.ann, author).await;
    }
}

#[tokio::test]
async fn timelines_go_back_to_the_first_post() {
    let fixture = Fixture::set(without_jobs().await).await;
    let Fixture { system, ann, bob, mia, una, bea, .. } = &fixture;
    let of_bob = fixture.by(bob);
    assert!(of_bob.len() > 1_040);
    assert_eq!(read(system, Which::User(bob), 200).await, of_bob);
    assert_eq!(read(system, Which::Home(ann), 200).await, fixture.without(&[]));
    assert_eq!(read(system, Which::Friends(ann), 200).await, fixture.without(&[ann]));

    system.mute(ann, mia).await;
    fixture.unfollow(una).await;
    system.block(bea, ann).await;
    // A run across the end of the stored timelines, and single posts everywhere.
    let is_deleted =
        |i: usize| (780..850).contains(&i) || (985..1_020).contains(&i) || i.is_multiple_of(7);
    let deleted = of_bob.iter().enumerate().filter(|(i, _)| is_deleted(*i)).map(|(_, &id)| id);
    let deleted = fixture.delete(bob, deleted).await;
    let left = |mut posts: Vec<u64>| {
        posts.retain(|id| !deleted.contains(id));
        posts
    };
    let (home, user) = (left(fixture.without(&[mia, una, bea])), left(of_bob));
    let friends = left(fixture.without(&[ann, mia, una, bea]));
    for page_size in [13, 50, 120, 200] {
        assert_eq!(read(system, Which::Home(ann), page_size).await, home, "{page_size} a page");
        let of_friends = read(system, Which::Friends(ann), page_size).await;
        assert_eq!(of_friends, friends, "{page_size} a page");
        assert_eq!(read(system, Which::User(bob), page_size).await, user, "{page_size} a page");
    }
}

/// Ann and two friends, one of whom has more posts than a stored timeline. Returns the posts of the
/// other, newest first, and of this one.
async fn with_a_prolific_friend(system: &System) -> (Member, Member, Vec<u64>, Vec<u64>) {
    let [ann, bob, carl] =
        [system.join("ann").await, system.join("bob").await, system.join("carl").await];
    for friend in [&bob, &carl] {
        system.follow(&ann, friend).await;
        system.follow(friend, &ann).await;
    }
    let mut few = system.publish_many(&carl, vec!["one of few".to_owned(); 60]).await;
    few.reverse();
    next_millisecond().await;
    let many = system.publish_many(&bob, vec!["one of many".to_owned(); 810]).await;
    (ann, bob, few, many)
}

#[tokio::test]
async fn muting_a_friend_keeps_the_posts_of_the_others() {
    let system = without_jobs().await;
    let (ann, bob, few, _) = with_a_prolific_friend(&system).await;
    system.mute(&ann, &bob).await;
    system.recorder.calls();
    assert_eq!(post_ids(&system.friends_page(&ann, 60, "").await.posts), few);
    let calls = system.recorder.calls();
    assert!(calls.iter().all(|call| *call != "post.ListAuthorsPosts"), "all of it is held");
    for page_size in [1, 7, 20, 200] {
        let read = read(&system, Which::Friends(&ann), page_size).await;
        assert_eq!(read, few, "{page_size} a page");
    }
}

#[tokio::test]
async fn deletions_by_a_friend_keep_the_posts_of_the_others() {
    let system = without_jobs().await;
    let (ann, bob, few, many) = with_a_prolific_friend(&system).await;
    let whole: Vec<_> = many.iter().rev().chain(&few).copied().collect();
    assert_eq!(read(&system, Which::Friends(&ann), 100).await, whole);
    system.delete_many(&bob, &many).await;
    for page_size in [1, 7, 20, 200] {
        let read = read(&system, Which::Friends(&ann), page_size).await;
        assert_eq!(read, few, "{page_size} a page");
    }
}

#[tokio::test]
async fn concurrent_changes_cause_no_gap_and_no_repeat() {
    let fixture = Fixture::set(System::start().await).await;
    let Fixture { system, ann, bob, carl, mia, una, bea, .. } = &fixture;
    eventually("all is delivered", SOON, async || {
        let posts = system.home(ann, 200, "", "").await.posts;
        post_ids(&posts) == fixture.without(&[])[..200]
    })
    .await;
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    let mut deleted: HashSet<u64> = HashSet::new();
    loop {
        let page = system.home(ann, 31, &token, "").await;
        seen.extend(post_ids(&page.posts));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
        assert_eq!(page.posts.len(), 31, "a page is short only at the end");
        pages += 1;
        // New posts: more in total than a page, and once more than a stored timeline.
        let new = if pages == 12 { 900 } else { 5 };
        system.publish_many(carl, vec!["new".to_owned(); new]).await;
        // Deletes one that was shown, and one that was not.
        let last = *seen.last().unwrap();
        let next = fixture.by(bob).into_iter().filter(|&id| id < last);
        deleted.extend(fixture.delete(bob, next.skip(20).take(1)).await);
        match pages {
            10 => system.mute(ann, mia).await,
            20 => fixture.unfollow(una).await,
            30 => system.block(ann, bea).await,
            35 => fixture.unfollow(carl).await,
            _ => {}
        }
    }
    assert!(pages >= 36, "{pages} pages");
    assert!(seen.is_sorted_by(|a, b| a > b), "each once, newest first");
    let missing = fixture.without(&[mia, una, bea, carl]);
    let seen: HashSet<_> = seen.into_iter().collect();
    let missing: Vec<_> =
        missing.into_iter().filter(|id| !seen.contains(id) && !deleted.contains(id)).collect();
    assert_eq!(missing, [0; 0], "skipped");
    assert!(deleted.iter().all(|id| !seen.contains(id)), "a deleted one is shown");
    for (author, shown) in [(mia, 10), (una, 20), (bea, 30), (carl, 35)] {
        // All posts before, and none after.
        let of_author = fixture.by(author).into_iter().filter(|id| seen.contains(id)).count();
        assert!((shown..=2 * shown + 2).contains(&of_author), "{of_author} of {shown} pages");
    }
}

#[tokio::test]
async fn new_posts_can_be_read_from_any_older_since_token() {
    let fixture = Fixture::set(without_jobs().await).await;
    let Fixture { system, ann, bob, .. } = &fixture;
    let (mut token, mut since) = (String::new(), String::new());
    for _ in 0..6 {
        let page = system.home(ann, 200, &token, "").await;
        (token, since) = (page.next_page_token, page.since_token);
    }
    assert_eq!(system.count_new(ann, &since).await, 0);
    system.publish(ann, "new").await;
    assert_eq!(system.count_new(ann, &since).await, 1);
    let updates = system.home(ann, 200, "", &since).await;
    assert_eq!(
        (texts(&updates.posts), updates.next_page_token),
        (vec!["new".to_owned()], String::new())
    );

    let mut page = system.user_timeline(None, bob, 200, "").await;
    for _ in 0..5 {
        page = system.user_timeline(None, bob, 200, &page.next_page_token).await;
    }
    system.publish_many(bob, vec!["another".to_owned()]).await;
    let (user, since_token) = (by_id(bob.id), page.since_token);
    let request = gateway::ViewUserTimelineRequest { user, since_token, ..Default::default() };
    let updates = system.gateway().view_user_timeline(request).await.unwrap().into_inner();
    assert_eq!(texts(&updates.posts), ["another"]);
}

#[tokio::test]
async fn posts_of_many_followings_with_maximum_texts_are_all_shown_once() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let crowd = system.crowd("c", 1_100).await;
    system.follow(&ann, &bob).await;
    system.follows(crowd.iter().map(|&id| (ann.id, id))).await;
    let mut all = Vec::new();
    for (i, &id) in crowd.iter().step_by(20).enumerate() {
        let member = Member { id, token: String::new() };
        all.extend(system.publish_many(&member, vec![tags(i)]).await);
    }
    next_millisecond().await;
    all.extend(system.publish_many(&bob, vec!["the newest".to_owned()]).await);
    all.sort_unstable_by(|a, b| b.cmp(a));
    // All posts in the timeline service are deleted.
    system.deliver(&bob, (1..=900).map(|i| all[0] + (i << 12))).await;
    for page_size in [20, 200] {
        let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            // Fits into a client's limit of 4 MiB.
            let page = system.home(&ann, page_size, &token, "").await;
            seen.extend(post_ids(&page.posts));
            assert!(!page.posts.is_empty(), "no page in the middle is empty");
            pages += 1;
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(seen, all);
        assert!(pages <= 4, "a page is as large as it may be: {pages}");
    }
}
