//! The data directory: its lock, the configuration of the private redis-server, and the databases
//! of the services.
//!
//! ```text
//! lock               locked by the running launcher; its process id
//! sample             exists when the demo graph is complete
//! user.sqlite        accounts and sessions, with user.sqlite-wal and -shm while it is in use
//! relation.sqlite    the follow graph, likewise
//! post.sqlite        posts, likewise
//! redis/passwords    `user password` per line, generated at the first start
//! redis/redis.conf   written at each start, like users.acl
//! redis/users.acl    the project's, with hashes of the passwords
//! redis/redis.pid    while redis-server runs
//! redis/redis.log    of this run; redis.log.old of the previous run
//! redis/appendonlydir/   the data
//! ```

use std::{
    fmt::Write as _,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::access::{Access, Passwords};

const REDIS_CONF: &str = include_str!("../../../redis/redis.conf");

/// Characters of a URL path that are not percent-encoded: the unreserved characters of RFC 3986,
/// and the slash.
const PATH_UNESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A data directory, locked for this process while the value lives.
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates the directory if it does not exist, and locks it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let named = || format!("cannot use the data directory {}", path.display());
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path.join("redis"))
            .with_context(named)?;
        let path = path.canonicalize().with_context(named)?;
        let lock = lock(&path.join("lock")).with_context(named)?;
        Ok(Self { path, _lock: lock })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file that exists when the demo graph is complete.
    pub(super) fn demo_data_mark(&self) -> PathBuf {
        self.path.join("sample")
    }

    /// Returns the database file of a service.
    pub(super) fn database(&self, service: &str) -> PathBuf {
        self.path.join(service).with_extension("sqlite")
    }

    /// Creates the database file of a service if it does not exist, readable by the owner only, and
    /// returns its URL.
    pub fn prepare_database(&self, service: &str) -> anyhow::Result<String> {
        let file = self.database(service);
        let named = || format!("cannot use {}", file.display());
        // SQLite would make it world-readable. Its -wal and -shm files get the same permissions.
        OpenOptions::new().append(true).create(true).mode(0o600).open(&file).with_context(named)?;
        let path = file.to_str().context("its name is not UTF-8").with_context(named)?;
        Ok(format!("sqlite://{}?mode=rwc", utf8_percent_encode(path, PATH_UNESCAPED)))
    }

    /// Returns redis-server's PID file.
    pub(super) fn redis_pid_file(&self) -> PathBuf {
        self.redis_file("redis.pid")
    }

    /// Returns redis-server's configuration file.
    pub(super) fn redis_conf(&self) -> PathBuf {
        self.redis_file("redis.conf")
    }

    /// Returns redis-server's log.
    pub(super) fn redis_log(&self) -> PathBuf {
        self.redis_file("redis.log")
    }

    /// Renames the previous run's log.
    pub(super) fn rotate_redis_log(&self) -> io::Result<()> {
        match fs::rename(self.redis_log(), self.redis_file("redis.log.old")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes redis-server's configuration, and returns its address and credentials.
    pub fn prepare_redis(&self, port: u16) -> anyhow::Result<Access> {
        let passwords = self.passwords().context("cannot read or write redis/passwords")?;
        write_private(&self.redis_file("users.acl"), &passwords.acl())?;
        write_private(&self.redis_conf(), &self.conf(port)?)?;
        Ok(Access { port, passwords })
    }

    fn redis_file(&self, name: &str) -> PathBuf {
        self.path.join("redis").join(name)
    }

    /// Returns the passwords of all users, and generates missing ones.
    fn passwords(&self) -> io::Result<Passwords> {
        let file = self.redis_file("passwords");
        let lines = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other?,
        };
        let passwords = Passwords::complete(&lines);
        if passwords.lines() != lines {
            write_private(&file, &passwords.lines())?;
        }
        Ok(passwords)
    }

    fn conf(&self, port: u16) -> anyhow::Result<String> {
        let mut conf = REDIS_CONF.to_owned();
        // The last of several lines for an option wins.
        writeln!(conf, "\nbind 127.0.0.1\nport {port}\ndaemonize no\nlogfile \"\"")?;
        // The configuration file's path identifies the process; a process title would hide it.
        writeln!(conf, "set-proc-title no")?;
        for (name, path) in [
            ("dir", self.path.join("redis")),
            ("aclfile", self.redis_file("users.acl")),
            ("pidfile", self.redis_pid_file()),
        ] {
            let Some(path) = path.to_str().filter(|path| !path.contains(char::is_control)) else {
                bail!("the data directory's name has characters that redis-server cannot parse");
            };
            let path = path.replace('\\', "\\\\").replace('"', "\\\"");
            writeln!(conf, "{name} \"{path}\"")?;
        }
        Ok(conf)
    }
}

fn lock(path: &Path) -> anyhow::Result<File> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder)?;
            bail!(
                "another microblog (process {}) uses this data directory: stop it, or use another \
                 --data-dir and --port-base",
                holder.trim()
            )
        }
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Atomically writes a file that only its owner may read.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let written = path.with_extension("new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&written)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(written, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_persist_between_runs() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap().passwords().unwrap();
        assert!(DataDir::open(dir.path()).unwrap().passwords().unwrap() == first);
    }

    #[test]
    fn the_database_url_escapes_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("what? a #1 100% diré");
        let data = DataDir::open(&path).unwrap();
        let address = data.prepare_database("post").unwrap();
        let end = "/what%3F%20a%20%231%20100%25%20dir%C3%A9/post.sqlite?mode=rwc";
        assert!(address.starts_with("sqlite:///") && address.ends_with(end), "{address}");
        fs::write(data.database("post"), "kept").unwrap();
        assert_eq!(data.prepare_database("post").unwrap(), address);
        assert_eq!(fs::read(data.database("post")).unwrap(), b"kept");
    }

    #[test]
    fn the_error_for_a_locked_directory_names_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();
        let error = format!("{:#}", DataDir::open(dir.path()).err().unwrap());
        assert!(error.contains(&format!("process {})", std::process::id())), "{error}");
        drop(first);
        assert!(DataDir::open(dir.path()).is_ok());
    }
}
