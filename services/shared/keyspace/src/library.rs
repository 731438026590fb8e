//! Function libraries (Redis Functions). Names contain the digest of the source, so that two
//! versions run side by side and loading replaces nothing. Does no I/O.

use std::{
    io::Write as _,
    ptr,
    sync::{Arc, Mutex},
};

use redis::{Cmd, RedisWrite as _};
use sha2::{Digest as _, Sha256};

use crate::lock::lock;

/// The Lua code that precedes every library.
const PRELUDE: &str = concat!(include_str!("prelude.lua"), "\n");

/// A service's Redis Functions.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// The library's name: letters, digits and underscores.
    pub name: &'static str,
    /// The Lua source without the `#!lua` line. It may call what `prelude.lua` defines, such as
    /// `register('tl_forget', forget)`, which registers a function with the version suffix.
    pub source: &'static str,
}

/// A library with its version, as loaded into Redis.
pub(crate) struct VersionedLibrary {
    /// The name with the digest: `post_0a1b2c3d`.
    pub(crate) name: String,
    /// The complete source.
    pub(crate) code: String,
    // `_0a1b2c3d`
    suffix: String,
}

/// The libraries of this process.
static KNOWN: Mutex<Vec<(Library, Arc<VersionedLibrary>)>> = Mutex::new(Vec::new());

impl VersionedLibrary {
    /// Returns a library with its version, of which it computes the digest once.
    pub(crate) fn of(library: Library) -> Arc<Self> {
        let mut known = lock(&KNOWN);
        let is_it =
            |(of, _): &&(Library, _)| of.name == library.name && ptr::eq(of.source, library.source);
        if let Some((_, versioned)) = known.iter().find(is_it) {
            return versioned.clone();
        }
        let versioned = Arc::new(Self::new(library));
        known.push((library, versioned.clone()));
        versioned
    }

    fn new(library: Library) -> Self {
        let source = format!("{PRELUDE}{}", library.source);
        // Function names are global to a server, and several services have the same source.
        let digest = Sha256::digest(format!("{}\n{source}", library.name));
        let suffix = format!("_{}", hex::encode(&digest[..4]));
        let name = format!("{}{suffix}", library.name);
        let code = format!("#!lua name={name}\nlocal suffix = '{suffix}'\n{source}");
        Self { name, code, suffix }
    }

    /// Writes a function name with the version suffix.
    pub(crate) fn write_function(&self, function: &str, command: &mut Cmd) {
        let mut writer = command.writer_for_next_arg();
        // Writing into memory cannot fail.
        let _ = writer.write_all(function.as_bytes());
        let _ = writer.write_all(self.suffix.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: Library = Library { name: "test", source: "-- nothing\n" };

    #[test]
    fn a_library_is_versioned_once() {
        let again = VersionedLibrary::of(LIBRARY);
        assert!(Arc::ptr_eq(&VersionedLibrary::of(LIBRARY), &again));
        let other = VersionedLibrary::of(Library { source: "-- other\n", ..LIBRARY });
        assert_ne!(other.name, again.name);
    }

    #[test]
    fn library_name_contains_its_digest() {
        let library = VersionedLibrary::new(LIBRARY);
        let digest = &hex::encode(Sha256::digest(format!("test\n{PRELUDE}-- nothing\n")))[..8];
        assert_eq!(library.name, format!("test_{digest}"));
        let first_lines = format!("#!lua name=test_{digest}\nlocal suffix = '_{digest}'\n");
        assert!(library.code.starts_with(&first_lines));
        assert!(library.code.ends_with("-- nothing\n"));
        let other = VersionedLibrary::new(Library { source: "-- other\n", ..LIBRARY });
        assert_ne!(library.name, other.name);
    }
}
