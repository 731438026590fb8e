//! The service calls of each timeline call. Ann's session was verified shortly before.

use microblog_proto::gateway::{self, RootState};
use microblog_testkit::{RedisServer, redis};

use crate::{
    actions::request_as,
    system::{Member, System, by_id, by_name},
    timeline_actions::{texts, without_jobs},
};

const AUTHENTICATE: &str = "user.Authenticate";
const TIMELINE: &str = "timeline.GetTimeline";
const AUTHORS_POSTS: &str = "post.ListAuthorsPosts";
const POSTS: &str = "post.BatchGetPosts";
const USERS: &str = "user.BatchGetUsers";
const RELATIONS: &str = "relation.BatchGetRelations";
/// The call that hydrates posts by authors whose relations the timeline service returned.
const HYDRATION: [&str; 1] = [USERS];

/// Ann follows Bob, who mentions her in this many posts.
struct Fixture {
    system: System,
    ann: Member,
    bob: Member,
    posts: Vec<u64>,
}

impl Fixture {
    async fn set(posts: usize) -> Self {
        let system = without_jobs().await;
        let [ann, bob] = [system.join("ann").await, system.join("bob").await];
        system.follow(&ann, &bob).await;
        let texts = (0..posts).map(|i| format!("post {i}, @ann")).collect();
        let posts = system.publish_many(&bob, texts).await;
        system.recorder.calls();
        Self { system, ann, bob, posts }
    }

    /// Checks the calls since the last check.
    #[track_caller]
    fn assert_called(&self, what: &str, expected: &[&[&str]]) {
        let mut expected = expected.concat();
        expected.sort_unstable();
        assert_eq!(self.system.recorder.calls(), expected, "{what}");
    }
}

/// Returns the commands that Redis receives for a kind of key during a call.
pub(crate) async fn commands_on(
    server: &RedisServer,
    kind: &str,
    call: impl AsyncFn(),
) -> Vec<Vec<String>> {
    type Slow = (u64, u64, u64, Vec<Vec<u8>>, redis::Value, redis::Value);
    let mut admin = server.admin().await;
    let mut log = redis::pipe();
    log.cmd("CONFIG").arg("SET").arg("slowlog-max-len").arg(10_000);
    log.cmd("CONFIG").arg("SET").arg("slowlog-log-slower-than").arg(0);
    // On a busy machine, commands from before took long enough to be in the log.
    log.cmd("SLOWLOG").arg("RESET").exec_async(&mut admin).await.unwrap();
    call().await;
    let mut log = redis::cmd("SLOWLOG");
    let log: Vec<Slow> = log.arg("GET").arg(-1).query_async(&mut admin).await.unwrap();
    let mut end = redis::cmd("CONFIG");
    end.arg("SET").arg("slowlog-log-slower-than").arg(-1).exec_async(&mut admin).await.unwrap();
    let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
    let commands = log.iter().rev().filter_map(|(_, _, _, words, ..)| {
        let mut words = words.iter().skip(1).map(text);
        words.next()?.contains(kind).then(|| words.collect())
    });
    commands.collect()
}

#[tokio::test]
async fn a_page_of_one_batch_costs_the_same_for_every_size() {
    let fixture = Fixture::set(130).await;
    for page_size in [1, 25] {
        let page = fixture.system.home(&fixture.ann, page_size, "", "").await;
        assert_eq!(page.posts.len(), page_size as usize);
        fixture.assert_called("home", &[&[TIMELINE, POSTS], &HYDRATION]);
    }
    for page_size in [26, 50] {
        fixture.system.home(&fixture.ann, page_size, "", "").await;
        fixture.assert_called("home", &[&[TIMELINE, POSTS, POSTS], &HYDRATION]);
    }
    let page = fixture.system.home(&fixture.ann, 200, "", "").await;
    assert_eq!(page.posts.len(), 130);
    let slice = [&[TIMELINE, POSTS, POSTS], &HYDRATION[..]].concat();
    fixture.assert_called("home", &[&slice, &slice, &slice]);
}

