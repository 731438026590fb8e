//! The Redis cost of a view is independent of the lengths of lists.

use std::collections::HashMap;

use microblog_proto::post;
use microblog_testkit::{RedisServer, Topology, redis};

use crate::{
    actions::request_id,
    system::{Flags, Jobs, Member, System},
};

/// The cost of a call.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    /// The number of runs of each command, including those inside functions.
    commands: HashMap<String, u64>,
    /// The number of reads from sockets. On an idle system, pipelined commands are read together.
    reads: u64,
}

/// Returns a number of a section of `INFO`.
async fn info(server: &RedisServer, section: &str, name: &str) -> u64 {
    let mut question = redis::cmd("INFO");
    let info: String = question.arg(section).query_async(&mut server.admin().await).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().parse().unwrap()
}

/// Returns the cost of a call on an idle system.
async fn costs(system: &System, call: impl AsyncFn()) -> Cost {
    let server = &system.store.nodes()[0];
    let mut cheapest = None;
    // A command may be read in two pieces, so the minimum counts.
    for _ in 0..20 {
        server.reset_commandstats().await;
        let before = server.commandstats().await;
        let reads_before = info(server, "stats", "total_reads_processed").await;
        call().await;
        let reads = info(server, "stats", "total_reads_processed").await - reads_before;
        let after = server.commandstats().await;

        let own = ["info", "auth", "hello", "client|setinfo", "config|resetstat", "select", "ping"];
        let counted = |(name, calls): (&String, &u64)| {
            let calls = calls - before.get(name).unwrap_or(&0);
            (calls > 0 && !own.contains(&name.as_str())).then(|| (name.clone(), calls))
        };
        let cost = Cost { commands: after.iter().filter_map(counted).collect(), reads };
        let size = |cost: &Cost| (cost.commands.values().sum::<u64>(), cost.reads);
        if cheapest.as_ref().is_none_or(|cheapest| size(&cost) < size(cheapest)) {
            cheapest = Some(cost);
        }
    }
    cheapest.unwrap()
}

/// The client-side cache is off, so that each page has its full cost.
const FORGETFUL: Flags<'_> = Flags {
    user: &["--redis-cache-bytes", "0"],
    relation: &[],
    post: &["--redis-cache-bytes", "0", "--posts-per-minute", "0", "--comments-per-minute", "0"],
    timeline: &[],
};

async fn costs_of_followers(system: &System, viewer: &Member, star: u64, token: &str) -> Cost {
    let call = async || {
        let page = system.followers(Some(viewer), star, 50, token).await;
        assert_eq!(page.users.len(), 50);
    };
    costs(system, call).await
}

#[tokio::test]
async fn a_page_costs_the_same_in_a_list_of_100_and_in_one_of_20_000() {
    let system = System::start_on(Topology::Single, Jobs::Rest, FORGETFUL).await;
    let viewer = system.join("viewer").await;
    let crowd = system.crowd("fan", 20_000).await;
    let few = system.join("few").await;
    let many = system.join("many").await;
    system.follows(crowd[..100].iter().map(|&fan| (fan, few.id))).await;
    system.follows(crowd.iter().map(|&fan| (fan, many.id))).await;
    system.follows(crowd[..4_000].iter().map(|&fan| (viewer.id, fan))).await;

    system.caches(&viewer).await;
    let short = costs_of_followers(&system, &viewer, few.id, "").await;
    let long = costs_of_followers(&system, &viewer, many.id, "").await;
    assert_eq!(short, long);
    // The viewer's relations to a page: one membership command for each of the viewer's lists.
    assert_eq!(long.commands.get("smismember"), Some(&5));

    let next = system.followers(Some(&viewer), many.id, 50, "").await.next_page_token;
    let further = costs_of_followers(&system, &viewer, many.id, &next).await;
    // It reads its list whole, and not the front and the newest entries.
    let mut expected = long;
    *expected.commands.get_mut("getrange").unwrap() -= 1;
    assert_eq!(further, expected);
}

#[tokio::test]
async fn a_page_of_comments_costs_the_same_under_10_and_under_2_000() {
    let system = System::start_on(Topology::Single, Jobs::Rest, FORGETFUL).await;
    let viewer = system.join("viewer").await;
    let host = system.join("host").await;
    let crowd = system.crowd("friend", 2_000).await;
    system.follows(crowd.iter().map(|&friend| (viewer.id, friend))).await;
    let few = system.publish(&host, "few will answer").await.id;
    let many = system.publish(&host, "many will answer").await.id;
    for (post_id, count) in [(few, 10), (many, 2_000)] {
        for &author_id in &crowd[..count] {
            let request = post::AddCommentRequest {
                author_id,
                request_id: request_id(),
                post_id,
                text: "as @viewer says".to_owned(),
                in_reply_to_id: 0,
            };
            system.post().add_comment(request).await.unwrap();
        }
    }
    let costs = async |post_id: u64, token: &str| {
        let call = async || {
            let page = system.comments(Some(&viewer), post_id, 10, token).await;
            assert_eq!(page.comments.len(), 10);
        };
        costs(&system, call).await
    };
    system.caches(&viewer).await;
    let short = costs(few, "").await;
    let long = costs(many, "").await;
    assert_eq!(short, long);
    // One membership command for each of the viewer's lists; and one lookup of the session, of the name, of
    // the post, of its comments, and of the profiles of ten authors and of the host.
    assert_eq!(long.commands.get("smismember"), Some(&5));
    assert_eq!(long.commands.get("get"), Some(&15));

    // The database has further pages.
    let next = system.comments(Some(&viewer), many, 10, "").await.next_page_token;
    let further = costs(many, &next).await;
    let entries = |cost: &Cost| cost.commands.get("hmget").copied().unwrap_or_default();
    assert_eq!(entries(&further), entries(&long));
}
