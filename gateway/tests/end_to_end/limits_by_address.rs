//! Rate limits for each address, and the address behind proxies.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    time::Duration,
};

use microblog_chassis::{Worker, serve};
use microblog_proto::gateway::{self, gateway_service_client::GatewayServiceClient};
use microblog_testkit::{Process, free_port};
use tokio::{net::TcpSocket, task::spawn_blocking};
use tonic::{
    Request,
    transport::{Channel, Endpoint},
};

use crate::{
    limits::{wait, without_jobs},
    system::{System, configured, gateway_service},
};

type Gateway = GatewayServiceClient<Channel>;

/// Serves another gateway for a system's services, with rate limits, on the network, for the
/// lifetime of the runtime. Returns its address.
fn served(system: &System, flags: &[&str]) -> String {
    let config = configured(flags);
    let mut service = gateway_service(&config, system.peers.clone(), Worker::ONLY);
    // Their calls would be recorded, too.
    service.background.clear();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        serve(listener, service, &config.chassis, std::future::pending()).await.unwrap();
    });
    address
}

/// Returns a client with a separate connection from this local address.
fn caller(gateway: &str, from: &str) -> Gateway {
    let endpoint = Endpoint::from_shared(gateway.to_owned()).unwrap();
    GatewayServiceClient::new(endpoint.local_address(Some(from.parse().unwrap())).connect_lazy())
}

/// A log-in that fails at once, because its password is empty.
async fn attempt(gateway: &mut Gateway, forwarded_for: Option<&str>) -> Option<Duration> {
    let mut request = Request::new(gateway::LoginRequest::default());
    if let Some(addresses) = forwarded_for {
        request.metadata_mut().insert("x-forwarded-for", addresses.parse().unwrap());
    }
    wait(gateway.login(request).await)
}

#[tokio::test]
async fn each_address_has_its_own_limit_and_rejections_cost_no_call() {
    let system = without_jobs().await;
    let flags = [
        "--logins-per-minute=2",
        "--registrations-per-hour=1",
        "--availability-checks-per-minute=1",
    ];
    let gateway = served(&system, &flags);
    let [mut one, mut other] = ["127.0.0.2", "127.0.0.3"].map(|from| caller(&gateway, from));
    for caller in [&mut one, &mut other] {
        system.recorder.calls();
        for _ in 0..2 {
            assert_eq!(attempt(caller, None).await, None);
        }
        assert_eq!(system.recorder.calls(), ["user.Login"; 2]);
        assert!(attempt(caller, None).await.is_some_and(|wait| wait <= Duration::from_secs(30)));
        let mut register =
            async || wait(caller.register(gateway::RegisterRequest::default()).await);
        assert_eq!(register().await, None);
        assert_eq!(system.recorder.calls(), ["user.Register"]);
        assert!(register().await.is_some_and(|wait| wait > Duration::from_secs(3_000)));
        assert_eq!(system.recorder.calls(), [""; 0]);
        let mut check = async || {
            let request = gateway::CheckAvailabilityRequest::default();
            wait(caller.check_availability(request).await)
        };
        assert_eq!(check().await, None);
        assert_eq!(system.recorder.calls(), ["user.CheckAvailability"]);
        assert!(check().await.is_some_and(|wait| wait <= Duration::from_secs(60)));
        assert_eq!(system.recorder.calls(), [""; 0]);
    }
    // Another connection from the same address.
    assert!(attempt(&mut caller(&gateway, "127.0.0.2"), None).await.is_some());
}

#[tokio::test]
async fn one_address_cannot_exhaust_the_limit_of_all_addresses() {
    let system = without_jobs().await;
    let flags = [
        "--registrations-per-hour=2",
        "--registrations-per-hour-total=3",
        "--availability-checks-per-minute=2",
        "--availability-checks-per-minute-total=3",
    ];
    let gateway = served(&system, &flags);
    let callers = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(|from| caller(&gateway, from));
    let (mut registers, mut checks) = (Vec::new(), Vec::new());
    for mut caller in callers {
        for _ in 0..4 {
            let register = caller.register(gateway::RegisterRequest::default()).await;
            registers.push(wait(register));
            let check = caller.check_availability(gateway::CheckAvailabilityRequest::default());
            checks.push(wait(check.await));
        }
    }
    for (answers, period) in [(registers, 3_600), (checks, 60)] {
        let passed: Vec<_> = answers.iter().map(Option::is_none).collect();
        // Rejections of the first address do not count for the second.
        let expected = [[true, true, false, false], [true, false, false, false], [false; 4]];
        assert_eq!(passed, expected.concat());
        let waits = answers.into_iter().flatten();
        assert!({ waits }.all(|wait| wait <= Duration::from_secs(period)));
    }
}

