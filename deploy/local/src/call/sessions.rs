//! The session tokens of this person, by the URL of the gateway, in a file that nobody else may read.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, DirBuilder},
    io::{ErrorKind, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use tempfile::NamedTempFile;

const NAME: &str = "microblog/sessions.json";

/// Tokens by URLs.
type Tokens = BTreeMap<String, String>;

/// Returns the token of a gateway.
pub(super) fn token(url: &str) -> anyhow::Result<Option<String>> {
    // Without a home directory, nothing can be stored.
    let Some(file) = file() else { return Ok(None) };
    Ok(read(&file)?.remove(key(url)))
}

/// Stores or removes the token of a gateway.
pub(super) fn store(url: &str, token: Option<&str>) -> anyhow::Result<()> {
    let file = file().context("neither XDG_STATE_HOME nor HOME is set")?;
    let mut tokens = read(&file)?;
    match token {
        Some(token) => tokens.insert(key(url).to_owned(), token.to_owned()),
        None => tokens.remove(key(url)),
    };
    write(&file, &tokens).with_context(|| format!("cannot write {}", file.display()))
}

fn key(url: &str) -> &str {
    url.trim_end_matches('/')
}

/// Returns the file by the XDG Base Directory Specification, which ignores relative paths.
fn file() -> Option<PathBuf> {
    let given = env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let by_default = || env::home_dir().map(|home| home.join(".local/state"));
    let is_absolute = |path: &PathBuf| path.is_absolute();
    given.filter(is_absolute).or_else(by_default).filter(is_absolute).map(|state| state.join(NAME))
}

fn read(file: &Path) -> anyhow::Result<Tokens> {
    let text = match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Tokens::new()),
        text => text.with_context(|| format!("cannot read {}", file.display()))?,
    };
    serde_json::from_slice(&text)
        .with_context(|| format!("{} is damaged: remove it and log in again", file.display()))
}

/// Replaces the file atomically. Temporary files have the mode 600, and the new file keeps it.
fn write(file: &Path, tokens: &Tokens) -> anyhow::Result<()> {
    let directory = file.parent().context("it has no directory")?;
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut written = NamedTempFile::new_in(directory)?;
    serde_json::to_writer_pretty(&mut written, tokens)?;
    written.write_all(b"\n")?;
    written.as_file().sync_all()?;
    written.persist(file)?;
    Ok(())
}
