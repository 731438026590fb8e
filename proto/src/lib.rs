//! The wire contract: messages, clients and servers generated from the `.proto` files beside this
//! crate, without any logic of the services. Wire types are written with their package
//! (`user::User`), which distinguishes them from domain types.

// Generated code does not follow the lints of this workspace.
#![allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all)]

use std::future::Future;

use tonic::{Request, Response, Status, body::Body, codegen::http};

/// The largest response that a peer accepts: twice as much as other clients do by default. It has 25
/// of the largest posts, each with its root, or 500 of the largest profiles.
pub const PEER_RESPONSE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A transport for calls to a service: over a network, or in the same process, where the caller
/// invokes the handler directly and nothing is encoded. Each generated `…Peer` wraps one.
pub trait Peer:
    tonic::codegen::Service<
        http::Request<Body>,
        Response = http::Response<Body>,
        Error = Status,
        Future: Send,
    > + Clone
    + Send
    + Sync
    + 'static
{
    /// Returns the handler of a service, if it runs in this process.
    fn handler<H: Clone + 'static>(&self) -> Option<H>;

    /// Calls a handler of this process as the method with this path.
    fn call_inside<Q: Send, A: Send, F>(
        &self,
        path: &'static str,
        request: Request<Q>,
        call: impl FnOnce(Request<Q>) -> F + Send,
    ) -> impl Future<Output = Result<Response<A>, Status>> + Send
    where
        F: Future<Output = Result<Response<A>, Status>> + Send;
}

/// Authorizes calls. The generated `…Guard` of each internal service calls it before each handler.
pub trait Authorizer: Send + Sync + 'static {
    /// Returns an error if the caller may not act as `principal`.
    fn authorize(&self, principal: Principal) -> Result<(), Status>;
}

/// The caller that a method requires, with the user id from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    /// This user, who acts or owns the response.
    Actor(u64),
    /// This user, who views the response; 0 for no viewer.
    Viewer(u64),
    /// Anyone.
    Anybody,
    /// The system itself.
    System,
}

/// Who may call a method, besides the system itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The user in this field of the request.
    Actor(&'static str),
    /// The user in this field of the request, or anyone if it is 0.
    Viewer(&'static str),
    /// Anyone: the response is public.
    Public,
    /// Anyone: the request has credentials.
    Credentials,
    /// No other caller.
    System,
}

/// Who may call each method of the internal services, by the path of the method.
pub const ACCESS: &[(&str, Access)] = include!(concat!(env!("OUT_DIR"), "/rules.rs"));

// Generated files refer to each other by the nesting of their packages.
mod microblog {
    pub mod common {
        pub mod v1 {
            tonic::include_proto!("microblog.common.v1");
        }
    }
    pub mod user {
        pub mod v1 {
            tonic::include_proto!("microblog.user.v1");
        }
    }
    pub mod relation {
        pub mod v1 {
            tonic::include_proto!("microblog.relation.v1");
        }
    }
    pub mod post {
        pub mod v1 {
            tonic::include_proto!("microblog.post.v1");
        }
    }
    pub mod timeline {
        pub mod v1 {
            tonic::include_proto!("microblog.timeline.v1");
        }
    }
    pub mod notice {
        pub mod v1 {
            tonic::include_proto!("microblog.notice.v1");
        }
    }
    pub mod gateway {
        pub mod v1 {
            tonic::include_proto!("microblog.gateway.v1");
        }
    }
}

pub use microblog::common::v1 as common;
pub use microblog::gateway::v1 as gateway;
pub use microblog::notice::v1 as notice;
pub use microblog::post::v1 as post;
pub use microblog::relation::v1 as relation;
pub use microblog::timeline::v1 as timeline;
pub use microblog::user::v1 as user;

/// All packages and their imports as an encoded `FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
