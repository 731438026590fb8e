//! Generates the guard of an internal service: an authorization check before each handler. It
//! covers all methods of the service, because the check is generated for each.

use std::fmt::Write as _;

use prost_build::{Method, Service};

use crate::{
    access::{Access, Contract},
    names::{module, path},
};

/// Writes the guard of a service; nothing if the service declares no access.
pub(crate) fn write(service: &Service, contract: &Contract) -> String {
    let Service { name, .. } = service;
    let module = module(name);
    let (mut streams, mut methods) = (String::new(), String::new());
    for method in &service.methods {
        let Some(access) = contract.of(&path(service, &method.proto_name)) else {
            return String::new();
        };
        methods += &checked(method, access);
        if method.server_streaming {
            let rpc = &method.proto_name;
            let _ = writeln!(streams, "    type {rpc}Stream = T::{rpc}Stream;");
        }
    }
    format!(
        "
/// {name} with an authorization check before each handler.
#[derive(Clone, Debug)]
pub struct {name}Guard<T, G> {{
    handler: T,
    authorizer: G,
}}

impl<T, G> {name}Guard<T, G> {{
    /// Returns a handler with an authorizer.
    pub const fn new(handler: T, authorizer: G) -> Self {{
        Self {{ handler, authorizer }}
    }}
}}

impl<T: {module}_server::{name}, G: crate::Authorizer> {module}_server::{name} for {name}Guard<T, G> {{
{streams}{methods}}}
"
    )
}

/// Writes a method with the signature of `#[async_trait]`, but without another future around the
/// handler's.
fn checked(method: &Method, access: &Access) -> String {
    let Method { name, proto_name, input_type, output_type, server_streaming, .. } = method;
    let answer =
        if *server_streaming { format!("Self::{proto_name}Stream") } else { output_type.clone() };
    let principal = match access {
        Access::Actor(field) => format!("Actor(request.get_ref().{field})"),
        Access::Viewer(field) => format!("Viewer(request.get_ref().{field})"),
        Access::Public | Access::Credentials => "Anybody".to_owned(),
        Access::System => "System".to_owned(),
    };
    format!(
        "
    fn {name}<'handler, 'call>(
        &'handler self,
        request: tonic::Request<{input_type}>,
    ) -> std::pin::Pin<
        Box<dyn Future<Output = Result<tonic::Response<{answer}>, tonic::Status>> + Send + 'call>,
    >
    where
        'handler: 'call,
        Self: 'call,
    {{
        match self.authorizer.authorize(crate::Principal::{principal}) {{
            Ok(()) => self.handler.{name}(request),
            Err(status) => Box::pin(std::future::ready(Err(status))),
        }}
    }}
"
    )
}
