//! Files that change while the process runs: hot reload, text files, certificates and keys.
//! Knows neither servers nor Redis.

mod hot_reload;
mod pem;
mod text_file;
mod tls;

pub use hot_reload::{HotReload, Loader};
pub use pem::{File, Identity, TlsError};
pub use text_file::{TextFile, TextFileError, UnusableText};
pub use tls::{client_config, server_config};
