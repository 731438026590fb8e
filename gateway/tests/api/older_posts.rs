//! Timelines back to the first post: a reader cannot tell where what the timeline service holds of
//! them ends.

use std::collections::HashSet;

use microblog_proto::gateway;
use microblog_testkit::eventually;

use crate::{
    system::{Member, System, by_id},
    timeline_acts::{SOON, at_rest, post_ids, texts},
    timeline_pages::{Which, read, tags},
};

/// How many posts are published one after the other, each by the next author.
const POSTS: usize = 1_400;

/// Ann, who follows Bob, Carl, Mia, whom she mutes, Una and Bea, as they follow her; and what they and she posted, oldest
/// first.
struct Scene {
    system: System,
    ann: Member,
    bob: Member,
    carl: Member,
    mia: Member,
    una: Member,
    bea: Member,
    posts: Vec<(u64, u64)>,
}

impl Scene {
    /// Most is Bob's: more than a user timeline holds.
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
        // Those of one moment have an order of their own.
        posts.sort_unstable();
        Self { system, ann, bob, carl, mia, una, bea, posts }
    }

    /// Returns the posts of all but some authors, newest first.
    fn without(&self, authors: &[&Member]) -> Vec<u64> {
        let is_kept = |author| authors.iter().all(|member| member.id != author);
        let posts = self.posts.iter().rev().filter(|(_, author)| is_kept(*author));
        posts.map(|(id, _)| *id).collect()
    }

    /// Returns what an author posted, newest first.
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
    let scene = Scene::set(at_rest().await).await;
    let Scene { system, ann, bob, mia, una, bea, .. } = &scene;
    let of_bob = scene.by(bob);
    assert!(of_bob.len() > 1_040);
    assert_eq!(read(system, Which::User(bob), 200).await, of_bob);
    assert_eq!(read(system, Which::Home(ann), 200).await, scene.without(&[]));
    assert_eq!(read(system, Which::Friends(ann), 200).await, scene.without(&[ann]));

    system.mute(ann, mia).await;
    scene.unfollow(una).await;
    system.block(bea, ann).await;
    // A stretch across where the timelines end, and single ones everywhere.
    let is_deleted =
        |i: usize| (780..850).contains(&i) || (985..1_020).contains(&i) || i.is_multiple_of(7);
    let deleted = of_bob.iter().enumerate().filter(|(i, _)| is_deleted(*i)).map(|(_, &id)| id);
    let deleted = scene.delete(bob, deleted).await;
    let left = |mut posts: Vec<u64>| {
        posts.retain(|id| !deleted.contains(id));
        posts
    };
    let (home, user) = (left(scene.without(&[mia, una, bea])), left(of_bob));
    let friends = left(scene.without(&[ann, mia, una, bea]));
    for page_size in [13, 50, 120, 200] {
        assert_eq!(read(system, Which::Home(ann), page_size).await, home, "{page_size} a page");
        let of_friends = read(system, Which::Friends(ann), page_size).await;
        assert_eq!(of_friends, friends, "{page_size} a page");
        assert_eq!(read(system, Which::User(bob), page_size).await, user, "{page_size} a page");
    }
}

/// Ann and two friends, of whom one then has more posts than a timeline holds. Returns those of the
/// other, newest first, and of the one.
async fn with_a_prolific_friend(system: &System) -> (Member, Member, Vec<u64>, Vec<u64>) {
    let [ann, bob, carl] =
        [system.join("ann").await, system.join("bob").await, system.join("carl").await];
    for friend in [&bob, &carl] {
        system.follow(&ann, friend).await;
        system.follow(friend, &ann).await;
    }
    let mut few = system.publish_many(&carl, vec!["one of few".to_owned(); 60]).await;
    few.reverse();
    let many = system.publish_many(&bob, vec!["one of many".to_owned(); 810]).await;
    (ann, bob, few, many)
}

#[tokio::test]
async fn a_friend_who_is_muted_leaves_the_posts_of_the_others() {
    let system = at_rest().await;
    let (ann, bob, few, _) = with_a_prolific_friend(&system).await;
    system.mute(&ann, &bob).await;
    system.tap.calls();
    assert_eq!(post_ids(&system.friends_page(&ann, 60, "").await.posts), few);
    let calls = system.tap.calls();
    assert!(calls.iter().all(|call| *call != "post.ListAuthorsPosts"), "all of it is held");
    for page_size in [1, 7, 20, 200] {
        let read = read(&system, Which::Friends(&ann), page_size).await;
        assert_eq!(read, few, "{page_size} a page");
    }
}

