//! Detection of the programs that the launcher starts: a recent redis-server, and setpriv if
//! available.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

/// Redis Functions require 7.0.
const MAJOR_VERSION_MIN: u32 = 7;

/// The detected programs.
#[derive(Clone, Debug)]
pub struct Software {
    redis_server: PathBuf,
    /// The version of redis-server.
    pub(super) version: String,
    /// Whether setpriv supports PR_SET_PDEATHSIG (util-linux; Linux only).
    has_setpriv: bool,
}

impl Software {
    /// Finds redis-server, at the given path or on PATH, and checks its version.
    pub fn find(path: Option<&Path>) -> anyhow::Result<Self> {
        let (redis_server, output) = match path {
            Some(path) => {
                let output =
                    version_of(path).with_context(|| format!("cannot run `{}`", path.display()))?;
                (path.to_owned(), output)
            }
            None => ["redis-server", "valkey-server"]
                .into_iter()
                .find_map(|name| Some((PathBuf::from(name), version_of(Path::new(name)).ok()?)))
                .context(
                    "redis-server not found on PATH: install Redis 7.0 or newer \
                     (for example with deploy/install-redis), or use --redis-server",
                )?,
        };
        let Some(version) = parse_version(&output) else {
            bail!("`{}` does not print its version", redis_server.display());
        };
        if major(version).is_none_or(|major| major < MAJOR_VERSION_MIN) {
            bail!(
                "`{}` is version {version}, but microblog requires {MAJOR_VERSION_MIN}.0 or newer: \
                 install one, or use --redis-server",
                redis_server.display()
            );
        }
        let version = version.to_owned();
        Ok(Self { redis_server, version, has_setpriv: has_setpriv() })
    }

    /// Returns a command that starts redis-server, [in the same way](Self::command).
    pub(super) fn redis_command(&self) -> Command {
        self.command(&self.redis_server)
    }

    /// Returns a command that starts a program which the kernel kills when the thread that started
    /// it ends, if the system supports it.
    pub fn command(&self, program: &Path) -> Command {
        if !self.has_setpriv {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]).arg(program);
        command
    }
}

fn version_of(program: &Path) -> std::io::Result<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Parses "Redis server v=7.0.15 sha=…" (and "Valkey server v=8.1.0 …").
fn parse_version(output: &str) -> Option<&str> {
    output.split_whitespace().find_map(|word| word.strip_prefix("v="))
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

fn has_setpriv() -> bool {
    // The setpriv of Busybox lacks this option, so try it.
    let tried = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "--", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_redis_and_valkey_are_parsed() {
        let redis = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64\n";
        assert_eq!(parse_version(redis), Some("7.0.15"));
        assert_eq!(major("7.0.15"), Some(7));
        assert_eq!(parse_version("Valkey server v=8.1.0 sha=0"), Some("8.1.0"));
        assert_eq!(parse_version("GNU bash, version 5.2"), None);
        assert_eq!(major("unstable"), None);
    }
}
