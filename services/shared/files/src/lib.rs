//! Files that change while the process runs: hot reload, and the certificates and keys in them.
//! Knows neither servers nor Redis.

mod pem;
mod reloaded;
mod tls;

pub use pem::{File, Identity, TlsError};
pub use reloaded::{Recipe, Reloaded};
pub use tls::{client_config, server_config};
