//! Metrics of failed handshakes.

use std::net::SocketAddr;

use microblog_chassis::{Config, Peer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    fixture::Fixture,
    support::{self, eventually, get, process::Process},
};

async fn metrics(address: SocketAddr) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    connection.write_all(request).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_handshakes_are_counted_by_reason() {
    let fixture = Fixture::new();
    let flags = format!("{} --metrics-listen 127.0.0.1:0", fixture.flags());
    let process = Process::start("127.0.0.1:0", &flags);
    let line = process.wait(|line| line["message"] == "serving metrics");
    let metrics_address = line["address"].as_str().unwrap().parse().unwrap();
    let address = process.address();
    let count_ends_with = async |reason: &str, count: &str| {
        let metrics = metrics(metrics_address).await;
        let series = metrics.lines().find(|line| {
            line.starts_with("microblog_tls_handshake_failures_total{")
                && line.contains(&format!("reason=\"{reason}\""))
        });
        series.is_some_and(|series| series.ends_with(count))
    };
    assert!(
        count_ends_with("plaintext", " 0").await && count_ends_with("no certificate", " 0").await
    );
    let no_certificate = Config { peer_cert_file: None, peer_key_file: None, ..fixture.caller() };
    let callers = [("http", support::config()), ("https", no_certificate)];
    for (scheme, config) in callers {
        let peer = Peer::remote(&format!("{scheme}://{address}"), &config).unwrap();
        get(peer, "").await.unwrap_err();
    }
    for reason in ["plaintext", "no certificate"] {
        // The client tries more than once.
        eventually("the failure is counted", async || !count_ends_with(reason, " 0").await).await;
    }
    assert!(count_ends_with("certificate", " 0").await);
}