#[tokio::test]
async fn a_timeline_takes_a_fixed_number_of_calls() {
    let fixture = Fixture::set(3).await;
    let Fixture { system, ann, bob, .. } = &fixture;
    let first = [AUTHORS_POSTS, RELATIONS];
    let page = system.user_timeline(Some(ann), bob, 0, "").await;
    fixture.assert_called("by id", &[&first, &HYDRATION]);
    system.user_timeline(None, bob, 0, "").await;
    fixture.assert_called("by id", &[&[AUTHORS_POSTS], &HYDRATION]);
    let (user, since_token) = (by_id(bob.id), page.since_token);
    let request = gateway::ViewUserTimelineRequest { user, since_token, ..Default::default() };
    system.gateway().view_user_timeline(ann.request(request)).await.unwrap();
    fixture.assert_called("nothing new", &[&first, &[USERS]]);
    for viewer in [Some(ann), None] {
        let user = by_name("bob");
        let request = gateway::ViewUserTimelineRequest { user, ..Default::default() };
        system.gateway().view_user_timeline(request_as(viewer, request)).await.unwrap();
        let known: &[&str] = viewer.map_or(&[], |_| &[RELATIONS]);
        let first = ["user.GetUserByName", AUTHORS_POSTS];
        fixture.assert_called("by name", &[known, &first, &HYDRATION]);
    }
    let since = system.home(ann, 0, "", "").await.since_token;
    system.follows([(bob.id, ann.id)]).await;
    system.recorder.calls();
    system.friends(ann).await;
    let friends = [TIMELINE, POSTS];
    fixture.assert_called("friends", &[&friends, &HYDRATION]);
    system.count_new(ann, &since).await;
    fixture.assert_called("count", &[&[AUTHENTICATE, "timeline.CountNew"]]);
    // An empty page needs no hydration, except for a block by the account. Bob's session was not
    // verified before.
    system.home(ann, 0, "", &since).await;
    fixture.assert_called("nothing new", &[&[AUTHENTICATE, TIMELINE]]);
    system.user_timeline(Some(bob), ann, 0, "").await;
    let host = [USERS, RELATIONS];
    fixture.assert_called("empty", &[&[AUTHENTICATE, AUTHORS_POSTS], &host]);
}

#[tokio::test]
async fn only_relations_missing_from_the_timeline_response_are_read() {
    let fixture = Fixture::set(2).await;
    let Fixture { system, ann, bob, posts } = &fixture;
    let first = [TIMELINE, POSTS];
    let carl = system.join("carl").await;
    let root = system.publish(&carl, "the root").await.id;
    // Her own posts, and reposts of an author who has a post on the page.
    system.publish(ann, "mine").await;
    system.repost(ann, posts[0], "once more").await;
    system.repost(ann, posts[1], "yours").await;
    system.recorder.calls();
    assert_eq!(system.home(ann, 0, "", "").await.posts.len(), 5);
    fixture.assert_called("no strangers", &[&first, &HYDRATION]);
    system.repost(ann, root, "look").await;
    system.recorder.calls();
    let page = system.home(ann, 0, "", "").await;
    assert_eq!(page.posts[0].root_state(), RootState::Shown);
    fixture.assert_called("a root's author", &[&first, &HYDRATION, &[RELATIONS]]);
    system.caches(ann).await;
    let server = &system.store.nodes()[0];
    let commands = commands_on(server, ":following:set:", async || {
        system.home(ann, 0, "", "").await;
    });
    // The timeline service's read, then the gateway's: the member that each set has, and the author.
    let read = |author: &Member| ["0".to_owned(), author.id.to_string()];
    assert_eq!(commands.await, [bob, &carl].map(read));
}

#[tokio::test]
async fn viewer_likes_are_read_together() {
    let fixture = Fixture::set(20).await;
    let Fixture { system, ann, bob, posts } = &fixture;
    let calls = [TIMELINE, POSTS, USERS];
    let liked = async || {
        let page = system.home(ann, 50, "", "").await.posts;
        let all = page.iter().flat_map(|viewed| [Some(viewed), viewed.root.as_deref()]).flatten();
        let all = all.map(|viewed| viewed.post.as_ref().unwrap());
        all.filter(|post| post.liked).map(|post| post.id).collect::<Vec<_>>()
    };
    assert_eq!(liked().await, [0; 0]);
    fixture.assert_called("none", &[&calls]);
    system.like(bob, posts[3]).await;
    system.recorder.calls();
    assert_eq!(liked().await, [0; 0]);
    fixture.assert_called("another's", &[&calls]);
    system.like(ann, posts[3]).await;
    system.like(ann, posts[5]).await;
    // The first time, the entry is loaded.
    system.caches(ann).await;
    assert_eq!(liked().await, [posts[5], posts[3]]);
    let server = &system.store.nodes()[0];
    let commands = commands_on(server, ":liked:", async || {
        system.home(ann, 50, "", "").await;
    });
    assert_eq!(commands.await.len(), 1, "one entry has the likes of the viewer");
    // A root that is not on the page itself.
    let carl = system.join("carl").await;
    let root = system.publish(&carl, "the root").await.id;
    system.repost(ann, root, "look").await;
    system.like(ann, root).await;
    assert_eq!(liked().await, [root, posts[5], posts[3]]);
    for post_id in [root, posts[3], posts[5]] {
        system.unlike(ann, post_id).await;
    }
    system.unlike(bob, posts[3]).await;
    system.recorder.calls();
    assert_eq!(liked().await, [0; 0]);
    fixture.assert_called("none is left", &[&calls, &[RELATIONS]]);
}

