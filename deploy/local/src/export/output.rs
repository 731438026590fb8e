//! The destination of an export: standard output, or a file that is replaced atomically.

use std::{
    fs,
    io::{self, BufWriter, StdoutLock, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use tempfile::NamedTempFile;

/// The destination of an export.
pub(super) enum Output {
    /// Standard output.
    Stdout(BufWriter<StdoutLock<'static>>),
    /// A temporary file, which `finish` renames to the destination. Dropping it deletes it.
    File(BufWriter<NamedTempFile>, PathBuf),
}

impl Output {
    /// Opens a file, or standard output if none is given.
    pub(super) fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(file) = file else {
            return Ok(Self::Stdout(BufWriter::new(io::stdout().lock())));
        };
        let temporary = temporary(file).with_context(|| cannot_write(file))?;
        Ok(Self::File(BufWriter::new(temporary), file.to_owned()))
    }

    /// Writes bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout(written) => written.write_all(bytes),
            Self::File(written, _) => written.write_all(bytes),
        }
    }

    /// Flushes the output. Renames a file to its destination.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Stdout(mut written) => written.flush().context("cannot write the export"),
            Self::File(written, destination) => {
                persist(written, &destination).with_context(|| cannot_write(&destination))
            }
        }
    }
}

/// Creates a file beside the destination, readable by the owner only: it has personal data.
fn temporary(destination: &Path) -> anyhow::Result<NamedTempFile> {
    // The rename would replace a device.
    if fs::metadata(destination).is_ok_and(|found| !found.is_file()) {
        bail!("it exists and is not a regular file");
    }
    let parent = destination.parent().context("the path has no file name")?;
    Ok(NamedTempFile::new_in(parent)?)
}

fn persist(written: BufWriter<NamedTempFile>, destination: &Path) -> io::Result<()> {
    let file = written.into_inner()?;
    file.as_file().sync_all()?;
    file.persist(destination)?;
    Ok(())
}

fn cannot_write(file: &Path) -> String {
    format!("cannot write {}", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_atomically() {
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
    fn special_files_are_not_replaced() {
        let error = |path| format!("{:#}", Output::open(Some(Path::new(path))).err().unwrap());
        assert!(error("/dev/null").contains("not a regular file"));
        assert!(error("/").contains("not a regular file"));
        assert!(error("/no/such/place").contains("cannot write /no/such/place: No such file"));
    }
}
