//! Compiles the protobuf files with protox, so that no `protoc` is needed.

use std::{env, error::Error, fmt::Write as _, fs, path::PathBuf};

use prost::Message as _;
use prost_build::{Method, Service, ServiceGenerator};

const FILES: [&str; 10] = [
    "microblog/common/v1/error.proto",
    "microblog/user/v1/user.proto",
    "microblog/relation/v1/relation.proto",
    "microblog/post/v1/post.proto",
    "microblog/post/v1/post_service.proto",
    "microblog/timeline/v1/timeline.proto",
    "microblog/gateway/v1/accounts.proto",
    "microblog/gateway/v1/gateway.proto",
    "microblog/gateway/v1/posts.proto",
    "microblog/gateway/v1/timelines.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=microblog");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let tonic = tonic_prost_build::configure().build_transport(false).service_generator();
    prost_build::Config::new()
        .service_generator(Box::new(WithPeers { tonic }))
        .compile_fds(descriptors)?;
    Ok(())
}

/// Writes, besides tonic's client and server of each service, how it is asked wherever it runs.
struct WithPeers {
    tonic: Box<dyn ServiceGenerator>,
}

impl ServiceGenerator for WithPeers {
    fn generate(&mut self, service: Service, out: &mut String) {
        out.push_str(&peer(&service));
        self.tonic.generate(service, out);
    }

    fn finalize(&mut self, out: &mut String) {
        self.tonic.finalize(out);
    }

    fn finalize_package(&mut self, package: &str, out: &mut String) {
        self.tonic.finalize_package(package, out);
    }
}

fn peer(service: &Service) -> String {
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
/// What answers for {name} in the same process.
pub type {name}Handler = std::sync::Arc<dyn {module}_server::{name}<{streams}>>;

/// {name}, wherever it runs.
#[derive(Clone, Debug)]
pub struct {name}Peer<P> {{
    peer: P,
}}

impl<P: crate::Peer> {name}Peer<P> {{
    /// Returns the service that a peer is.
    pub fn new(peer: P) -> Self {{
        Self {{ peer }}
    }}
{methods}}}
"
    )
}

fn call(service: &Service, module: &str, method: &Method) -> String {
    let Service { name, package, proto_name, .. } = service;
    let Method { name: function, proto_name: rpc, input_type, output_type, .. } = method;
    let client = format!("{module}_client::{name}Client::new(peer).{function}(request).await");
    let (answer, body) = if method.server_streaming {
        (format!("tonic::Streaming<{output_type}>"), client)
    } else {
        let body = format!(
            "let Some(handler) = peer.handler::<{name}Handler>() else {{
                return {client};
            }};
            let call = |request| async move {{ handler.{function}(request).await }};
            peer.call_inside(\"/{package}.{proto_name}/{rpc}\", request, call).await"
        );
        (output_type.clone(), body)
    };
    // Boxed: what a call needs is large, and would be part of all that await it.
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

/// Returns the name in snake case, as tonic has it in those of its modules.
fn module(name: &str) -> String {
    let mut module = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !module.is_empty() {
            module.push('_');
        }
        module.push(letter.to_ascii_lowercase());
    }
    module
}
