//! Connection age, and the address of a connection behind a balancer.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use microblog_chassis::{Config, Connection, ProxyProtocol, Service, Web};
use microblog_proto::user::GetUserByNameRequest;
use microblog_testkit::PATIENCE;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
    time::timeout,
};
use tonic::Request;

use crate::support::{Server, Stub, config, eventually, request};

#[tokio::test]
async fn max_connection_age_closes_old_connections() {
    let callers = Arc::new(Mutex::new(HashSet::new()));
    let seen = callers.clone();
    let stub = Stub::new().get(move |request: Request<GetUserByNameRequest>| {
        seen.lock()
            .unwrap()
            .insert(request.extensions().get::<Connection>().unwrap().remote_addr.unwrap());
        async { Ok(String::new()) }
    });
    let config = Config { max_connection_age_s: 1, ..config() };
    let mut server = Server::start(stub.service(), config);
    let mut client = server.client();
    eventually("three connections, one after the other", async || {
        // tonic's channel may lose a call when its connection closes; peers do not (`peers.rs`).
        let _ = client.get_user_by_name(request(None)).await;
        callers.lock().unwrap().len() >= 3
    })
    .await;
    server.stop();
    drop(client);
    server.ended().await;
}

/// Sends bytes and a call from a local address. Returns all that is answered: the address that the
/// server takes for the client's.
async fn answer(server: &Server, from: &str, header: &[u8]) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut connection = socket.connect(server.address).await.unwrap();
    let call = "POST /microblog.user.v1.UserService/GetUserByName HTTP/1.1\r\nhost: a\r\n\
                content-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    connection.write_all(&[header, call.as_bytes()].concat()).await.unwrap();
    let mut answer = Vec::new();
    // A connection that is closed with unread bytes may be reset.
    let _ = timeout(PATIENCE, connection.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn the_proxy_protocol_counts_from_balancers_only() {
    let stub = Stub::new().get(|request: Request<GetUserByNameRequest>| async move {
        let from = request.extensions().get::<Connection>().unwrap().remote_addr.unwrap();
        Ok(from.ip().to_string())
    });
    let proxy_protocol = ProxyProtocol::new(|peer| peer.to_string() == "127.0.0.2");
    let web = Web { proxy_protocol: Some(proxy_protocol), ..Web::default() };
    let server = Server::start(Service { web: Some(web), ..stub.service() }, config());
    let version_1 = b"PROXY TCP4 198.51.100.1 203.0.113.1 35646 443\r\n";
    let version_2 =
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc6\x33\x64\x01\xcb\0\x71\x01\x8b\x3e\x01\xbb";
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    for (from, header, expected) in [
        ("127.0.0.2", &version_1[..], "198.51.100.1"),
        ("127.0.0.2", version_2, "198.51.100.1"),
        ("127.0.0.2", local, "127.0.0.2"),
        ("127.0.0.2", b"PROXY UNKNOWN\r\n", "127.0.0.2"),
        ("127.0.0.3", b"", "127.0.0.3"),
    ] {
        let answer = answer(&server, from, header).await;
        assert!(answer.contains(&format!("{{\"name\":\"{expected}\"}}")), "{answer}");
    }
    assert_eq!(answer(&server, "127.0.0.2", b"").await, "");
    let from_elsewhere = answer(&server, "127.0.0.3", version_1).await;
    assert!(from_elsewhere.starts_with("HTTP/1.1 400 "), "{from_elsewhere}");
}
