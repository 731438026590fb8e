//! Checks after the load: all acknowledged writes exist, and no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::Duration,
};

use microblog_proto::gateway::{ViewFollowingRequest, ViewPostRequest, ViewUserRequest};
use microblog_testkit::eventually;

use crate::{
    person::{Person, by_name},
    programs::Programs,
    system::System,
};

/// Timeout for a worker to take over the work of a killed one.
const SETTLE: Duration = Duration::from_secs(120);
const PAGE: i32 = 50;

/// Asserts that all acknowledged writes of all users are visible.
pub(crate) async fn assert_no_write_is_lost(people: &[Person]) {
    for person in people {
        assert_posts(person).await;
        assert_follows(person, people).await;
    }
    assert_likes(people).await;
    for person in people {
        let expected = newest_at_home(person, people);
        eventually("home timelines have the posts of followed accounts", SETTLE, async || {
            person.home_page(PAGE).await.unwrap() == expected
        })
        .await;
    }
}

/// Each acknowledged post exists once, and no other post.
async fn assert_posts(person: &Person) {
    let (mut posts, mut token) = (Vec::new(), String::new());
    loop {
        let (page, next) = person.timeline_of(person.name(), PAGE, token).await.unwrap();
        posts.extend(page);
        token = next;
        if token.is_empty() {
            break;
        }
    }
    posts.reverse();
    assert_eq!(posts, person.posts, "the posts of {}", person.name());
}

/// Followers according to both sides of the graph, and both counts.
async fn assert_follows(person: &Person, people: &[Person]) {
    let following = following(person).await;
    assert_eq!(following, person.follows, "following of {}", person.name());
    let followers = person.followers(person.name()).await.unwrap();
    let of_theirs = people.iter().filter(|other| other.follows.contains(person.name()));
    let expected: BTreeSet<_> = of_theirs.map(|other| other.name().to_owned()).collect();
    assert_eq!(followers, expected, "followers of {}", person.name());
    let request = ViewUserRequest { user: by_name(person.name()) };
    let counts =
        person.caller.call("ViewUser", person.token(), request, async |g, r| g.view_user(r).await);
    let counts = counts.await.unwrap().counts.unwrap();
    let (following, followers) = (following.len() as u64, followers.len() as u64);
    assert_eq!((counts.following, counts.followers), (following, followers), "{}", person.name());
}

async fn following(person: &Person) -> BTreeSet<String> {
    let request =
        ViewFollowingRequest { user: by_name(person.name()), page_size: 100, ..Default::default() };
    let answer = person
        .caller
        .call("ViewFollowing", person.token(), request, async |g, r| g.view_following(r).await);
    let users = answer.await.unwrap().users.into_iter();
    users.map(|listed| listed.user.unwrap().name).collect()
}

/// Each acknowledged like counts once.
async fn assert_likes(people: &[Person]) {
    let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
    for post in people.iter().flat_map(|person| &person.likes) {
        *expected.entry(*post).or_default() += 1;
    }
    let reader = &people[0];
    for (post_id, likes) in expected {
        let request = ViewPostRequest { post_id };
        let answer = reader
            .caller
            .call("ViewPost", reader.token(), request, async |g, r| g.view_post(r).await);
        let post = answer.await.unwrap().post.unwrap().post.unwrap();
        assert_eq!(post.likes, likes, "the likes of {post_id}");
    }
}

/// Returns the newest posts of an account and of those it follows.
fn newest_at_home(person: &Person, people: &[Person]) -> Vec<u64> {
    let is_shown =
        |other: &&Person| other.name() == person.name() || person.follows.contains(other.name());
    let mut posts: Vec<u64> =
        people.iter().filter(is_shown).flat_map(|other| other.posts.clone()).collect();
    posts.sort_unstable_by(|a, b| b.cmp(a));
    posts.truncate(PAGE as usize);
    posts
}

/// Asserts that the tour through the API works, which uses all services.
pub(crate) fn assert_tour(system: &System, programs: &Programs) {
    let mut tour = Command::new(programs.program("microblog"));
    tour.args(["demo", "--gateway-url", &system.urls("gateway")[0]]);
    let output = tour.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Asserts that `microblog verify` of these programs finds no violations once no work is pending.
pub(crate) async fn assert_verified(system: &System, programs: &Programs) {
    let program = programs.program("microblog");
    let url = |service: &str| format!("--{service}-url={}", system.urls(service)[0]);
    let mut output_text = String::new();
    eventually("there are no violations", SETTLE, async || {
        let mut verify = Command::new(&program);
        // The system has no notice service.
        verify.arg("verify").env("MICROBLOG_NOTICE_URL", "");
        verify.args(["user", "relation", "post", "timeline"].map(url));
        let output = verify.output().unwrap();
        output_text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success()
    })
    .await;
    println!("{program} verify:\n{output_text}");
}
