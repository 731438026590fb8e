//! Where PostgreSQL is on this machine, and as whom it can run.

use std::{
    env,
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

use nix::unistd::{User, geteuid};

const HELP: &str = "(see deploy/install-postgresql)";

/// Debian and Ubuntu keep the programs of each version here, and off the PATH.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The programs of one version.
#[derive(Clone)]
pub(super) struct Installation {
    programs: PathBuf,
    /// As whom they run; none if as the test does.
    pub(super) account: Option<Account>,
}

/// Whom a process runs as.
#[derive(Clone, Copy)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Installation {
    /// Returns the first one on the PATH, or else the newest one of Debian's packages.
    ///
    /// # Panics
    /// Where there is none.
    pub(super) fn find() -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let programs = env::split_paths(&path)
            .chain(versions())
            .find(|dir| ["initdb", "postgres"].iter().all(|program| dir.join(program).is_file()));
        let Some(programs) = programs else {
            panic!(
                "these tests need PostgreSQL's `initdb` and `postgres` in PATH or in \
                 {VERSIONS}/*/bin {HELP}"
            );
        };
        Self { programs, account: Account::find() }
    }

    /// Returns the path of one of its programs.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }
}

impl Account {
    // PostgreSQL refuses to run as root.
    fn find() -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        let user = User::from_name("postgres").expect("read who there is");
        let Some(user) = user else {
            panic!("these tests, run as root, need a user `postgres` to run PostgreSQL as {HELP}");
        };
        Some(Self { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
    }

    /// Gives a file or directory to it.
    pub(super) fn own(self, path: &Path) {
        chown(path, Some(self.uid), Some(self.gid)).expect("give a directory away");
    }
}

// Returns the directories of the programs of each version, the newest first.
fn versions() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let version = |dir: &Path| dir.file_name()?.to_str()?.parse::<f32>().ok();
    let numbered = entries.map(|entry| entry.path()).filter_map(|dir| Some((version(&dir)?, dir)));
    let mut versions: Vec<(f32, PathBuf)> = numbered.collect();
    versions.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    versions.into_iter().map(|(_, dir)| dir.join("bin")).collect()
}
