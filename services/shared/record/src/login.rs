//! What the driver connects with: the URL, and a password from a file, which may change.

use std::path::PathBuf;

use microblog_files::{HotReload, TextFile, UnusableText, password_file};
use sqlx::any::AnyConnectOptions;
use url::Url;

/// How to connect.
// Without `Debug`: it may contain a password.
pub(crate) struct Login {
    url: Url,
    password: Option<HotReload<TextFile<String>>>,
}

impl Login {
    /// Returns the login with a URL, and with the password of a file, if there is one.
    pub(crate) fn new(url: Url, password: Option<PathBuf>) -> Result<Self, UnusableText> {
        let password = password.map(|path| HotReload::new("database", password_file(path)));
        Ok(Self { url, password: password.transpose()? })
    }

    /// Returns the URL without the password of the file.
    pub(crate) fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Returns whether the database is a file of this process (SQLite).
    pub(crate) fn is_embedded(&self) -> bool {
        self.url.scheme() == "sqlite"
    }

    /// Returns how many times [`Self::options`] have changed.
    pub(crate) fn generation(&self) -> u64 {
        self.password.as_ref().map_or(0, HotReload::generation)
    }

    /// Reads the file again, whenever that was done last.
    pub(crate) fn check_now(&self) {
        if let Some(password) = &self.password {
            password.check_now();
        }
    }

    /// Returns the options of the driver, with the last password that the file had.
    pub(crate) fn options(&self) -> Result<AnyConnectOptions, sqlx::Error> {
        let mut url = self.url.clone();
        if let Some(password) = &self.password {
            // Encodes it. Not as the part before `@`, which a URL without a host does not have.
            url.query_pairs_mut().append_pair("password", &password.current());
        }
        url.as_str().parse()
    }
}
