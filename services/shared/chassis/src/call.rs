//! The current call: what the middleware, the client and handlers share.

pub(crate) mod admission;
mod authorizer;
pub(crate) mod batch;
pub(crate) mod connection_calls;
pub mod context;
pub mod message;
pub(crate) mod metadata;
mod mutate;
pub(crate) mod span;
pub(crate) mod trace_context;

pub use self::{authorizer::CallAuthorizer, mutate::mutate};
