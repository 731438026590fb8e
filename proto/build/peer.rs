//! Generates the peer of a service: a client that calls it over a network, or in the same process
//! through its handler.

use std::fmt::Write as _;

use prost_build::{Method, Service};

use crate::names::{module, path};

/// Writes the peer of a service.
pub(crate) fn write(service: &Service) -> String {
    let Service { name, .. } = service;
    let module = module(&service.name);
    let streams: String = service.methods.iter().filter(|method| method.server_streaming).fold(
        String::new(),
        |mut streams, Method { proto_name, output_type, .. }| {
            let _ =
                write!(streams, "{proto_name}Stream = tonic::codegen::BoxStream<{output_type}>, ");
            streams
        },
    );
    let methods: String =
        service.methods.iter().map(|method| call(service, &module, method)).collect();
    format!(
        "
/// The handler of {name} in the same process.
pub type {name}Handler = std::sync::Arc<dyn {module}_server::{name}<{streams}>>;

/// A client of {name}, over a network or in the same process.
#[derive(Clone, Debug)]
pub struct {name}Peer<P> {{
    peer: P,
}}

impl<P: crate::Peer> {name}Peer<P> {{
    /// Returns a client that uses this transport.
    pub fn new(peer: P) -> Self {{
        Self {{ peer }}
    }}
{methods}}}
"
    )
}

fn call(service: &Service, module: &str, method: &Method) -> String {
    let Service { name, .. } = service;
    let Method { name: function, proto_name, input_type, output_type, .. } = method;
    let path = path(service, proto_name);
    let client = format!(
        "{module}_client::{name}Client::new(peer)
            .max_decoding_message_size(crate::PEER_RESPONSE_BYTES_MAX)
            .{function}(request).await"
    );
    let (answer, body) = if method.server_streaming {
        (format!("tonic::Streaming<{output_type}>"), client)
    } else {
        let body = format!(
            "let Some(handler) = peer.handler::<{name}Handler>() else {{
                return {client};
            }};
            let call = |request| async move {{ handler.{function}(request).await }};
            peer.call_inside(\"{path}\", request, call).await"
        );
        (output_type.clone(), body)
    };
    // Boxed: the future of a call is large, and would enlarge every future that awaits it.
    format!(
        "
    pub fn {function}(
        &self,
        request: impl tonic::IntoRequest<{input_type}>,
    ) -> tonic::codegen::BoxFuture<tonic::Response<{answer}>, tonic::Status> {{
        let (peer, request) = (self.peer.clone(), request.into_request());
        Box::pin(async move {{
            {body}
        }})
    }}
"
    )
}