#[tokio::test]
async fn forwarded_addresses_are_accepted_from_trusted_proxies_only() {
    let system = without_jobs().await;
    let flags = ["--logins-per-minute=1", "--trusted-proxies=127.0.0.2,10.0.0.0/8"];
    let gateway = served(&system, &flags);
    let mut proxy = caller(&gateway, "127.0.0.2");
    for forwarded in ["198.51.100.1", "1.1.1.1, 198.51.100.2, 10.0.0.9", "2001:db8::1"] {
        assert_eq!(attempt(&mut proxy, Some(forwarded)).await, None, "{forwarded}");
        assert!(attempt(&mut proxy, Some(forwarded)).await.is_some(), "{forwarded}");
    }
    // Entries that the client sent to the proxy are ignored, as are other addresses of its network.
    for forwarded in ["7.7.7.7, 198.51.100.1", "198.51.100.2", "2001:db8::2"] {
        assert!(attempt(&mut proxy, Some(forwarded)).await.is_some(), "{forwarded}");
    }
    let mut untrusted = caller(&gateway, "127.0.0.3");
    assert_eq!(attempt(&mut untrusted, Some("198.51.100.8")).await, None);
    assert!(attempt(&mut untrusted, Some("198.51.100.9")).await.is_some());
    // The named address is not charged.
    assert_eq!(attempt(&mut proxy, Some("198.51.100.9")).await, None);

    // By default, no proxy is trusted.
    let gateway = served(&system, &flags[..1]);
    let mut proxy = caller(&gateway, "127.0.0.2");
    assert_eq!(attempt(&mut proxy, Some("198.51.100.1")).await, None);
    assert!(attempt(&mut proxy, Some("198.51.100.2")).await.is_some());
}

/// Logs in through a balancer of layer 4 at 127.0.0.2. The client sends another address itself. Returns
/// the answer.
async fn log_in_through_a_balancer(gateway: &str, client: &str) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let address = gateway.strip_prefix("http://").unwrap().parse().unwrap();
    let mut connection = socket.connect(address).await.unwrap().into_std().unwrap();
    connection.set_nonblocking(false).unwrap();
    let sent = format!(
        "PROXY TCP4 {client} 127.0.0.2 35646 443\r\n\
         POST /microblog.gateway.v1.GatewayService/Login HTTP/1.1\r\nhost: a\r\n\
         content-type: application/json\r\nx-forwarded-for: 203.0.113.7\r\n\
         content-length: 2\r\nconnection: close\r\n\r\n{{}}"
    );
    let exchange = move || {
        connection.write_all(sent.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    };
    spawn_blocking(exchange).await.unwrap()
}

#[tokio::test]
async fn a_balancer_names_its_clients_by_the_proxy_protocol() {
    let system = without_jobs().await;
    let flags = ["--logins-per-minute=1", "--trusted-proxies=127.0.0.2", "--proxy-protocol"];
    let gateway = served(&system, &flags);
    for client in ["198.51.100.1", "198.51.100.2"] {
        for is_limited in [false, true] {
            let answer = log_in_through_a_balancer(&gateway, client).await;
            assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
            assert_eq!(answer.contains("RATE_LIMITED"), is_limited, "{answer}");
        }
    }
}

#[tokio::test]
async fn a_limit_of_0_disables_an_address_limit() {
    let system = without_jobs().await;
    let mut caller = caller(&served(&system, &[]), "127.0.0.2");
    for _ in 0..500 {
        assert_eq!(attempt(&mut caller, None).await, None);
    }
}

#[tokio::test]
async fn threads_of_a_process_share_the_limits_of_an_address() {
    let unavailable_peer = format!("http://127.0.0.1:{}", free_port());
    let program = env!("CARGO_BIN_EXE_microblog-gateway");
    let flags = ["--threads=2", "--registrations-per-hour=5", "--user-url", &unavailable_peer];
    let process = Process::start(program, &flags).await;
    let mut rejected = 0;
    for _ in 0..24 {
        // The kernel selects the thread of a connection by its port.
        let mut caller = caller(&process.address(), "127.0.0.2");
        let answer = caller.register(gateway::RegisterRequest::default()).await;
        rejected += usize::from(wait(answer).is_some());
    }
    assert_eq!(rejected, 19);
}
