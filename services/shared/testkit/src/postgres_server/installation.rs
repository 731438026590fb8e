//! Finds the PostgreSQL programs of this machine and the account that runs them.

use std::{
    env,
    os::unix::fs,
    path::{Path, PathBuf},
};

use nix::unistd::{User, geteuid};

const INSTALL_HINT: &str = "(see deploy/install-postgresql)";

/// Where Debian and Ubuntu install the programs of each version, outside PATH.
const DEBIAN_DIR: &str = "/usr/lib/postgresql";

/// The programs of one PostgreSQL version.
#[derive(Clone)]
pub(super) struct Installation {
    programs: PathBuf,
    /// The account that runs them; `None` for the account of the test.
    pub(super) account: Option<Account>,
}

/// A Unix account.
#[derive(Clone, Copy)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Installation {
    /// Returns the programs on PATH, or else those of the newest Debian package.
    ///
    /// # Panics
    /// If there are none.
    pub(super) fn find() -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let programs = env::split_paths(&path).chain(versions()).find(|dir| {
            ["initdb", "postgres", "psql"].iter().all(|program| dir.join(program).is_file())
        });
        let Some(programs) = programs else {
            panic!(
                "these tests need PostgreSQL's `initdb`, `postgres` and `psql` in PATH or in \
                 {DEBIAN_DIR}/*/bin {INSTALL_HINT}"
            );
        };
        Self { programs, account: Account::find() }
    }

    /// Returns the path of a program.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }
}

impl Account {
    // PostgreSQL does not run as root.
    fn find() -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        let user = User::from_name("postgres").expect("look up the user");
        let Some(user) = user else {
            panic!(
                "these tests, run as root, need a user `postgres` to run PostgreSQL as {INSTALL_HINT}"
            );
        };
        Some(Self { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
    }

    /// Makes the account the owner of a file or directory.
    pub(super) fn chown(self, path: &Path) {
        fs::chown(path, Some(self.uid), Some(self.gid)).expect("change the owner");
    }
}

// Returns the program directories of all versions, newest first.
fn versions() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(DEBIAN_DIR).into_iter().flatten().flatten();
    let version = |dir: &Path| dir.file_name()?.to_str()?.parse::<f32>().ok();
    let numbered = entries.map(|entry| entry.path()).filter_map(|dir| Some((version(&dir)?, dir)));
    let mut versions: Vec<(f32, PathBuf)> = numbered.collect();
    versions.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    versions.into_iter().map(|(_, dir)| dir.join("bin")).collect()
}