#[tokio::test]
async fn a_friend_who_deletes_all_leaves_the_posts_of_the_others() {
    let system = at_rest().await;
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
async fn what_changes_meanwhile_makes_no_gap_and_no_repeat() {
    let scene = Scene::set(System::start().await).await;
    let Scene { system, ann, bob, carl, mia, una, bea, .. } = &scene;
    eventually("all is delivered", SOON, async || {
        let posts = system.home(ann, 200, "", "").await.posts;
        post_ids(&posts) == scene.without(&[])[..200]
    })
    .await;
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    let mut gone: HashSet<u64> = HashSet::new();
    loop {
        let page = system.home(ann, 31, &token, "").await;
        seen.extend(post_ids(&page.posts));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
        assert_eq!(page.posts.len(), 31, "a page is short only at the end");
        pages += 1;
        // New ones come: more in all than a page has, and once more than a timeline holds.
        let new = if pages == 12 { 900 } else { 5 };
        system.publish_many(carl, vec!["new".to_owned(); new]).await;
        // One that was shown goes, and one that was not.
        let last = *seen.last().unwrap();
        let next = scene.by(bob).into_iter().filter(|&id| id < last);
        gone.extend(scene.delete(bob, next.skip(20).take(1)).await);
        match pages {
            10 => system.mute(ann, mia).await,
            20 => scene.unfollow(una).await,
            30 => system.block(ann, bea).await,
            35 => scene.unfollow(carl).await,
            _ => {}
        }
    }
    assert!(pages >= 36, "{pages} pages");
    assert!(seen.is_sorted_by(|a, b| a > b), "each once, newest first");
    let missing = scene.without(&[mia, una, bea, carl]);
    let seen: HashSet<_> = seen.into_iter().collect();
    let missing: Vec<_> =
        missing.into_iter().filter(|id| !seen.contains(id) && !gone.contains(id)).collect();
    assert_eq!(missing, [0; 0], "skipped");
    assert!(gone.iter().all(|id| !seen.contains(id)), "a deleted one is shown");
    for (author, shown) in [(mia, 10), (una, 20), (bea, 30), (carl, 35)] {
        // All before, and nothing after.
        let of_author = scene.by(author).into_iter().filter(|id| seen.contains(id)).count();
        assert!((shown..=2 * shown + 2).contains(&of_author), "{of_author} of {shown} pages");
    }
}

#[tokio::test]
async fn what_is_new_is_asked_for_from_anywhere_in_the_past() {
    let scene = Scene::set(at_rest().await).await;
    let Scene { system, ann, bob, .. } = &scene;
    let (mut token, mut since) = (String::new(), String::new());
    for _ in 0..6 {
        let page = system.home(ann, 200, &token, "").await;
        (token, since) = (page.next_page_token, page.since_token);
    }
    assert_eq!(system.count_new(ann, &since).await, 0);
    system.publish(ann, "new").await;
    assert_eq!(system.count_new(ann, &since).await, 1);
    let news = system.home(ann, 200, "", &since).await;
    assert_eq!((texts(&news.posts), news.next_page_token), (vec!["new".to_owned()], String::new()));

    let mut page = system.user_timeline(None, bob, 200, "").await;
    for _ in 0..5 {
        page = system.user_timeline(None, bob, 200, &page.next_page_token).await;
    }
    system.publish_many(bob, vec!["another".to_owned()]).await;
    let (user, since_token) = (by_id(bob.id), page.since_token);
    let request = gateway::ViewUserTimelineRequest { user, since_token, ..Default::default() };
    let news = system.gateway().view_user_timeline(request).await.unwrap().into_inner();
    assert_eq!(texts(&news.posts), ["another"]);
}

#[tokio::test]
async fn many_followings_and_texts_as_long_as_they_may_be_are_all_shown_once() {
    let system = at_rest().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let crowd = system.crowd("c", 1_100).await;
    system.follow(&ann, &bob).await;
    system.follows(crowd.iter().map(|&id| (ann.id, id))).await;
    let mut all = Vec::new();
    for (i, &id) in crowd.iter().step_by(20).enumerate() {
        let member = Member { id, token: String::new() };
        all.extend(system.publish_many(&member, vec![tags(i)]).await);
    }
    all.extend(system.publish_many(&bob, vec!["the newest".to_owned()]).await);
    all.sort_unstable_by(|a, b| b.cmp(a));
    // Nothing of what the timeline service holds is there any more.
    system.deliver(&bob, (1..=900).map(|i| all[0] + (i << 12))).await;
    for page_size in [20, 200] {
        let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            // A client that takes 4 MiB takes it.
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
