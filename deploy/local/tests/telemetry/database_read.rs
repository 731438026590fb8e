//! Trace of a call that reads a post which is not cached, from the gateway to the database.

use std::process::Command;

use microblog_testkit::{PATIENCE, eventually, redis};

use crate::{
    client::Client,
    collector::Collector,
    launcher::{Launcher, PROGRAM},
    tree::{CLIENT, SERVER, Tree},
};

const TRACE: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;
const CALLER: u64 = 0xb7ad_6b71_6920_3331;

#[tokio::test]
async fn reading_a_post_that_is_not_cached_is_one_trace_including_the_database() {
    let collector = Collector::start();
    let (dir, url) = (tempfile::tempdir().unwrap(), collector.url());
    let mut command = Command::new(PROGRAM);
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50").env("OTEL_METRICS_EXPORTER", "none");
    let flags = ["--otlp-endpoint", &url, "--trace-sampling", "0"];
    let launcher = Launcher::start_by(command, &dir.path().join("data"), &flags);
    let ann = Client::join(&launcher.url(0), "ann").await;
    let post = ann.publish("this text must not be in a trace", None).await;
    let traceparent = format!("00-{TRACE:032x}-{CALLER:016x}-01");
    let tree = || Tree(collector.trace(TRACE));
    eventually("the post is read from the database", PATIENCE, async || {
        let () = redis::cmd("FLUSHALL").query(&mut launcher.admin()).unwrap();
        ann.view(post, &traceparent).await;
        !tree().database_of_post().is_empty()
    })
    .await;
    let caller = CALLER.to_be_bytes();
    eventually("all spans have parents", PATIENCE, async || tree().orphans(&caller).is_empty())
        .await;

    let tree = tree();
    let read = tree.database_of_post()[0];
    assert_eq!((read.span.kind, &*read.span.name), (CLIENT, "SELECT posts"), "{tree}");
    assert_eq!(read.attribute("db.operation.name").as_deref(), Some("SELECT"));
    let of_post = tree.parent(read).unwrap();
    assert_eq!(of_post.span.kind, SERVER, "{tree}");
    assert!(of_post.span.name.starts_with("microblog.post.v1.PostService/"), "{tree}");
    let of_gateway = tree.parent(of_post).unwrap();
    assert_eq!(of_gateway.span.name, "microblog.gateway.v1.GatewayService/ViewPost", "{tree}");
    assert_eq!(of_gateway.span.parent_span_id, caller, "{tree}");
    assert!(!format!("{:?}", tree.0).contains("this text must not"), "{tree}");
}
