//! The Connect protocol (<https://connectrpc.com/docs/protocol>): each call becomes a gRPC call of the
//! same process, with its message encoded and its answer decoded if the caller uses JSON.

use std::{collections::HashMap, sync::OnceLock, time::Instant};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use bytes::Bytes;
use connectrpc::{
    CodecFormat, ConnectError, Dispatcher, EncodedBody, EncodedStream, ErrorCode, ErrorDetail,
    MethodDescriptor as ConnectMethod, Payload, RequestContext, Response,
    dispatcher::{
        RequestStream, StreamingResult, UnaryResult, unimplemented_streaming, unimplemented_unary,
    },
};
use futures::{FutureExt as _, StreamExt as _, future};
use http::{HeaderMap, HeaderName, header, uri::PathAndQuery};
use microblog_proto::common::ErrorReason;
use prost::Message as _;
use prost_reflect::MethodDescriptor;
use tonic::{Code, Request, Status, client::Grpc, metadata::MetadataMap};
use tonic_types::pb;

use crate::{
    json, methods,
    middleware::message_too_large,
    raw_codec::RawCodec,
    server::{HEALTH, call_batches::BatchedCalls},
    status,
};

/// Headers of the request's message and of its connection. They say nothing about the call.
const NOT_METADATA: [HeaderName; 9] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::HOST,
    header::TE,
    header::TRANSFER_ENCODING,
];

/// The largest message as JSON: decoded, a message takes up to a hundred times as much memory. A public
/// call needs less.
const JSON_BYTES_MAX: usize = 256 * 1024;

/// Makes gRPC calls of Connect calls.
pub(super) struct Transcoder {
    calls: BatchedCalls,
    service: &'static str,
    /// The methods that it calls, by their path without the leading slash. Read at the first call: the
    /// descriptors take megabytes.
    methods: OnceLock<HashMap<String, MethodDescriptor>>,
}

impl Transcoder {
    /// Returns one for the package of a service, and for health checks.
    pub(super) fn new(calls: BatchedCalls, service: &'static str) -> Self {
        Self { calls, service, methods: OnceLock::new() }
    }

    fn method(&self, path: &str) -> Option<&MethodDescriptor> {
        let by_path = self.methods.get_or_init(|| {
            let methods = [self.service, HEALTH].into_iter().flat_map(json::methods_of_package);
            let methods = methods.filter(|method| !method.is_client_streaming());
            methods.map(|method| (json::path(&method), method)).collect()
        });
        by_path.get(path)
    }

    fn start(&self, path: &str, context: RequestContext, format: CodecFormat) -> Option<Call> {
        let method = self.method(path)?.clone();
        let calls = self.calls.clone();
        Some(Call { calls, path: format!("/{path}"), method, context, format })
    }
}

impl Dispatcher for Transcoder {
    fn lookup(&self, path: &str) -> Option<ConnectMethod> {
        let method = self.method(path)?;
        Some(match method.is_server_streaming() {
            true => ConnectMethod::server_streaming(),
            false => ConnectMethod::unary(methods::is_read(&format!("/{path}")) == Some(true)),
        })
    }

    fn call_unary(
        &self,
        path: &str,
        context: RequestContext,
        message: Payload,
        format: CodecFormat,
    ) -> UnaryResult {
        match self.start(path, context, format) {
            Some(call) if call.method.is_server_streaming() => {
                let text = "a method that streams takes application/connect+json or +proto";
                future::ready(Err(ConnectError::unsupported_media_type(text))).boxed()
            }
            Some(call) => async move { call.unary(message.encoded()?).await }.boxed(),
            None => unimplemented_unary(path),
        }
    }

    fn call_server_streaming(
        &self,
        path: &str,
        context: RequestContext,
        message: Bytes,
        format: CodecFormat,
    ) -> StreamingResult {
        match self.start(path, context, format) {
            Some(call) => call.server_streaming(message).boxed(),
            None => unimplemented_streaming(path),
        }
    }

    fn call_client_streaming(
        &self,
        path: &str,
        _: RequestContext,
        _: RequestStream,
        _: CodecFormat,
    ) -> UnaryResult {
        unimplemented_unary(path)
    }

    fn call_bidi_streaming(
        &self,
        path: &str,
        _: RequestContext,
        _: RequestStream,
        _: CodecFormat,
    ) -> StreamingResult {
        unimplemented_streaming(path)
    }
}

