//! Which calls of the services stand behind each call on timelines.

use microblog_proto::gateway::{self, RootState};
use microblog_testkit::{RedisServer, redis};

use crate::{
    acts::asks,
    system::{Member, System, by_id, by_name},
    timeline_acts::{at_rest, texts},
};

const AUTHENTICATE: &str = "user.Authenticate";
const TIMELINE: &str = "timeline.GetTimeline";
const AUTHORS_POSTS: &str = "post.ListAuthorsPosts";
const POSTS: &str = "post.BatchGetPosts";
const USERS: &str = "user.BatchGetUsers";
const RELATIONS: &str = "relation.BatchGetRelations";
const LIKED: &str = "post.BatchGetLiked";
const RESOLVE: &str = "user.BatchResolveNames";
/// What belongs to posts that nobody likes, by authors of whom the timeline service tells.
const SCENE: [&str; 2] = [USERS, RESOLVE];

/// Ann, who follows Bob, who mentions her in so many posts.
struct Scene {
    system: System,
    ann: Member,
    bob: Member,
    posts: Vec<u64>,
}

impl Scene {
    async fn set(posts: usize) -> Self {
        let system = at_rest().await;
        let [ann, bob] = [system.join("ann").await, system.join("bob").await];
        system.follow(&ann, &bob).await;
        let texts = (0..posts).map(|i| format!("post {i}, @ann")).collect();
        let posts = system.publish_many(&bob, texts).await;
        system.tap.calls();
        Self { system, ann, bob, posts }
    }

    /// Checks which calls were made since this was last asked.
    #[track_caller]
    fn assert_called(&self, what: &str, expected: &[&[&str]]) {
        let mut expected = expected.concat();
        expected.sort_unstable();
        assert_eq!(self.system.tap.calls(), expected, "{what}");
    }
}

/// Returns what Redis is asked of a kind of key while a call is made, question by question.
async fn questions(server: &RedisServer, kind: &str, call: impl AsyncFn()) -> Vec<Vec<String>> {
    type Slow = (u64, u64, u64, Vec<Vec<u8>>, redis::Value, redis::Value);
    let mut admin = server.admin().await;
    let mut set = async |name: &str, value: i64| {
        let mut config = redis::cmd("CONFIG");
        config.arg("SET").arg(name).arg(value).exec_async(&mut admin).await.unwrap();
    };
    set("slowlog-max-len", 10_000).await;
    set("slowlog-log-slower-than", 0).await;
    call().await;
    set("slowlog-log-slower-than", -1).await;
    let mut log = redis::cmd("SLOWLOG");
    let log: Vec<Slow> = log.arg("GET").arg(-1).query_async(&mut admin).await.unwrap();
    let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
    let asked = log.iter().rev().filter_map(|(_, _, _, words, ..)| {
        let mut words = words.iter().skip(1).map(text);
        words.next()?.contains(kind).then(|| words.collect())
    });
    asked.collect()
}

#[tokio::test]
async fn a_page_costs_the_same_whatever_its_size_up_to_what_is_looked_at_together() {
    let scene = Scene::set(130).await;
    for page_size in [1, 25] {
        let page = scene.system.home(&scene.ann, page_size, "", "").await;
        assert_eq!(page.posts.len(), page_size as usize);
        scene.assert_called("home", &[&[AUTHENTICATE, TIMELINE, POSTS], &SCENE]);
    }
    for page_size in [26, 50] {
        scene.system.home(&scene.ann, page_size, "", "").await;
        scene.assert_called("home", &[&[AUTHENTICATE, TIMELINE, POSTS, POSTS], &SCENE]);
    }
    let page = scene.system.home(&scene.ann, 200, "", "").await;
    assert_eq!(page.posts.len(), 130);
    let slice = [&[TIMELINE, POSTS, POSTS], &SCENE[..]].concat();
    scene.assert_called("home", &[&[AUTHENTICATE], &slice, &slice, &slice]);
}

