//! Clocks that can be set, by a library that is loaded before libc (`clock.c`).

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

use super::System;

const LIBRARY: &str = include_str!("clock.c");

/// The clock of some processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    Redis,
    /// Of all servers of this project.
    Servers,
}

impl Clock {
    /// Returns the file with its offset.
    fn file(self, directory: &Path) -> PathBuf {
        directory.join(match self {
            Self::Redis => "redis.clock",
            Self::Servers => "servers.clock",
        })
    }

    /// Sets it by an offset in seconds.
    fn set(self, directory: &Path, offset: i64) -> Result<()> {
        let mut file = fs::File::options();
        // In place: the processes have mapped it.
        let file = file.create(true).truncate(false).write(true).open(self.file(directory));
        Ok(file?.write_all(&offset.to_ne_bytes())?)
    }

    /// Returns the environment variables of processes with this clock, which is right.
    pub(super) fn prepare(self, directory: &Path) -> Result<[(String, String); 2]> {
        self.set(directory, 0)?;
        let library = directory.join("clock.so");
        // Both clocks use it, and the processes of one may have mapped it.
        if !library.exists() {
            compile(&library)?;
        }
        let (library, file) = (library.display(), self.file(directory));
        Ok([
            ("LD_PRELOAD".to_owned(), library.to_string()),
            ("MICROBLOG_CLOCK_FILE".to_owned(), file.display().to_string()),
        ])
    }
}

fn compile(to: &Path) -> Result<()> {
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-x", "c", "-", "-o"]).arg(to);
    let mut compiler = compiler.stdin(Stdio::piped()).spawn().context("cannot run cc")?;
    let mut input = compiler.stdin.take().context("cc has no input")?;
    input.write_all(LIBRARY.as_bytes())?;
    drop(input);
    ensure!(compiler.wait()?.success(), "cc cannot compile clock.c");
    Ok(())
}

impl System {
    /// Sets a clock by an offset in seconds.
    pub(crate) fn set_clock(&self, clock: Clock, offset: i64) -> Result<()> {
        clock.set(self.directory.path(), offset)?;
        if clock == Clock::Servers {
            let file = clock.file(self.directory.path()).display().to_string();
            for server in &self.servers {
                let maps = fs::read_to_string(format!("/proc/{}/maps", server.process_id()?))?;
                ensure!(maps.contains(&file), "{} has another clock", server.name);
            }
        }
        Ok(())
    }
}
