//! TLS handshakes that succeed, and the drain.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt as _;
use microblog_chassis::{Config, Connection, Peer, Service, Web};
use microblog_proto::user::{
    GetUserByNameRequest, VerifyRequest, VerifyResponse, user_service_client::UserServiceClient,
};
use microblog_testkit::PATIENCE;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
        version::{TLS12, TLS13},
    },
};
use tonic::Request;

use crate::{
    fixture::{Fixture, HOST, peer},
    support::{Server, Stub, config, get},
};

#[tokio::test]
async fn calls_and_streams_work_and_the_remote_address_is_known() {
    let fixture = Fixture::new();
    let seen = Arc::new(Mutex::new(None));
    let callers = seen.clone();
    let stub = Stub::new().get(move |request: Request<GetUserByNameRequest>| {
        *callers.lock().unwrap() = request.extensions().get::<Connection>().cloned();
        async move { Ok(request.into_inner().name) }
    });
    let stub = stub.verify(|| futures::stream::iter([Ok(VerifyResponse::default())]).boxed());
    let server = Server::start(stub.service(), fixture.server());
    let peer = fixture.peer(&server);
    assert_eq!(get(peer.clone(), "alice").await.unwrap(), "alice");
    let connection = seen.lock().unwrap().take().expect("a connection");
    assert_eq!(*connection.certificate_names, ["caller.test".to_owned()]);
    let caller = connection.remote_addr.expect("an address");
    assert_eq!(caller.ip().to_string(), HOST);
    assert_ne!(caller.port(), server.address.port());
    let answers = UserServiceClient::new(peer).verify(VerifyRequest::default()).await.unwrap();
    assert_eq!(answers.into_inner().count().await, 1);
}

#[tokio::test]
async fn a_server_for_browsers_has_http1_too() {
    let fixture = Fixture::new();
    let open = Config { tls_client_ca_file: None, ..fixture.server() };
    let web = Some(Web::default());
    let server = Server::start(Service { web, ..Stub::new().service() }, open);
    let mut stream = handshake(&fixture, &server, &TLS13, b"http/1.1").await.unwrap();
    let call = "POST /microblog.user.v1.UserService/GetUserByName HTTP/1.1\r\nhost: a\r\n\
                content-type: application/json\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(call.as_bytes()).await.unwrap();
    let mut response = [0; 15];
    timeout(PATIENCE, stream.read_exact(&mut response)).await.unwrap().unwrap();
    assert_eq!(&response, b"HTTP/1.1 200 OK");
    let stream = handshake(&fixture, &server, &TLS13, b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(get(fixture.peer(&server), "alice").await.unwrap(), "alice");
}

#[tokio::test]
async fn client_certificate_is_optional_without_a_client_ca() {
    let fixture = Fixture::new();
    let open = Config { tls_client_ca_file: None, ..fixture.server() };
    let server = Server::start(Stub::new().service(), open);
    let no_certificate = Config { peer_cert_file: None, peer_key_file: None, ..fixture.caller() };
    assert_eq!(get(peer(&server, "https", &no_certificate), "alice").await.unwrap(), "alice");
}

#[tokio::test]
async fn certificate_is_verified_for_the_host_name() {
    let fixture = Fixture::new();
    fixture.issue("server", &fixture.authority.issue(&["localhost"]));
    let server = fixture.start();
    let url = format!("https://localhost:{}", server.address.port());
    let named = Peer::remote(&url, &fixture.caller()).unwrap();
    assert_eq!(get(named, "alice").await.unwrap(), "alice");
    get(fixture.peer(&server), "alice").await.unwrap_err();
}

#[tokio::test]
async fn drain_waits_for_calls_but_not_for_silent_connections() {
    let fixture = Fixture::new();
    let (start, started) = oneshot::channel();
    let (end, ended) = oneshot::channel::<()>();
    let steps = Mutex::new(Some((start, ended)));
    let stub = Stub::new().get(move |_| {
        let (start, ended) = steps.lock().unwrap().take().expect("one call");
        async move {
            start.send(()).unwrap();
            ended.await.unwrap();
            Ok("done".to_owned())
        }
    });
    let mut server = Server::start(stub.service(), fixture.server());
    let call = tokio::spawn(get(fixture.peer(&server), ""));
    started.await.unwrap();
    let _silent = TcpStream::connect(server.address).await.unwrap();
    server.stop();
    let still = timeout(Duration::from_millis(200), server.ended()).await;
    assert!(still.is_err(), "a call is in flight");
    end.send(()).unwrap();
    assert_eq!(call.await.unwrap().unwrap(), "done");
    timeout(PATIENCE, server.ended()).await.expect("the drain ends");
}

#[tokio::test]
async fn stalled_handshakes_block_no_other_connection() {
    let fixture = Fixture::new();
    let server = fixture.start();
    let mut stuck = Vec::new();
    for _ in 0..20 {
        let mut caller = TcpStream::connect(server.address).await.unwrap();
        // The first bytes of a handshake record of 512 bytes.
        caller.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        stuck.push(caller);
    }
    let answer = timeout(PATIENCE, get(fixture.peer(&server), "alice")).await;
    assert_eq!(answer.expect("not blocked").unwrap(), "alice");
    let mut caller = stuck.pop().unwrap();
    let end = timeout(PATIENCE, caller.read(&mut [0; 16])).await;
    // Closed, with or without an alert.
    end.expect("closed").ok();
}

#[tokio::test]
async fn silence_after_the_handshake_does_not_delay_the_drain() {
    let fixture = Fixture::new();
    let open = Config { tls_client_ca_file: None, ..fixture.server() };
    let mut server = Server::start(Stub::new().service(), open);
    let mut silent = Vec::new();
    for version in [&TLS12, &TLS13] {
        silent.push(handshake(&fixture, &server, version, b"h2").await.unwrap());
        // After it, the server has processed the previous connection.
        handshake(&fixture, &server, version, b"http/1.1").await.unwrap_err();
    }
    server.stop();
    // Below the five seconds that a connection may be silent.
    timeout(Duration::from_millis(4_500), server.ended()).await.expect("the drain ends");
    drop(silent);
}

/// Performs a handshake as another client.
async fn handshake(
    fixture: &Fixture,
    server: &Server,
    version: &'static SupportedProtocolVersion,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let authority = fixture.authority.pem();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
    let builder = builder.with_protocol_versions(&[version]).unwrap();
    let mut client = builder.with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    TlsConnector::from(Arc::new(client)).connect(name, stream).await
}

#[tokio::test]
async fn tls_1_2_and_1_3_with_alpn_h2_only() {
    let fixture = Fixture::new();
    let open = Config { tls_client_ca_file: None, ..fixture.server() };
    let server = Server::start(Stub::new().service(), open);
    for (version, spoken) in
        [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)]
    {
        let stream = handshake(&fixture, &server, version, b"h2").await.unwrap();
        let session = stream.get_ref().1;
        assert_eq!(session.protocol_version(), Some(spoken));
        assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
        let rejected = handshake(&fixture, &server, version, b"http/1.1").await.unwrap_err();
        assert!(rejected.to_string().contains("NoApplicationProtocol"), "{rejected}");
    }
    let plain = Server::start(Stub::new().service(), config());
    assert_eq!(get(plain.peer(), "alice").await.unwrap(), "alice");
}
