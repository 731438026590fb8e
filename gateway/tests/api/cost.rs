//! What a view costs in Redis: the same, however long the lists are.

use std::collections::HashMap;

use microblog_testkit::{RedisServer, Topology, redis};

use crate::system::{Jobs, Member, System};

/// What a call cost.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    /// How often each command ran, those inside functions too.
    commands: HashMap<String, u64>,
    /// How often the server read from a connection. With nothing else going on, commands that go
    /// out together are read together.
    reads: u64,
}

/// Returns a number of a section of `INFO`.
async fn info(server: &RedisServer, section: &str, name: &str) -> u64 {
    let mut question = redis::cmd("INFO");
    let info: String = question.arg(section).query_async(&mut server.admin().await).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().parse().unwrap()
}

async fn costs(system: &System, viewer: &Member, star: u64, token: &str) -> Cost {
    let server = &system.store.nodes()[0];
    let mut cheapest = None;
    // What was read in two pieces by chance is not a round trip more: the fewest count.
    for _ in 0..5 {
        server.reset_commandstats().await;
        let before = server.commandstats().await;
        let reads_before = info(server, "stats", "total_reads_processed").await;
        let page = system.followers(Some(viewer), star, 50, token).await;
        let reads = info(server, "stats", "total_reads_processed").await - reads_before;
        let after = server.commandstats().await;
        assert_eq!(page.users.len(), 50);

        let own = ["info", "auth", "hello", "client|setinfo", "config|resetstat", "select", "ping"];
        let counted = |(name, calls): (&String, &u64)| {
            let calls = calls - before.get(name).unwrap_or(&0);
            (calls > 0 && !own.contains(&name.as_str())).then(|| (name.clone(), calls))
        };
        let cost = Cost { commands: after.iter().filter_map(counted).collect(), reads };
        if cheapest.as_ref().is_none_or(|cheapest: &Cost| cost.reads < cheapest.reads) {
            cheapest = Some(cost);
        }
    }
    cheapest.unwrap()
}

#[tokio::test]
async fn a_page_costs_the_same_in_a_list_of_100_and_in_one_of_20_000() {
    let system = System::start_on(Topology::Single, Jobs::Rest, &[]).await;
    let viewer = system.join("viewer").await;
    let crowd = system.crowd("fan", 20_000).await;
    let few = system.join("few").await;
    let many = system.join("many").await;
    system.follows(crowd[..100].iter().map(|&fan| (fan, few.id))).await;
    system.follows(crowd.iter().map(|&fan| (fan, many.id))).await;
    system.follows(crowd[..4_000].iter().map(|&fan| (viewer.id, fan))).await;

    let short = costs(&system, &viewer, few.id, "").await;
    let long = costs(&system, &viewer, many.id, "").await;
    assert_eq!(short, long);
    // The viewer's relations to a page: one membership question to each of the viewer's id sets.
    assert_eq!(long.commands.get("smismember"), Some(&2));

    let next = system.followers(Some(&viewer), many.id, 50, "").await.next_page_token;
    let further = costs(&system, &viewer, many.id, &next).await;
    assert_eq!(further, long);
}
