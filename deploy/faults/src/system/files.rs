//! Copies of data directories.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

/// A copy of some files of a directory.
pub(crate) struct Copy {
    names: Vec<String>,
    directory: TempDir,
}

impl Copy {
    /// Copies those of the named files and directories that exist.
    pub(super) fn take(from: &Path, names: &[&str]) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix("microblog-faults-copy-")?;
        let names = names.iter().map(|&name| name.to_owned()).collect();
        let copy = Self { names, directory };
        for name in &copy.names {
            copy_all(&from.join(name), copy.directory.path())?;
        }
        Ok(copy)
    }

    /// Returns whether the files differ from the copy.
    pub(crate) fn differs(&self, from: &Path) -> anyhow::Result<bool> {
        for name in &self.names {
            let mut diff = Command::new("diff");
            diff.args(["-rqN"]).args([self.directory.path().join(name), from.join(name)]);
            let status = diff.stdout(Stdio::null()).status().context("cannot run diff")?;
            if status.code() == Some(1) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Replaces the files by those of the copy. Nothing may use them.
    pub(crate) fn put_back(&self, to: &Path) -> anyhow::Result<()> {
        for name in &self.names {
            remove(&to.join(name))?;
            copy_all(&self.directory.path().join(name), to)?;
        }
        Ok(())
    }
}

/// Removes a file or a directory, if it exists.
pub(super) fn remove(path: &PathBuf) -> anyhow::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Copies a file or a directory, if it exists, with its owner.
fn copy_all(from: &Path, to: &Path) -> anyhow::Result<()> {
    if !from.exists() {
        return Ok(());
    }
    let status = Command::new("cp").arg("-a").args([from, to]).status().context("cannot run cp")?;
    ensure!(status.success(), "cannot copy {} to {}", from.display(), to.display());
    Ok(())
}
