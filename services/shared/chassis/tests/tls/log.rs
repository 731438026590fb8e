//! Captured logs.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::{level_filters::LevelFilter, subscriber::DefaultGuard};
use tracing_subscriber::fmt::MakeWriter;

/// The log of the test's thread, which is also its runtime's.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Captures the log until the guard is dropped.
    pub(crate) fn take() -> (Self, DefaultGuard) {
        let log = Self::default();
        let lines = tracing_subscriber::fmt()
            .with_writer(log.clone())
            .with_ansi(false)
            .with_max_level(LevelFilter::DEBUG)
            .finish();
        (log, tracing::subscriber::set_default(lines))
    }

    /// Returns the lines that contain all texts.
    pub(crate) fn lines(&self, texts: &[&str]) -> Vec<String> {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = log.lines().filter(|line| texts.iter().all(|text| line.contains(text)));
        lines.map(str::to_owned).collect()
    }

    pub(crate) fn all(&self) -> String {
        self.lines(&[]).join("\n")
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
