//! A small text file, and the value that is parsed from it.

use std::{fs, io, io::Read as _, path::PathBuf};

use crate::hot_reload::Loader;

/// A text file that is loaded as a whole.
pub struct TextFile<T> {
    /// The path.
    pub path: PathBuf,
    /// The size of the largest file.
    pub bytes_max: u64,
    /// Returns the value of a text, or its problem, without secrets.
    pub parse: fn(&str) -> Result<T, String>,
}

/// The file that is unusable, for the log. clap names it itself.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be used", file.display())]
pub struct UnusableText {
    file: PathBuf,
    /// Why.
    #[source]
    pub problem: TextFileError,
}

/// Why a text file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum TextFileError {
    // Includes its cause: clap shows only this line for an invalid flag.
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    Unreadable(io::Error),
    /// The content is invalid. Names the place, without secrets.
    #[error("{0}")]
    Invalid(String),
}

impl<T> Loader for TextFile<T> {
    type Snapshot = String;
    type Value = T;
    type Error = UnusableText;

    fn read(&self) -> Result<String, UnusableText> {
        let read = || {
            let mut text = String::new();
            let file = fs::File::open(&self.path)?;
            let size = file.take(self.bytes_max + 1).read_to_string(&mut text)?;
            if size as u64 > self.bytes_max {
                return Err(io::Error::other(format!("larger than {} bytes", self.bytes_max)));
            }
            Ok(text)
        };
        read().map_err(|error| self.unusable(TextFileError::Unreadable(error)))
    }

    fn build(&self, text: &String) -> Result<T, UnusableText> {
        (self.parse)(text).map_err(|problem| self.unusable(TextFileError::Invalid(problem)))
    }
}

impl<T> TextFile<T> {
    fn unusable(&self, problem: TextFileError) -> UnusableText {
        UnusableText { file: self.path.clone(), problem }
    }
}
