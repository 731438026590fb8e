//! Server chassis: the parts that every server of microblog shares. Knows the wire contract, but
//! neither a service's rules nor Redis. A service reports its readiness with its [`Probe`].
//!
//! Code map:
//!
//! - Server: `process` (start, signals, drain), `listeners` (SO_REUSEPORT), `connection_balancer`,
//!   `server` (one service on one listener), `call` (middleware around each call: deadline, panic
//!   isolation, error mapping, access log), `admission` (concurrency limit, load shedding),
//!   `health`, `reflection`, `methods` (metadata from the proto descriptors).
//! - Handlers: [`context`] (deadline, trace and identity of the current call), [`mutate()`] (writes
//!   that run to completion), [`status`] (error model), [`PeriodicJob`],
//!   [`run_on_dedicated_thread()`], [`message`] (trace propagation through queues).
//! - Client: `peer` ([`Peer`]: service discovery, load balancing, reconnecting, retries).
//! - Telemetry: `telemetry` (log format, OTLP and Prometheus exporters, sampling settings),
//!   `trace_context` (W3C trace context), `call/span.rs` (head-based sampling).
//! - Identity: [`identity`] (signed caller identity between services, authorization).
//! - TLS: `tls` (server and client side, certificate reload).
//!
//! Imports run one way: `call` uses [`context`], which uses `telemetry`; `telemetry` uses neither.
//!
//! A handler that waits for events in a stream begins with [`context::watch()`]. Otherwise, a
//! thousand of its callers would exhaust `--max-calls`, and delay the drain.
//!
//! A service counts with instruments of `opentelemetry::global::meter`, created after [`run`] has
//! started its worker; earlier ones export nothing. With `--otlp-endpoint`, they are exported
//! together with the call durations.
//!
//! A `main.rs` is
//! `chassis::run(&config.chassis.clone(), move |worker| listen(config.clone(), worker))`;
//! a test calls [`serve`] with its own socket and stop signal.

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
