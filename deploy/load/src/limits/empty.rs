//! The service that does nothing but to call others that do nothing, or to look something up.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context as Waker, Poll},
};

use bytes::Bytes;
use futures::{
    FutureExt as _,
    future::{self, BoxFuture},
};
use http::uri::PathAndQuery;
use microblog_chassis as chassis;
use microblog_proto::Peer as _;
use tonic::{
    Request, Response, Status,
    body::Body,
    server::{NamedService, UnaryService},
    service::Routes,
};
use tower::Service;

use super::{chain::Chain, look_ups::LookUps};
use crate::{raw::Raw, server::bare_service};

/// How calls within the process are named, however long their answers are.
const INSIDE: &str = "/microblog.load.v1.EmptyService/Answer";

/// The largest answer that is asked for.
const ANSWER_MAX: usize = 1 << 20;

/// The service in one worker.
#[derive(Clone)]
pub(super) struct Empty {
    stages: Arc<[Vec<Call>]>,
    look_ups: Option<Arc<LookUps>>,
    answer: Bytes,
}

/// A call that is ready to be made, over and over.
struct Call {
    peer: chassis::Peer,
    path: PathAndQuery,
    answer: usize,
    request: Bytes,
}

impl NamedService for Empty {
    const NAME: &'static str = "microblog.load.v1.EmptyService";
}

impl Empty {
    /// Returns the service that makes the calls of a chain before it answers, and of which peer it
    /// asks each.
    pub(super) fn new(
        chain: &Chain,
        peer: impl Fn(super::chain::Peer) -> chassis::Peer,
    ) -> anyhow::Result<Self> {
        let call = |step: &super::chain::Step| {
            let (path, request) = (path(step.answer)?, Bytes::from(vec![b'r'; step.request]));
            anyhow::Ok(Call { peer: peer(step.peer), path, answer: step.answer, request })
        };
        let stage = |stage: &Vec<_>| stage.iter().map(call).collect::<anyhow::Result<Vec<_>>>();
        let stages = chain.stages.iter().map(stage).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { stages: stages.into(), look_ups: None, answer: vec![b'a'; ANSWER_MAX].into() })
    }

    /// Returns the service that looks up something in Redis, too, before it answers.
    pub(super) fn with(self, look_ups: LookUps) -> Self {
        Self { look_ups: Some(Arc::new(look_ups)), ..self }
    }

    /// Returns it as the chassis serves it.
    pub(super) fn service(self) -> chassis::Service {
        let handler: chassis::Handler = Arc::new(self.clone());
        let service = bare_service(Self::NAME, Routes::new(self));
        chassis::Service { handler: Some(handler), ..service }
    }

    /// Does nothing but the calls, and answers with so many bytes.
    fn work(self, answer: usize) -> BoxFuture<'static, Result<Response<Bytes>, Status>> {
        let work = async move {
            for stage in &*self.stages {
                future::try_join_all(stage.iter().map(Call::make)).await?;
            }
            if let Some(look_ups) = &self.look_ups {
                look_ups.make().await?;
            }
            Ok(Response::new(self.answer.slice(..answer)))
        };
        work.boxed()
    }
}

impl Call {
    /// Makes the call as generated peers do: within the process, nothing is encoded.
    async fn make(&self) -> Result<(), Status> {
        if let Some(handler) = self.peer.handler::<Empty>() {
            let (request, answer) = (Request::new(self.request.clone()), self.answer);
            let call = |_: Request<Bytes>| handler.work(answer);
            return self.peer.call_inside(INSIDE, request, call).await.map(drop);
        }
        let mut client = tonic::client::Grpc::new(self.peer.clone());
        let request = Request::new(self.request.clone());
        let answer: Response<Bytes> = client.unary(request, self.path.clone(), Raw).await?;
        drop(answer);
        Ok(())
    }
}

/// Returns the path of the method that answers with so many bytes.
pub(super) fn path(answer: usize) -> anyhow::Result<PathAndQuery> {
    Ok(format!("/{}/Answer{answer}", Empty::NAME).parse()?)
}

/// Returns how many bytes a path asks for.
fn answer_bytes(path: &str) -> Option<usize> {
    let (_, method) = path.rsplit_once('/')?;
    method.strip_prefix("Answer")?.parse().ok().filter(|&bytes| bytes <= ANSWER_MAX)
}

impl Service<http::Request<Body>> for Empty {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Some(bytes) = answer_bytes(request.uri().path()) else {
            let unknown = Status::unimplemented("no such method here").into_http();
            return future::ready(Ok(unknown)).boxed();
        };
        let method = Method { service: self.clone(), answer: bytes };
        async move { Ok(tonic::server::Grpc::new(Raw).unary(method, request).await) }.boxed()
    }
}

struct Method {
    service: Empty,
    answer: usize,
}

impl UnaryService<Bytes> for Method {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<Response<Bytes>, Status>>;

    fn call(&mut self, _request: Request<Bytes>) -> Self::Future {
        self.service.clone().work(self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_how_long_the_answer_is() {
        for bytes in [0, 17, ANSWER_MAX] {
            assert_eq!(answer_bytes(path(bytes).unwrap().path()), Some(bytes));
        }
        for wrong in ["/a/Answer", "/a/Answerx", "/a/Other1", "Answer1", "/a/Answer1048577"] {
            assert_eq!(answer_bytes(wrong), None, "{wrong}");
        }
    }
}
