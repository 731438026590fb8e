//! The wire contract: messages, clients and servers generated from the `.proto` files beside this
//! crate. Knows nothing of what the services do; wire types are written with their package
//! (`user::User`), so that nobody takes them for the domain's own.

// Generated code follows the generator's habits, not ours.
#![allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all)]

use std::future::Future;

use tonic::{Request, Response, Status, body::Body, codegen::http};

/// A way to ask a service: over a network, or in the same process, where its handler is called as it
/// is and nothing is encoded. The generated `…Peer` of each service is made of one.
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
    /// Returns the handler of a service of this process.
    fn handler<H: Clone + 'static>(&self) -> Option<H>;

    /// Calls a handler as what the method with this path is called for.
    fn call_inside<Q: Send, A: Send, F>(
        &self,
        path: &'static str,
        request: Request<Q>,
        call: impl FnOnce(Request<Q>) -> F + Send,
    ) -> impl Future<Output = Result<Response<A>, Status>> + Send
    where
        F: Future<Output = Result<Response<A>, Status>> + Send;
}

/// Decides whether a call may be made. The generated `…Guard` of each service behind the gateway
/// asks it before each handler.
pub trait Authorizer: Send + Sync + 'static {
    /// Returns the refusal of a call that its caller may not make.
    fn authorize(&self, principal: Principal) -> Result<(), Status>;
}

/// Whom a call claims to come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    /// This user, who acts, or whose own the answer is.
    Actor(u64),
    /// This user, through whose eyes it looks; 0 for nobody in particular.
    Viewer(u64),
    /// Anybody.
    Anybody,
    /// The system itself.
    System,
}

/// Who may call a method, besides the system itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whom this field of the request says.
    Actor(&'static str),
    /// Whom this field of the request says, or anybody where it is 0.
    Viewer(&'static str),
    /// Anybody: what it tells is no secret.
    Public,
    /// Anybody: the request bears what it takes.
    Credentials,
    /// Nobody else.
    System,
}

/// Who may call the methods of the services behind the gateway, each with its path.
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
    pub mod gateway {
        pub mod v1 {
            tonic::include_proto!("microblog.gateway.v1");
        }
    }
}

pub use microblog::common::v1 as common;
pub use microblog::gateway::v1 as gateway;
pub use microblog::post::v1 as post;
pub use microblog::relation::v1 as relation;
pub use microblog::timeline::v1 as timeline;
pub use microblog::user::v1 as user;

/// All of the above and what they import as an encoded `FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
