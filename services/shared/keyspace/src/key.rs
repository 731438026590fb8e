//! Builds and parses keys.

use std::fmt::{self, Write as _};

// Enough for all keys but those with a name or an e-mail address, which reallocate once.
const KEY_CAPACITY_BYTES: usize = 64;

/// Formats a key with one allocation. `format!` starts with the length of the literal parts, and
/// reallocates.
pub fn key(form: fmt::Arguments<'_>) -> String {
    let mut key = String::with_capacity(KEY_CAPACITY_BYTES);
    // Writing to a string cannot fail.
    let _ = key.write_fmt(form);
    key
}
