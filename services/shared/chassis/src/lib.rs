//! What every server of microblog needs: listen, TLS, health, reflection, limits, deadlines, trace
//! context, telemetry, a bounded drain, the rounds of jobs beside the calls, and the way one
//! service calls another.
//!
//! Who acts is said by each server to the next, signed ([`identity`]).
//!
//! Knows the wire contract, but neither any service's rules nor Redis: what "ready" means, a
//! service tells by its [`Probe`].
//!
//! A handler finds what it needs to know of its call in [`context`]. One that answers with a stream
//! which waits for something to happen begins with [`context::watch()`]: else, a thousand of its
//! callers would shut all others out, and hold up the drain.
//!
//! A service counts what it likes with the instruments of `opentelemetry::global::meter`, made
//! when its worker starts: what was made before [`run`] goes nowhere. With `--otlp-endpoint`, all of
//! it is sent to the collector, together with the durations of all calls; without it, counting
//! costs next to nothing.
//!
//! A `main.rs` is
//! `chassis::run(&config.chassis.clone(), move |worker| listen(config.clone(), worker))`;
//! a test calls [`serve`] with a socket and a stop signal of its own.

mod admission;
mod call;
mod config;
mod connection_balancer;
pub mod context;
mod dedicated_thread;
mod health;
pub mod identity;
mod listeners;
pub mod message;
mod methods;
mod mutate;
mod peer;
mod periodic_job;
mod process;
mod reflection;
mod server;
mod service;
mod signals;
pub mod status;
mod telemetry;
mod tls;
mod trace_context;

pub use config::{Config, LogFormat};
pub use dedicated_thread::run_on_dedicated_thread;
pub use mutate::mutate;
pub use peer::{AddressError, Peer, Resolve};
pub use periodic_job::PeriodicJob;
pub use process::run;
pub use server::{ServeError, serve};
pub use service::{Handler, Listening, Probe, Service, Worker};
pub use tls::TlsError;
