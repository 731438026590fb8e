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
    let scraped = line["address"].as_str().unwrap().parse().unwrap();
    let address = process.address();
    let says = async |why: &str, count: &str| {
        let metrics = metrics(scraped).await;
        let series = metrics.lines().find(|line| {
            line.starts_with("microblog_tls_refused_total{")
                && line.contains(&format!("why=\"{why}\""))
        });
        series.is_some_and(|series| series.ends_with(count))
    };
    assert!(says("plaintext", " 0").await && says("no certificate", " 0").await);
    let nameless = Config { peer_cert_file: None, peer_key_file: None, ..fixture.caller() };
    let callers = [("http", support::config()), ("https", nameless)];
    for (scheme, config) in callers {
        let peer = Peer::remote(&format!("{scheme}://{address}"), &config).unwrap();
        get(peer, "").await.unwrap_err();
    }
    for why in ["plaintext", "no certificate"] {
        // The client tries more than once.
        eventually("it is counted", async || !says(why, " 0").await).await;
    }
    assert!(says("certificate", " 0").await);
}
