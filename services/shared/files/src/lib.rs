//! Files that somebody changes while the process runs: read again when they are used, and the
//! certificates and keys in them. Knows neither servers nor Redis.

mod looks;
mod pem;
mod reloaded;

pub use looks::Looks;
pub use pem::{File, Identity, TlsError};
pub use reloaded::{Recipe, Reloaded};
