//! Files that change while the process runs: hot reload, and the certificates and keys in them.
//! Knows neither servers nor Redis.

mod hot_reload;
mod pem;
mod tls;

pub use hot_reload::{HotReload, Loader};
pub use pem::{File, Identity, TlsError};
pub use tls::{client_config, server_config};