#[tokio::test]
async fn a_timeline_costs_a_fixed_number_of_calls() {
    let scene = Scene::set(3).await;
    let Scene { system, ann, bob, .. } = &scene;
    let first = [AUTHENTICATE, "user.GetUser", AUTHORS_POSTS, RELATIONS];
    let page = system.user_timeline(Some(ann), bob, 0, "").await;
    scene.assert_called("by id", &[&first, &SCENE]);
    system.user_timeline(None, bob, 0, "").await;
    scene.assert_called("by id", &[&["user.GetUser", AUTHORS_POSTS], &SCENE]);
    let (user, since_token) = (by_id(bob.id), page.since_token);
    let request = gateway::ViewUserTimelineRequest { user, since_token, ..Default::default() };
    system.gateway().view_user_timeline(ann.asks(request)).await.unwrap();
    scene.assert_called("nothing new", &[&first, &[USERS]]);
    for viewer in [Some(ann), None] {
        let user = by_name("bob");
        let request = gateway::ViewUserTimelineRequest { user, ..Default::default() };
        system.gateway().view_user_timeline(asks(viewer, request)).await.unwrap();
        let known: &[&str] = viewer.map_or(&[], |_| &[AUTHENTICATE, RELATIONS]);
        let first = ["user.GetUserByName", AUTHORS_POSTS];
        scene.assert_called("by name", &[known, &first, &SCENE]);
    }
    let since = system.home(ann, 0, "", "").await.since_token;
    system.follows([(bob.id, ann.id)]).await;
    system.tap.calls();
    system.friends(ann).await;
    let friends = [AUTHENTICATE, TIMELINE, POSTS];
    scene.assert_called("friends", &[&friends, &SCENE]);
    system.count_new(ann, &since).await;
    scene.assert_called("count", &[&[AUTHENTICATE, "timeline.CountNew"]]);
    // Nothing to show, nothing to ask about; but whether a host keeps the viewer out.
    system.home(ann, 0, "", &since).await;
    scene.assert_called("nothing new", &[&[AUTHENTICATE, TIMELINE]]);
    system.user_timeline(Some(bob), ann, 0, "").await;
    let host = [USERS, RELATIONS];
    scene.assert_called("empty", &[&[AUTHENTICATE, "user.GetUser", AUTHORS_POSTS], &host]);
}

#[tokio::test]
async fn relation_is_asked_about_those_alone_of_whom_the_timeline_does_not_tell() {
    let scene = Scene::set(2).await;
    let Scene { system, ann, bob, posts } = &scene;
    let first = [AUTHENTICATE, TIMELINE, POSTS];
    let carl = system.join("carl").await;
    let root = system.publish(&carl, "the root").await.id;
    // Her own, and what repeats somebody who has a post there.
    system.publish(ann, "mine").await;
    system.repost(ann, posts[0], "once more").await;
    system.repost(ann, posts[1], "yours").await;
    system.tap.calls();
    assert_eq!(system.home(ann, 0, "", "").await.posts.len(), 5);
    scene.assert_called("no strangers", &[&first, &SCENE]);
    system.repost(ann, root, "look").await;
    system.tap.calls();
    let page = system.home(ann, 0, "", "").await;
    assert_eq!(page.posts[0].root_state(), RootState::Shown);
    scene.assert_called("a root's author", &[&first, &SCENE, &[RELATIONS]]);
    let server = &system.store.nodes()[0];
    let asked = questions(server, ":following_ids", async || {
        system.home(ann, 0, "", "").await;
    });
    // By the timeline service, then by the gateway.
    assert_eq!(asked.await, [bob, &carl].map(|author| [author.id.to_string()]));
}

#[tokio::test]
async fn likes_are_asked_for_only_where_there_are_any() {
    let scene = Scene::set(20).await;
    let Scene { system, ann, bob, posts } = &scene;
    let calls = [AUTHENTICATE, TIMELINE, POSTS, USERS, RESOLVE];
    let liked = async || {
        let page = system.home(ann, 50, "", "").await.posts;
        let all = page.iter().flat_map(|viewed| [Some(viewed), viewed.root.as_deref()]).flatten();
        let all = all.map(|viewed| viewed.post.as_ref().unwrap());
        all.filter(|post| post.liked).map(|post| post.id).collect::<Vec<_>>()
    };
    assert_eq!(liked().await, [0; 0]);
    scene.assert_called("none", &[&calls]);
    system.like(bob, posts[3]).await;
    system.tap.calls();
    assert_eq!(liked().await, [0; 0]);
    scene.assert_called("another's", &[&calls, &[LIKED]]);
    system.like(ann, posts[3]).await;
    system.like(ann, posts[5]).await;
    assert_eq!(liked().await, [posts[5], posts[3]]);
    let server = &system.store.nodes()[0];
    let asked = questions(server, ":likes:", async || {
        system.home(ann, 50, "", "").await;
    });
    assert_eq!(asked.await.len(), 2, "of twenty");
    // A root that is not shown by itself.
    let carl = system.join("carl").await;
    let root = system.publish(&carl, "the root").await.id;
    system.repost(ann, root, "look").await;
    system.like(ann, root).await;
    assert_eq!(liked().await, [root, posts[5], posts[3]]);
    for post_id in [root, posts[3], posts[5]] {
        system.unlike(ann, post_id).await;
    }
    system.unlike(bob, posts[3]).await;
    system.tap.calls();
    assert_eq!(liked().await, [0; 0]);
    scene.assert_called("none is left", &[&calls, &[RELATIONS]]);
}

