//! Keys as text. Knows no key names.

use std::fmt::{self, Write as _};

// Longer than all but those with a name or an e-mail address in them: they grow once.
const KEY_BYTES: usize = 64;

/// Returns a key of this form. Unlike `format!`, which begins with the length of what is constant in
/// it and grows with each part, it allocates once.
pub fn key(form: fmt::Arguments<'_>) -> String {
    let mut key = String::with_capacity(KEY_BYTES);
    // Writing to a string does not fail.
    let _ = key.write_fmt(form);
    key
}

/// Returns the number at the end of a key, behind the last of these parts of it.
pub fn number_behind(part: &str, key: &[u8]) -> Option<u64> {
    std::str::from_utf8(key).ok()?.rsplit_once(part)?.1.parse().ok()
}
