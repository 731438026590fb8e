//! A service's Redis Functions as text: named by their digest, so that binaries of two versions
//! run side by side, and loading never replaces. Does no input or output.

use std::io::Write as _;

use redis::{Cmd, RedisWrite as _};
use sha2::{Digest as _, Sha256};

/// What every library begins with: what the functions of all services share.
const PRELUDE: &str = include_str!("prelude.lua");

/// A service's Redis Functions.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// The library's name: letters, digits and underscores.
    pub name: &'static str,
    /// Its Lua text without the `#!lua` line. Each function is registered with the version's
    /// suffix: `register('relation_follow', follow)`. It may call what `prelude.lua` defines, which
    /// stands before it.
    pub source: &'static str,
}

/// A library as it is loaded.
pub(crate) struct Composed {
    /// Its name with its digest: `relation_0a1b2c3d`.
    pub(crate) name: String,
    /// Its whole text.
    pub(crate) code: String,
    // `_0a1b2c3d`
    suffix: String,
}

impl Composed {
    pub(crate) fn new(library: Library) -> Self {
        let source = format!("{PRELUDE}{}", library.source);
        let digest = Sha256::digest(source.as_bytes());
        let suffix = format!("_{}", hex::encode(&digest[..4]));
        let name = format!("{}{suffix}", library.name);
        let code = format!("#!lua name={name}\nlocal suffix = '{suffix}'\n{source}");
        Self { name, code, suffix }
    }

    /// Writes a function's name as this version has it.
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
    use crate::Call;

    const LIBRARY: Library = Library { name: "test", source: "-- nothing\n" };

    #[test]
    fn a_library_is_named_by_its_digest() {
        let composed = Composed::new(LIBRARY);
        let digest = &hex::encode(Sha256::digest(format!("{PRELUDE}-- nothing\n")))[..8];
        assert_eq!(composed.name, format!("test_{digest}"));
        let first_lines = format!("#!lua name=test_{digest}\nlocal suffix = '_{digest}'\n");
        assert!(composed.code.starts_with(&first_lines));
        assert!(composed.code.ends_with("-- nothing\n"));
        let other = Composed::new(Library { source: "-- other\n", ..LIBRARY });
        assert_ne!(composed.name, other.name);
    }

    #[test]
    fn a_call_names_the_version_and_counts_its_keys() {
        let composed = Composed::new(LIBRARY);
        let call = Call::new("f").arg(1).key("a").arg(&[2, 3]).key("b").arg("");
        let command = call.command(&composed).get_packed_command();
        let mut expected = redis::cmd("FCALL");
        expected.arg(format!("f{}", composed.suffix)).arg(2).arg("a").arg("b");
        expected.arg(1).arg(2).arg(3).arg("");
        assert_eq!(command, expected.get_packed_command());
    }
}