#[tokio::test]
async fn a_page_that_is_filled_again_costs_its_slices() {
    let scene = Scene::set(60).await;
    let Scene { system, ann, bob, posts } = &scene;
    let slice = [&[TIMELINE, POSTS], &SCENE[..]].concat();
    // Two of twenty: what is missing is asked for.
    system.delete_many(bob, &[posts[45], posts[50]]).await;
    system.tap.calls();
    assert_eq!(system.home(ann, 20, "", "").await.posts.len(), 20);
    scene.assert_called("a few", &[&[AUTHENTICATE], &slice, &slice]);
    // All of the first slice: more is looked at than is missing, and asked for again up to where
    // the page is full.
    system.delete_many(bob, &posts[55..]).await;
    system.tap.calls();
    let page = system.home(ann, 2, "", "").await;
    assert_eq!(texts(&page.posts), ["post 54, @ann", "post 53, @ann"]);
    let looked_at = [&[TIMELINE, POSTS, POSTS], &SCENE[..]].concat();
    scene.assert_called("many", &[&[AUTHENTICATE, TIMELINE, POSTS], &looked_at, &slice]);
    let page = system.home(ann, 2, &page.next_page_token, "").await;
    assert_eq!(texts(&page.posts), ["post 52, @ann", "post 51, @ann"]);
}

#[tokio::test]
async fn what_stands_in_costs_one_more_time() {
    let scene = Scene::set(1).await;
    let Scene { system, ann, posts, .. } = &scene;
    let mut reposts = Vec::new();
    for name in ["carl", "dora"] {
        let reposter = system.join(name).await;
        system.follow(ann, &reposter).await;
        reposts.push((system.repost(&reposter, posts[0], "").await.id, reposter));
    }
    let request = gateway::UnfollowRequest { user: by_name("bob") };
    system.gateway().unfollow(ann.asks(request)).await.unwrap();
    system.publish(ann, "mine").await;
    system.tap.calls();
    assert_eq!(texts(&system.home(ann, 0, "", "").await.posts), ["mine", ""]);
    // The root is by somebody whom she does not follow any more.
    scene.assert_called("all there", &[&[AUTHENTICATE, TIMELINE, POSTS, RELATIONS], &SCENE]);
    system.delete_post(&reposts[0].1, reposts[0].0).await;
    system.tap.calls();
    let page = system.home(ann, 0, "", "").await;
    assert_eq!(page.posts[1].post.as_ref().unwrap().id, reposts[1].0);
    // Nobody is mentioned in what is there at first.
    let first = [AUTHENTICATE, TIMELINE, POSTS, USERS];
    scene.assert_called("one is gone", &[&first, &[POSTS, RELATIONS], &SCENE]);
}

#[tokio::test]
async fn a_watch_costs_what_it_tells() {
    let scene = Scene::set(1).await;
    let Scene { system, ann, .. } = &scene;
    let since = system.home(ann, 0, "", "").await.since_token;
    system.publish(ann, "mine, @ann").await;
    for (since_token, told) in [(String::new(), 0), (since, 1)] {
        system.tap.calls();
        let request = ann.asks(gateway::WatchHomeRequest { since_token });
        let mut news = system.gateway().watch_home(request).await.unwrap().into_inner();
        scene.assert_called("begin", &[&[AUTHENTICATE, "timeline.WatchHomeTimeline"]]);
        let first = news.message().await.unwrap().unwrap();
        assert_eq!(first.posts.len(), told);
        // What is told may have waited: how its authors stand to her is asked now.
        let posts = [&[POSTS, RELATIONS], &SCENE[..]].concat();
        let posts = if told == 0 { &[][..] } else { &posts };
        scene.assert_called("a message", &[&[AUTHENTICATE], posts]);
    }
}

#[tokio::test]
async fn what_cannot_be_a_request_costs_nothing() {
    let scene = Scene::set(0).await;
    let Scene { system, ann, .. } = &scene;
    let page_size = -1;
    let request = gateway::ViewHomeRequest { page_size, ..Default::default() };
    system.gateway().view_home(ann.asks(request)).await.unwrap_err();
    let request = gateway::ViewFriendsRequest { page_size, ..Default::default() };
    system.gateway().view_friends(ann.asks(request)).await.unwrap_err();
    let request = gateway::ViewUserTimelineRequest { page_size, ..Default::default() };
    system.gateway().view_user_timeline(ann.asks(request)).await.unwrap_err();
    scene.assert_called("nothing", &[]);
}
