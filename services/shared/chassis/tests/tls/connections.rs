//! Connections over TLS: clients that do not answer in a drain, and balancers that name the client.

use std::{sync::Arc, time::Duration};

use microblog_chassis::{Connection, ProxyProtocol, Service, Web};
use microblog_files::{File, Identity, client_config};
use microblog_proto::user::GetUserByNameRequest;
use microblog_testkit::PATIENCE;
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    fixture::{Fixture, HOST},
    support::{Server, Stub, http2::SilentClient},
};

const GET: &str = "/microblog.user.v1.UserService/GetUserByName";
/// The largest window of HTTP/2.
const WINDOW: u32 = (1 << 31) - 1;

async fn connect(fixture: &Fixture, server: &Server) -> TlsStream<TcpStream> {
    connect_after(fixture, server, b"", b"h2").await
}

/// Connects with a handshake that these bytes precede.
async fn connect_after(
    fixture: &Fixture,
    server: &Server,
    header: &[u8],
    protocol: &[u8],
) -> TlsStream<TcpStream> {
    let file = |name| fixture.files.path(name);
    let authorities = File::read(&file("ca.crt")).unwrap();
    let identity = Identity::read(&file("caller.crt"), &file("caller.key")).unwrap();
    let authorities = authorities.authorities().unwrap();
    let mut config = client_config(authorities, Some(&identity)).unwrap();
    config.alpn_protocols = vec![protocol.to_vec()];
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(header).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(HOST.try_into().unwrap(), stream).await.unwrap()
}

#[tokio::test]
async fn clients_that_do_not_answer_delay_a_drain_only_by_their_calls() {
    let fixture = Fixture::new();
    let (gate, started) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (opens, starts) = (gate.clone(), started.clone());
    let stub = Stub::new().get(move |request| {
        let (opens, starts) = (opens.clone(), starts.clone());
        async move {
            starts.add_permits(1);
            opens.acquire().await.unwrap().forget();
            Ok(request.into_inner().name)
        }
    });
    let mut server = Server::start(stub.service(), fixture.server());
    let _idle = SilentClient::begin(connect(&fixture, &server).await, WINDOW).await;
    let mut client = SilentClient::begin(connect(&fixture, &server).await, WINDOW).await;
    client.call(GET, &GetUserByNameRequest { name: "ada".to_owned() }.encode_to_vec()).await;
    started.acquire().await.unwrap().forget();
    server.stop();
    // Longer than a connection without a call would last.
    sleep(Duration::from_secs(4)).await;
    gate.add_permits(1);
    timeout(PATIENCE, server.ended()).await.expect("the drain ends");
    let received = client.received(PATIENCE).await;
    assert!(received.windows(3).any(|part| part == b"ada"), "{received:?}");
}

#[tokio::test]
async fn the_header_of_a_balancer_precedes_the_handshake() {
    let fixture = Fixture::new();
    let stub = Stub::new().get(|request: tonic::Request<GetUserByNameRequest>| async move {
        let from = request.extensions().get::<Connection>().unwrap().remote_addr.unwrap();
        Ok(from.to_string())
    });
    let web = Web { proxy_protocol: Some(ProxyProtocol::new(|_| true)), ..Web::default() };
    let service = Service { web: Some(web), ..stub.service() };
    let server = Server::start(service, fixture.server());
    let header = b"PROXY TCP4 198.51.100.1 203.0.113.1 35646 443\r\n";
    let mut connection = connect_after(&fixture, &server, header, b"http/1.1").await;
    let call = format!(
        "POST {GET} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
         content-length: 2\r\nconnection: close\r\n\r\n{{}}"
    );
    connection.write_all(call.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _closed = timeout(PATIENCE, connection.read_to_end(&mut answer)).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains("198.51.100.1:35646"), "{answer}");
}
