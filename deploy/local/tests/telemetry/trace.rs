//! One call is one trace: from the gateway through every service to each round trip to Redis and each
//! read of a database, including the fan-out job.

use microblog_testkit::{PATIENCE, eventually};

use crate::{
    client::Client,
    collector::{Collector, Seen},
    launcher::Launcher,
    process::System,
    tree::{CLIENT, CONSUMER, PRODUCER, SERVER, Tree},
};

const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const CALLER: u64 = 0x00f0_67aa_0ba9_02b7;
// One worker of each process.
const CALLS: [&str; 5] =
    ["/Publish", "/Authenticate", "/CreatePost", "/Deliver", "/StreamFollowers"];
const TEXT: &str = "this text must not be in a trace";

/// Publishes a post of an account with a follower as part of the trace. Returns the spans when the
/// job is done.
async fn published(collector: &Collector, gateway: &str) -> Tree {
    let (ann, bob) = (Client::join(gateway, "ann").await, Client::join(gateway, "bob").await);
    bob.follow("ann").await;
    assert_eq!(bob.home().await, 0, "the first read creates bob's home timeline");
    ann.publish(TEXT, Some(&format!("00-{TRACE:032x}-{CALLER:016x}-01"))).await;
    eventually("the post is in bob's home timeline", PATIENCE, async || bob.home().await == 1)
        .await;
    // The job's span ends after its children.
    let is_done = |seen: &Seen| seen.span.kind == CONSUMER;
    let all_came = async || collector.trace(TRACE).iter().any(is_done);
    eventually("the job's span is exported", PATIENCE, all_came).await;
    // The other processes export separately, and a call's span ends after its children.
    let came =
        async |call: &str| collector.trace(TRACE).iter().any(|seen| seen.span.name.ends_with(call));
    for call in CALLS {
        eventually(call, PATIENCE, async || came(call).await).await;
    }
    let has_no_orphans = async || Tree(collector.trace(TRACE)).orphans(&caller()).is_empty();
    eventually("all spans have parents", PATIENCE, has_no_orphans).await;
    Tree(collector.trace(TRACE))
}

fn caller() -> [u8; 8] {
    CALLER.to_be_bytes()
}

/// Checks the parents of the spans. `name` returns the service name of a process.
fn check(tree: &Tree, name: impl Fn(&'static str) -> &'static str) {
    let find = |parent: &[u8], service, kind, span: &str| {
        let found = tree.below(parent, name(service), kind, span);
        found
            .unwrap_or_else(|| panic!("no span {span} of {service} below its parent:\n{tree}"))
            .clone()
    };
    let call = |parent: &[u8], service, method: &str| {
        find(parent, service, SERVER, &format!("microblog.{service}.v1.{method}"))
    };
    let publish = call(&caller(), "gateway", "GatewayService/Publish");
    assert_eq!(publish.attribute("rpc.response.status_code").as_deref(), Some("OK"), "{tree}");
    call(&publish.span.span_id, "user", "UserService/Authenticate");
    let create = call(&publish.span.span_id, "post", "PostService/CreatePost");
    assert!(!tree.database(&create).is_empty(), "{tree}");
    let deliver = call(&create.span.span_id, "timeline", "TimelineService/Deliver");
    assert!(!tree.redis(&deliver).is_empty(), "{tree}");

    let send = find(&deliver.span.span_id, "timeline", PRODUCER, "send fanout");
    assert_eq!(names(tree, &send), ["XADD"], "{tree}");
    let process = find(&send.span.span_id, "timeline", CONSUMER, "process fanout");
    let [link] = &process.span.links[..] else { panic!("one link: {process:?}") };
    assert_eq!(link.span_id, send.span.span_id);
    assert_eq!(link.trace_id, TRACE.to_be_bytes());
    assert_eq!(process.attribute("messaging.destination.name").as_deref(), Some("fanout"));
    assert!(names(tree, &process).contains(&"FCALL tl_advance".to_owned()), "{tree}");
    assert!(tree.redis(&process).len() >= 2, "the push, and the end of the step: {tree}");

    let followers = call(&process.span.span_id, "relation", "RelationService/StreamFollowers");
    let page = tree.database(&followers);
    let [page] = page[..] else { panic!("one read of a database: {tree}") };
    assert_eq!((page.span.kind, &*page.span.name), (CLIENT, "SELECT edges"));
}

fn names(tree: &Tree, parent: &Seen) -> Vec<String> {
    tree.redis(parent).into_iter().map(|seen| seen.span.name.clone()).collect()
}

/// Checks that spans contain the names of commands, and no keys or values.
fn check_redis(tree: &Tree, port: u16) {
    let port = Some(port.to_string());
    let is_redis = |seen: &&Seen| seen.attribute("db.system.name").as_deref() == Some("redis");
    let trips = tree.0.iter().filter(is_redis);
    for trip in trips {
        let attribute = |key| trip.attribute(key);
        assert_eq!(attribute("server.address").as_deref(), Some("127.0.0.1"), "{trip:?}");
        assert_eq!(attribute("server.port"), port, "{trip:?}");
        assert_eq!(attribute("db.namespace").as_deref(), Some("0"), "{trip:?}");
        let operation = attribute("db.operation.name").unwrap();
        assert!(trip.span.name.starts_with(&operation), "{trip:?}");
        let is_batch = operation.starts_with("PIPELINE");
        assert_eq!(attribute("db.operation.batch.size").is_some(), is_batch, "{trip:?}");
        let calls = operation.ends_with("FCALL") && trip.span.name != operation;
        assert_eq!(attribute("db.stored_procedure.name").is_some(), calls, "{trip:?}");
    }
    let all = format!("{:?}", tree.0);
    for private in [TEXT, "tl:{", "pst:{", "rel:{", "usr:{", "example.org", "ann\"", "bob\""] {
        assert!(!all.contains(private), "{private} shows:\n{all}");
    }
}

#[tokio::test]
async fn publishing_is_one_trace_across_processes() {
    let collector = Collector::start();
    let system = System::start(&collector).await;
    let tree = published(&collector, &system.url("gateway")).await;
    check(&tree, |service| service);
    let port = system.redis.url("user").rsplit_once(':').unwrap().1.parse().unwrap();
    check_redis(&tree, port);
}

#[tokio::test]
async fn publishing_is_one_trace_within_one_process() {
    let collector = Collector::start();
    let dir = tempfile::tempdir().unwrap();
    let url = collector.url();
    let launcher = Launcher::start(
        &dir.path().join("data"),
        &["--otlp-endpoint", &url, "--trace-sampling", "0"],
    );
    let tree = published(&collector, &launcher.url(0)).await;
    check(&tree, |_| "microblog");
    check_redis(&tree, launcher.port_base + 9);
}