/// A call in flight.
struct Call {
    calls: BatchedCalls,
    path: String,
    method: MethodDescriptor,
    context: RequestContext,
    format: CodecFormat,
}

impl Call {
    async fn unary(self, message: Bytes) -> Result<Response<EncodedBody>, ConnectError> {
        let (mut grpc, request, path) = self.request(message)?;
        let response =
            grpc.unary(request, path, RawCodec).await.map_err(|status| error(&status))?;
        Ok(Response::new(self.answer()(response.into_inner())?))
    }

    async fn server_streaming(
        self,
        message: Bytes,
    ) -> Result<Response<EncodedStream>, ConnectError> {
        let (mut grpc, request, path) = self.request(message)?;
        let response = grpc.server_streaming(request, path, RawCodec).await;
        let messages = response.map_err(|status| error(&status))?.into_inner();
        let answer = self.answer();
        let answers =
            messages.map(move |message| message.map_err(|status| error(&status)).and_then(&answer));
        Ok(Response::new(answers.boxed()))
    }

    /// Returns the gRPC call.
    fn request(
        &self,
        message: Bytes,
    ) -> Result<(Grpc<BatchedCalls>, Request<Bytes>, PathAndQuery), ConnectError> {
        let message = match self.format {
            CodecFormat::Json if message.len() > JSON_BYTES_MAX => {
                return Err(error(&message_too_large()));
            }
            CodecFormat::Json => {
                json::encode(self.method.input(), &message).map_err(|error| malformed(&error))?
            }
            _ => message,
        };
        let metadata = MetadataMap::from_headers(metadata(self.context.headers()));
        let mut request = Request::from_parts(metadata, self.context.extensions().clone(), message);
        if let Some(deadline) = self.context.deadline() {
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        }
        let path = PathAndQuery::try_from(self.path.as_str()).map_err(http::Error::from)?;
        Ok((Grpc::new(self.calls.clone()), request, path))
    }

    /// Returns the conversion of the messages of its answer.
    fn answer(self) -> impl Fn(Bytes) -> Result<EncodedBody, ConnectError> {
        move |message| {
            Ok(EncodedBody::from(match self.format {
                CodecFormat::Json => {
                    json::decode(self.method.output(), message).map_err(|problem| {
                        tracing::error!(method = self.path, %problem, "an answer has no JSON form");
                        error(&status::internal())
                    })?
                }
                _ => message,
            }))
        }
    }
}

/// Returns the metadata of a call: its headers without those of Connect, of gRPC, which the caller does
/// not speak, and of HTTP.
fn metadata(headers: &HeaderMap) -> HeaderMap {
    let is_metadata = |name: &HeaderName| {
        let text = name.as_str();
        let is_protocol = ["connect-", "grpc-", "sec-", "access-control-"]
            .iter()
            .any(|prefix| text.starts_with(prefix));
        !is_protocol && !NOT_METADATA.contains(name)
    };
    let fields = headers.iter().filter(|(name, _)| is_metadata(name));
    fields.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn malformed(problem: &serde_json::Error) -> ConnectError {
    let text = format!("the request is not a valid message of its type: {problem}");
    error(&status::with_reason(Code::InvalidArgument, ErrorReason::MalformedMessage, text))
}

/// Returns a status as an error of Connect, with the same code, text and details.
pub(super) fn error(status: &Status) -> ConnectError {
    let code = ErrorCode::from_grpc_code(status.code() as u32).unwrap_or(ErrorCode::Unknown);
    let mut error = ConnectError::new(code, status.message());
    let details = pb::Status::decode(status.details()).unwrap_or_default().details;
    for detail in details {
        let name = detail.type_url.rsplit('/').next().unwrap_or_default();
        error = error.with_detail(ErrorDetail {
            type_url: name.to_owned(),
            value: Some(STANDARD_NO_PAD.encode(&detail.value)),
            debug: readable(name, detail.value),
        });
    }
    error
}

/// Returns a detail as people read it.
fn readable(name: &str, detail: Vec<u8>) -> Option<serde_json::Value> {
    let json = json::decode(json::message(name)?, detail.into()).ok()?;
    serde_json::from_slice(&json).ok()
}
