//! The destination of an export: standard output, or a file that is replaced atomically.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, StdoutLock, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context as _, bail};

/// The destination of an export.
pub(super) enum Output {
    /// Standard output.
    Stdout(BufWriter<StdoutLock<'static>>),
    /// A file.
    File(AtomicFile),
}

/// A temporary file that `finish` renames to the destination. Dropping it deletes it.
pub(super) struct AtomicFile {
    written: BufWriter<File>,
    path: PathBuf,
    destination: PathBuf,
}

impl Output {
    /// Opens a file, or standard output if none is given.
    pub(super) fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(file) = file else {
            return Ok(Self::Stdout(BufWriter::new(io::stdout().lock())));
        };
        let named = || format!("cannot write {}", file.display());
        Ok(Self::File(AtomicFile::open(file).with_context(named)?))
    }

    /// Writes bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout(written) => written.write_all(bytes),
            Self::File(AtomicFile { written, .. }) => written.write_all(bytes),
        }
    }

    /// Flushes the output. Renames a file to its destination.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Stdout(mut written) => written.flush().context("cannot write the export"),
            Self::File(mut file) => file
                .commit()
                .with_context(|| format!("cannot write {}", file.destination.display())),
        }
    }
}

impl AtomicFile {
    fn open(destination: &Path) -> anyhow::Result<Self> {
        // The rename would replace a device.
        if fs::metadata(destination).is_ok_and(|found| !found.is_file()) {
            bail!("it exists and is not a regular file");
        }
        let mut name = destination.file_name().context("the path has no file name")?.to_owned();
        name.push(format!(".{}.unfinished", process::id()));
        let path = destination.with_file_name(name);
        // Personal data: readable by the owner only.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { written: BufWriter::new(file), path, destination: destination.to_owned() })
    }

    fn commit(&mut self) -> io::Result<()> {
        self.written.flush()?;
        self.written.get_ref().sync_all()?;
        fs::rename(&self.path, &self.destination)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        // Fails after the rename.
        let _ = fs::remove_file(&self.path);
    }
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
