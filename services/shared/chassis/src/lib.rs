//! Server chassis: the parts that every server of microblog shares. Knows the wire contract, but
//! neither a service's rules nor Redis. A service reports its readiness with its [`Probe`].
//!
//! Code map. Each module imports only from those below it:
//!
//! 1. `server`: one service on one listener, from accept to the end of its drain. `process` (start,
//!    signals, drain of a whole process), `listeners` (SO_REUSEPORT), `connection_balancer`,
//!    `call_batches` (many calls in one stream), `web` (gRPC-Web, Connect and files, for browsers),
//!    `health` (`grpc.health.v1`), `health_path` (HTTP), `health_port` (both), `tls`, `proxy_protocol`,
//!    `drain` (of single connections).
//! 2. `client` ([`Peer`]): calls to other services. Service discovery, load balancing, reconnecting,
//!    retries, `call_stream` (batches), `tls`.
//! 3. `middleware` around each call, from the network or within the process: deadline, panic
//!    isolation, error mapping, access log.
//! 4. `call`, the current call: [`context`] (deadline, trace and identity), `admission` (concurrency
//!    limit, load shedding), `authorizer` ([`CallAuthorizer`]), [`mutate()`] (writes that run to
//!    completion), [`message`] (trace propagation through queues), `metadata` (limit of its size,
//!    `grpc-timeout`), `batch` (calls in one message), `connection_calls` (calls in flight on a
//!    connection), `span` (head-based sampling), `trace_context` (W3C).
//! 5. `telemetry`: log format, exporters for OTLP and Prometheus, sampling settings.
//! 6. `config` (flags).
//! 7. [`identity`]: signed caller identity between services.
//! 8. [`status`] (error model), `methods` (metadata from the proto descriptors), `service` (the
//!    interface between a service and the chassis), `jobs` ([`PeriodicJob`],
//!    [`run_on_dedicated_thread()`]), [`json`] (Protobuf JSON), [`raw_codec`] (encoded messages).
//!
//! A handler that waits for events in a stream begins with [`context::watch()`]. Otherwise, a
//! thousand of its callers would exhaust `--max-calls`, and delay the drain.
//!
//! A service counts with instruments of `opentelemetry::global::meter`, created after [`run`] has
//! started its worker; earlier ones export nothing. With `--otlp-endpoint`, they are exported
//! together with the call durations.
//!
//! The `main()` of a service is
//! `chassis::run(&config.chassis.clone(), move |worker| listen(config.clone(), worker))`;
//! a test calls [`serve`] with its own socket and stop signal.

mod call;
mod client;
mod config;
pub mod identity;
mod jobs;
pub mod json;
mod methods;
mod middleware;
pub mod raw_codec;
mod server;
mod service;
pub mod status;
mod telemetry;

pub use call::{CallAuthorizer, context, message, mutate};
pub use client::{AddressError, Peer, Resolve};
pub use config::{Config, LogFormat};
pub use jobs::{PeriodicJob, run_on_dedicated_thread, run_periodically};
pub use methods::is_read;
pub use microblog_files::TlsError;
pub use server::{ServeError, connection::Connection, process::run, serve};
pub use service::{File, Handler, Probe, ProxyProtocol, Service, ServiceListener, Web, Worker};
pub use telemetry::AUDIT_TARGET;

/// The version of microblog, for `--version`: with the commit and the build profile.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("MICROBLOG_BUILD"), ")");