#[tokio::test]
async fn each_refill_of_a_page_costs_the_same() {
    let fixture = Fixture::set(60).await;
    let Fixture { system, ann, bob, posts } = &fixture;
    let slice = [&[TIMELINE, POSTS], &HYDRATION[..]].concat();
    // Two of twenty are missing: reads two more.
    system.delete_many(bob, &[posts[45], posts[50]]).await;
    system.recorder.calls();
    assert_eq!(system.home(ann, 20, "", "").await.posts.len(), 20);
    fixture.assert_called("a few", &[&slice, &slice]);
    // All of the first skeleton is hidden: the gateway overfetches, and reads on until the page is
    // full.
    system.delete_many(bob, &posts[55..]).await;
    system.recorder.calls();
    let page = system.home(ann, 2, "", "").await;
    assert_eq!(texts(&page.posts), ["post 54, @ann", "post 53, @ann"]);
    let looked_at = [&[TIMELINE, POSTS, POSTS], &HYDRATION[..]].concat();
    fixture.assert_called("many", &[&[TIMELINE, POSTS], &looked_at, &slice]);
    let page = system.home(ann, 2, &page.next_page_token, "").await;
    assert_eq!(texts(&page.posts), ["post 52, @ann", "post 51, @ann"]);
}

#[tokio::test]
async fn suppressed_reposts_cost_one_more_hydration() {
    let fixture = Fixture::set(1).await;
    let Fixture { system, ann, posts, .. } = &fixture;
    let mut reposts = Vec::new();
    for name in ["carl", "dora"] {
        let reposter = system.join(name).await;
        system.follow(ann, &reposter).await;
        reposts.push((system.repost(&reposter, posts[0], "").await.id, reposter));
    }
    let request = gateway::UnfollowRequest { user: by_name("bob") };
    system.gateway().unfollow(ann.request(request)).await.unwrap();
    system.publish(ann, "mine").await;
    system.recorder.calls();
    assert_eq!(texts(&system.home(ann, 0, "", "").await.posts), ["mine", ""]);
    // She no longer follows the root's author.
    fixture.assert_called("all exist", &[&[TIMELINE, POSTS, RELATIONS], &HYDRATION]);
    system.delete_post(&reposts[0].1, reposts[0].0).await;
    system.recorder.calls();
    let page = system.home(ann, 0, "", "").await;
    assert_eq!(page.posts[1].post.as_ref().unwrap().id, reposts[1].0);
    // The first posts have no mentions.
    let first = [TIMELINE, POSTS, USERS];
    fixture.assert_called("one is deleted", &[&first, &[POSTS, RELATIONS], &HYDRATION]);
}

#[tokio::test]
async fn a_watch_costs_only_its_messages() {
    let fixture = Fixture::set(1).await;
    let Fixture { system, ann, .. } = &fixture;
    let since = system.home(ann, 0, "", "").await.since_token;
    system.publish(ann, "mine, @ann").await;
    for (since_token, count) in [(String::new(), 0), (since, 1)] {
        system.recorder.calls();
        let request = ann.request(gateway::WatchHomeRequest { since_token });
        let mut updates = system.gateway().watch_home(request).await.unwrap().into_inner();
        fixture.assert_called("begin", &[&[AUTHENTICATE, "timeline.WatchHomeTimeline"]]);
        let first = updates.message().await.unwrap().unwrap();
        assert_eq!(first.posts.len(), count);
        // The update may be old, so the gateway reads current relations.
        let posts = [&[POSTS, RELATIONS], &HYDRATION[..]].concat();
        let posts = if count == 0 { &[][..] } else { &posts };
        fixture.assert_called("a message", &[&[AUTHENTICATE], posts]);
    }
}

#[tokio::test]
async fn an_invalid_request_costs_no_calls() {
    let fixture = Fixture::set(0).await;
    let Fixture { system, ann, .. } = &fixture;
    let page_size = -1;
    let request = gateway::ViewHomeRequest { page_size, ..Default::default() };
    system.gateway().view_home(ann.request(request)).await.unwrap_err();
    let request = gateway::ViewFriendsRequest { page_size, ..Default::default() };
    system.gateway().view_friends(ann.request(request)).await.unwrap_err();
    let request = gateway::ViewUserTimelineRequest { page_size, ..Default::default() };
    system.gateway().view_user_timeline(ann.request(request)).await.unwrap_err();
    fixture.assert_called("nothing", &[]);
}
