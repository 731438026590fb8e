//! Locations of the programs of one version.

use std::path::{Path, PathBuf};

/// The programs of one version.
pub(crate) struct Programs(PathBuf);

impl Programs {
    /// Returns the programs that were built with this test.
    pub(crate) fn built() -> Self {
        let microblog = Path::new(env!("CARGO_BIN_EXE_microblog"));
        Self::in_directory(microblog.parent().unwrap())
    }

    /// Returns the programs in a directory.
    pub(crate) fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Returns the program of a service.
    pub(crate) fn server(&self, service: &str) -> String {
        self.program(&format!("microblog-{service}"))
    }

    /// Returns a program.
    pub(crate) fn program(&self, name: &str) -> String {
        let program = self.0.join(name);
        assert!(
            program.is_file(),
            "{} not found: run `cargo build --workspace --bins`",
            program.display()
        );
        program.to_str().unwrap().to_owned()
    }
}
