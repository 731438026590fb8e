//! The Connect protocol (<https://connectrpc.com/docs/protocol>): each call becomes a gRPC call of the
//! same process, with its message encoded and its answer decoded if the caller uses JSON.

mod exchange;
mod request;

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE, uri::PathAndQuery};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use prost_reflect::MethodDescriptor;
use tonic::{Status, Streaming, body::Body, client::Grpc, metadata::MetadataMap};

pub(super) use self::request::{Asked, is_exchange};
use self::request::{Format, metadata};
use super::{
    INFRASTRUCTURE_MAX, envelope,
    head::{self, JSON, PROTO, STREAM_JSON, STREAM_PROTO},
    rejection::{Rejection, end_of_stream},
};
use crate::{
    json, methods,
    raw_codec::RawCodec,
    server::{HEALTH, call_batches::BatchedCalls},
};

/// Makes gRPC calls of Connect calls.
#[derive(Clone)]
pub(super) struct Connect {
    calls: BatchedCalls,
    methods: Arc<Methods>,
    message_max: usize,
}

/// The methods of the package of a service, and those of health checks.
struct Methods {
    service: &'static str,
    /// By their path. Read at the first call: the descriptors take megabytes.
    by_path: OnceLock<HashMap<String, MethodDescriptor>>,
}

impl Methods {
    fn find(&self, path: &str) -> Option<&MethodDescriptor> {
        let by_path = self.by_path.get_or_init(|| {
            let methods = [self.service, HEALTH].into_iter().flat_map(json::methods_of_package);
            let methods = methods.filter(|method| !method.is_client_streaming());
            methods.map(|method| (format!("/{}", json::path(&method)), method)).collect()
        });
        by_path.get(path)
    }
}

impl Connect {
    pub(super) fn new(calls: BatchedCalls, service: &'static str, message_max: usize) -> Self {
        let methods = Arc::new(Methods { service, by_path: OnceLock::new() });
        Self { calls, methods, message_max }
    }

    /// Returns what a request asks for, by its head alone.
    pub(super) fn asked<B>(&self, request: &Request<B>) -> Result<Asked, Rejection> {
        Asked::of(request, self.methods.find(request.uri().path()))
    }

    /// Opens a stream in both directions.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Body>, Rejection> {
        Ok(response(STREAM_PROTO, exchange::open(&mut self.calls, request).await?))
    }

    /// Makes a call with its message.
    pub(super) async fn call(
        &self,
        asked: Asked,
        request: Request<Bytes>,
    ) -> Result<Response<Body>, Rejection> {
        let (parts, body) = request.into_parts();
        let is_infrastructure = methods::find(parts.uri.path()).is_infrastructure;
        let max = if is_infrastructure { INFRASTRUCTURE_MAX } else { self.message_max };
        let message = asked.message(body, max)?;
        let path =
            PathAndQuery::try_from(parts.uri.path()).map_err(|_| Rejection::unknown_method())?;
        let metadata = MetadataMap::from_headers(metadata(&parts.headers));
        let mut request = tonic::Request::from_parts(metadata, parts.extensions, message);
        if let Some(timeout) = head::timeout(&parts.headers)? {
            request.set_timeout(timeout);
        }
        // The answers are those of this process.
        let mut grpc = Grpc::new(self.calls.clone()).max_decoding_message_size(usize::MAX);
        if asked.method.is_server_streaming() {
            let messages = grpc.server_streaming(request, path, RawCodec).await?.into_inner();
            return Ok(streamed(asked, messages));
        }
        let message = grpc.unary(request, path, RawCodec).await?.into_inner();
        let content_type = if asked.format == Format::Json { JSON } else { PROTO };
        Ok(response(content_type, Body::new(Full::new(asked.answer(message)?))))
    }
}

/// Returns the response with a stream of messages, and its end.
fn streamed(asked: Asked, messages: Streaming<Bytes>) -> Response<Body> {
    let content_type = if asked.format == Format::Json { STREAM_JSON } else { STREAM_PROTO };
    let frames = stream::unfold(Some((asked, messages)), |going| async move {
        let (asked, mut messages) = going?;
        let next = match messages.message().await {
            Ok(next) => next.map(|message| asked.answer(message)).transpose(),
            Err(status) => Err(status),
        };
        let (frame, going) = match next {
            Ok(Some(message)) => (envelope::enclose(0, &message), Some((asked, messages))),
            Ok(None) => (end_of_stream(&Status::ok("")), None),
            Err(status) => (end_of_stream(&status), None),
        };
        Some((Ok::<_, Infallible>(Frame::data(frame)), going))
    });
    response(content_type, Body::new(StreamBody::new(frames)))
}

fn response(content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
