//! What the driver connects with: the URL, and a password that is read from its file for each new
//! connection.

use std::path::PathBuf;

use microblog_files::{Loader as _, TextFile, UnusableText};
use sqlx::any::AnyConnectOptions;
use url::Url;

/// A token of a cloud has some kilobytes.
const PASSWORD_BYTES_MAX: u64 = 64 << 10;

/// How to connect.
// Without `Debug`: it may contain a password.
pub(crate) struct Login {
    url: Url,
    password: Option<TextFile<String>>,
}

impl Login {
    /// Returns the login with a URL, and with the password of a file, if there is one.
    pub(crate) fn new(url: Url, password_file: Option<PathBuf>) -> Self {
        let password = password_file.map(|path| TextFile {
            path,
            bytes_max: PASSWORD_BYTES_MAX,
            parse: parse_password,
        });
        Self { url, password }
    }

    /// Returns the URL without the password of the file.
    pub(crate) fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Returns whether the database is a file of this process (SQLite).
    pub(crate) fn is_embedded(&self) -> bool {
        self.url.scheme() == "sqlite"
    }

    /// Returns whether [`Self::options`] change with a file.
    pub(crate) fn has_password_file(&self) -> bool {
        self.password.is_some()
    }

    /// Returns the options of the driver, with the password that is in the file now.
    pub(crate) fn options(&self) -> Result<AnyConnectOptions, LoginError> {
        let mut url = self.url.clone();
        if let Some(file) = &self.password {
            let password = file.build(&file.read()?)?;
            // Encodes it. Not as the part before `@`, which a URL without a host does not have.
            url.query_pairs_mut().append_pair("password", &password);
        }
        url.as_str().parse().map_err(LoginError::Address)
    }
}

/// Why there are no options of the driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoginError {
    /// The file with the password is unreadable or empty.
    #[error(transparent)]
    Password(#[from] UnusableText),
    /// The driver rejects the URL.
    #[error("the database's address is not valid")]
    Address(#[source] sqlx::Error),
}

/// Returns the text up to its last newline.
fn parse_password(text: &str) -> Result<String, String> {
    let password = text.strip_suffix('\n').unwrap_or(text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    match password.is_empty() {
        true => Err("the file is empty".to_owned()),
        false => Ok(password.to_owned()),
    }
}
