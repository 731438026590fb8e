//! The metrics of a whole system in one process, as Prometheus scrapes them.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use microblog_testkit::{PATIENCE, free_port};

use crate::{
    client::Client,
    launcher::{Launcher, eventually},
};

/// The series that operators need.
const SERIES: [&str; 29] = [
    r#"rpc_server_call_duration_seconds_count{rpc_method="microblog.gateway.v1.GatewayService/Publish",rpc_response_status_code="OK","#,
    r#"rpc_server_call_duration_seconds_count{rpc_method="microblog.post.v1.PostService/CreatePost",rpc_response_status_code="OK","#,
    r#"microblog_calls_active{kind="call"}"#,
    r#"microblog_calls_limit{kind="watch"}"#,
    r#"microblog_calls_rejected_total{kind="call"}"#,
    r#"microblog_serving{microblog_rpc_service="microblog.timeline.v1.TimelineService"} 1"#,
    r#"microblog_job_runs_total{microblog_job_name="verifying the cache",outcome="done"}"#,
    r#"db_client_operation_duration_seconds_bucket{db_namespace="0",db_operation_name="FCALL",db_system_name="redis",microblog_keyspace="post","#,
    r#"db_client_connection_count{db_client_connection_pool_name="post shared",db_client_connection_state="used"}"#,
    r#"db_client_connection_count{db_client_connection_pool_name="timeline exclusive",db_client_connection_state="used"}"#,
    r#"db_client_connection_create_time_seconds_count{db_client_connection_pool_name="user shared"}"#,
    r#"microblog_cache_reads_total{microblog_keyspace="post",result="#,
    r#"microblog_cache_values{microblog_keyspace="post"}"#,
    r#"microblog_cache_size_bytes{microblog_keyspace="post"}"#,
    r#"microblog_timeline_queue_depth"#,
    r#"microblog_timeline_queue_age_seconds"#,
    r#"microblog_timeline_step_duration_seconds_count{kind="push",outcome="done",repeated="false"}"#,
    r#"microblog_timeline_job_duration_seconds_count{kind="push"}"#,
    r#"microblog_post_undelivered"#,
    r#"microblog_post_undelivered_age_seconds"#,
    r#"microblog_post_deleting{kind="account"}"#,
    r#"microblog_item_reads_total{microblog_keyspace="post",result="#,
    r#"microblog_write_groups_total{microblog_keyspace="post"}"#,
    r#"db_client_connection_count{db_client_connection_pool_name="database writing",db_client_connection_state="idle"}"#,
    r#"microblog_item_reads_total{microblog_keyspace="relation",result="bypass"}"#,
    r#"microblog_item_reads_total{microblog_keyspace="user",result="hit"}"#,
    r#"microblog_write_groups_total{microblog_keyspace="relation"}"#,
    r#"microblog_write_calls_total{microblog_keyspace="relation"}"#,
    r#"target_info{"#,
];

#[test]
fn one_scrape_has_all_series() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let launcher = Launcher::start(&dir.path().join("data"), &["--metrics-listen", &address]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let gateway = launcher.url(0);
        let (ann, bob) = (Client::join(&gateway, "ann").await, Client::join(&gateway, "bob").await);
        bob.follow("ann").await;
        assert_eq!(bob.home().await, 0);
        ann.publish("hello", None).await;
        while bob.home().await == 0 {}
    });
    let mut metrics = String::new();
    eventually("all series exist", PATIENCE, || {
        metrics = scrape(&address);
        let missing: Vec<_> = SERIES.iter().filter(|series| !has(&metrics, series)).collect();
        if !missing.is_empty() {
            eprintln!("missing: {missing:#?}");
        }
        missing.is_empty()
    });
    assert!(!metrics.contains("example.org"), "{metrics}");
}

fn has(metrics: &str, series: &str) -> bool {
    metrics.lines().any(|line| line.starts_with(series))
}

fn scrape(address: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let (head, metrics) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    metrics.to_owned()
}
