//! A stub service with two methods, served on a free port, and helpers for calls.
#![allow(dead_code, reason = "no test file uses all of it")]

pub(crate) mod collector;
pub(crate) mod http2;
pub(crate) mod process;

use std::{
    convert::Infallible,
    future::Future,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use clap::Parser as _;
use futures::{
    FutureExt as _, StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use microblog_chassis::{Config, Peer, Service, serve};
use microblog_proto::user::{
    GetUserByNameRequest, GetUserByNameResponse, User, VerifyRequest, VerifyResponse,
    user_service_client::UserServiceClient,
};
use microblog_testkit::PATIENCE;
use socket2::{Domain, Socket, Type};
use tokio::{sync::oneshot, task::JoinHandle};
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    codec::CompressionEncoding,
    server::{Grpc, NamedService},
    service::Routes,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

pub(crate) const NAME: &str = "microblog.user.v1.UserService";

type Get = dyn Fn(Request<GetUserByNameRequest>) -> BoxFuture<'static, Result<String, Status>>
    + Send
    + Sync;
type Verify = dyn Fn() -> BoxStream<'static, Result<VerifyResponse, Status>> + Send + Sync;

/// Responds to `GetUserByName` with a text as the user's name, and to `Verify` with a stream.
#[derive(Clone)]
pub(crate) struct Stub {
    get: Arc<Get>,
    verify: Arc<Verify>,
    max_message_bytes: usize,
}

impl Stub {
    pub(crate) fn new() -> Self {
        Self {
            get: Arc::new(|request| async move { Ok(request.into_inner().name) }.boxed()),
            verify: Arc::new(|| stream::empty().boxed()),
            max_message_bytes: config().max_message_bytes,
        }
    }

    pub(crate) fn get<F, Fut>(self, get: F) -> Self
    where
        F: Fn(Request<GetUserByNameRequest>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, Status>> + Send + 'static,
    {
        Self { get: Arc::new(move |request| get(request).boxed()), ..self }
    }

    pub(crate) fn verify<F>(self, verify: F) -> Self
    where
        F: Fn() -> BoxStream<'static, Result<VerifyResponse, Status>> + Send + Sync + 'static,
    {
        Self { verify: Arc::new(verify), ..self }
    }

    /// Takes messages up to this size.
    pub(crate) fn max_message_bytes(self, max_message_bytes: usize) -> Self {
        Self { max_message_bytes, ..self }
    }

    pub(crate) fn service(self) -> Service {
        Service {
            name: NAME,
            routes: Routes::new(self),
            handler: None,
            web: None,
            ready: Arc::new(|| async { true }.boxed()),
            background: Vec::new(),
        }
    }
}

impl NamedService for Stub {
    const NAME: &'static str = NAME;
}

impl tower::Service<http::Request<Body>> for Stub {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let stub = self.clone();
        async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            Ok(match method.as_str() {
                "GetUserByName" => stub.handle_get(request).await,
                "Verify" => stub.handle_verify(request).await,
                _ => Status::unimplemented("").into_http(),
            })
        }
        .boxed()
    }
}

impl Stub {
    async fn handle_get(self, request: http::Request<Body>) -> http::Response<Body> {
        let handler = tower::service_fn(|request: Request<GetUserByNameRequest>| {
            let work = (self.get)(request);
            async move {
                let user = Some(User { name: work.await?, ..User::default() });
                Ok::<_, Status>(Response::new(GetUserByNameResponse { user }))
            }
            .boxed()
        });
        let codec = ProstCodec::<GetUserByNameResponse, GetUserByNameRequest>::default();
        let grpc = Grpc::new(codec);
        let mut grpc = grpc.apply_max_message_size_config(Some(self.max_message_bytes), None);
        grpc = grpc.accept_compressed(CompressionEncoding::Gzip);
        grpc.unary(handler, request).await
    }

    async fn handle_verify(self, request: http::Request<Body>) -> http::Response<Body> {
        let handler = tower::service_fn(|_: Request<VerifyRequest>| {
            let answer = Ok::<_, Status>(Response::new((self.verify)()));
            futures::future::ready(answer)
        });
        let codec = ProstCodec::<VerifyResponse, VerifyRequest>::default();
        Grpc::new(codec).server_streaming(handler, request).await
    }
}

/// The default flags.
pub(crate) fn config() -> Config {
    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        config: Config,
    }
    // The drain must outlast every wait for its end.
    Flags::parse_from(["test", "--drain-timeout-ms=600000"]).config
}

/// A port reserved for the test while no server listens on it.
pub(crate) struct Port(Socket);

impl Port {
    pub(crate) fn take() -> Self {
        Self(Self::bind(SocketAddr::from(([127, 0, 0, 1], 0))))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap().as_socket().unwrap()
    }

    pub(crate) fn listen(&self) -> TcpListener {
        let socket = Self::bind(self.address());
        socket.listen(128).unwrap();
        socket.into()
    }

    fn bind(address: SocketAddr) -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&address.into()).unwrap();
        socket
    }
}

/// A server on a free port.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) fn start(service: Service, config: Config) -> Self {
        // Another server may be started at its address later.
        let address = ("127.0.0.1", microblog_testkit::free_port());
        Self::start_on(TcpListener::bind(address).unwrap(), service, config)
    }

    pub(crate) fn start_on(listener: TcpListener, service: Service, config: Config) -> Self {
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            serve(listener, service, &config, stopped).await.unwrap();
        });
        Self { address, stop: Some(stop), task }
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    pub(crate) async fn ended(&mut self) {
        (&mut self.task).await.unwrap();
    }

    /// Returns a new connection.
    pub(crate) fn channel(&self) -> Channel {
        Endpoint::from_shared(self.url()).unwrap().connect_lazy()
    }

    pub(crate) fn client(&self) -> UserServiceClient<Channel> {
        UserServiceClient::new(self.channel()).max_decoding_message_size(usize::MAX)
    }

    /// Returns a connection whose client reads that many bytes of each response, and then stops.
    pub(crate) fn unread_channel(&self, bytes: u32) -> Channel {
        let endpoint = Endpoint::from_shared(self.url()).unwrap();
        endpoint.initial_stream_window_size(bytes).connect_lazy()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer::remote(&self.url(), &config()).unwrap()
    }
}

/// Calls `GetUserByName` of a peer.
pub(crate) async fn get(peer: Peer, name: &str) -> Result<String, Status> {
    let request = GetUserByNameRequest { name: name.to_owned() };
    let response = UserServiceClient::new(peer).get_user_by_name(request).await?;
    Ok(response.into_inner().user.unwrap().name)
}

pub(crate) fn request(timeout: Option<Duration>) -> Request<GetUserByNameRequest> {
    let mut request = Request::new(GetUserByNameRequest { name: "alice".to_owned() });
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    request
}

pub(crate) fn code_and_reason(status: &Status) -> (Code, String) {
    let reason = microblog_chassis::status::reason_of(status);
    (status.code(), reason.map_or("none", |reason| reason.as_str_name()).to_owned())
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect(what);
}
