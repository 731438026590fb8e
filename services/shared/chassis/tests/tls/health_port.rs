//! The health check port without TLS.

use std::net::SocketAddr;

use http::{Request, StatusCode};
use microblog_chassis::Peer;
use microblog_testkit::{PATIENCE, http};
use nix::sys::signal::Signal;
use tokio::net::TcpStream;
use tonic::{Code, transport::Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    fixture::Fixture,
    support::{NAME, eventually, get, process::Process},
};

async fn health(address: SocketAddr, service: &str) -> Result<ServingStatus, Code> {
    // A new connection each time, as probes do.
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.timeout(PATIENCE).connect_lazy();
    let request = HealthCheckRequest { service: service.to_owned() };
    let response = HealthClient::new(channel).check(request).await;
    response.map(|response| response.get_ref().status()).map_err(|status| status.code())
}

/// Returns the status code of a path, over HTTP/1.1.
async fn by_path(address: SocketAddr, path: &str) -> StatusCode {
    http(address, Request::get(path).body("").unwrap()).await.status()
}

#[tokio::test(flavor = "multi_thread")]
async fn health_port_answers_without_tls_until_the_drain_ends() {
    let fixture = Fixture::new();
    let flags = format!("{} --health-listen 127.0.0.1:0 --drain-timeout-ms 3000", fixture.flags());
    let mut process = Process::start("127.0.0.1:0", &flags);
    let (mut address, mut probes) = (None, None);
    process.wait(|line| {
        let found = || line["address"].as_str().unwrap().parse::<SocketAddr>().unwrap();
        match line["message"].as_str() {
            Some("listening") => address = Some(found()),
            Some("serving health checks") => probes = Some(found()),
            _ => {}
        }
        address.is_some() && probes.is_some()
    });
    let (address, probes) = (address.unwrap(), probes.unwrap());
    eventually("it is serving", async || health(probes, NAME).await == Ok(ServingStatus::Serving))
        .await;
    assert_eq!(health(probes, "").await, Ok(ServingStatus::Serving));
    assert_eq!(health(probes, "liveness").await, Ok(ServingStatus::Serving));
    assert_eq!(health(probes, "no.such.Service").await, Err(Code::NotFound));
    assert!(health(address, "").await.is_err(), "the service's own port speaks TLS");
    assert_eq!(by_path(probes, "/healthz").await, StatusCode::OK);
    // Health is at no other path: a prober that has a wrong one must not take its answer for health.
    assert_eq!(by_path(probes, "/").await, StatusCode::NOT_FOUND);
    let plain = Peer::remote(&format!("http://{probes}"), &crate::support::config()).unwrap();
    let status = get(plain, "").await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "health and nothing else");

    let peer = Peer::remote(&format!("https://{address}"), &fixture.caller()).unwrap();
    let call = tokio::spawn(get(peer, "stuck"));
    process.wait(|line| line["started"] == "stuck");
    process.signal(Signal::SIGTERM);
    eventually("the service's port is closed", async || TcpStream::connect(address).await.is_err())
        .await;
    for service in ["", NAME] {
        assert_eq!(health(probes, service).await, Ok(ServingStatus::NotServing));
    }
    assert_eq!(by_path(probes, "/healthz").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(health(probes, "liveness").await, Ok(ServingStatus::Serving));
    process.wait(|line| line["message"] == "drain timed out, aborting the rest");
    process.ended();
    call.await.unwrap().unwrap_err();
}
