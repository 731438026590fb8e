//! Where an export goes: to standard output, or to a file that is there once it is complete.
//! Knows nothing of what is in it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, StdoutLock, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context as _, bail};

/// Where lines are written to.
pub(super) enum Output {
    /// Standard output.
    Stdout(BufWriter<StdoutLock<'static>>),
    /// A file.
    File(Unfinished),
}

/// A file that is not in its place yet. Dropping it removes it.
pub(super) struct Unfinished {
    written: BufWriter<File>,
    path: PathBuf,
    destination: PathBuf,
}

impl Output {
    /// Opens a file, or standard output where none is given.
    pub(super) fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(file) = file else {
            return Ok(Self::Stdout(BufWriter::new(io::stdout().lock())));
        };
        let named = || format!("cannot write {}", file.display());
        Ok(Self::File(Unfinished::open(file).with_context(named)?))
    }

    /// Writes something.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout(written) => written.write_all(bytes),
            Self::File(Unfinished { written, .. }) => written.write_all(bytes),
        }
    }

    /// Ends it: a file is in its place then, in place of what was there.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Stdout(mut written) => written.flush().context("cannot write the export"),
            Self::File(mut file) => {
                file.put().with_context(|| format!("cannot write {}", file.destination.display()))
            }
        }
    }
}

impl Unfinished {
    fn open(destination: &Path) -> anyhow::Result<Self> {
        // What is there will be replaced, which must be no device.
        if fs::metadata(destination).is_ok_and(|found| !found.is_file()) {
            bail!("there is something that is no file");
        }
        let mut name = destination.file_name().context("it is not the name of a file")?.to_owned();
        name.push(format!(".{}.unfinished", process::id()));
        let path = destination.with_file_name(name);
        // It is about one person, and for that one alone.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { written: BufWriter::new(file), path, destination: destination.to_owned() })
    }

    fn put(&mut self) -> io::Result<()> {
        self.written.flush()?;
        self.written.get_ref().sync_all()?;
        fs::rename(&self.path, &self.destination)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // It is not there any more where it is in its place.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("export");
        fs::write(&file, "old").unwrap();
        let mut output = Output::open(Some(&file)).unwrap();
        output.write(b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"old");
        drop(output);
        assert_eq!(fs::read(&file).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        let mut output = Output::open(Some(&file)).unwrap();
        output.write(b"new").unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_not_replaced() {
        let error = |path| format!("{:#}", Output::open(Some(Path::new(path))).err().unwrap());
        assert!(error("/dev/null").contains("something that is no file"));
        assert!(error("/").contains("something that is no file"));
        assert!(error("/no/such/place").contains("cannot write /no/such/place: No such file"));
    }
}
