//! Removal of the tombstones of deleted posts from Redis, once they are a day old and the archive
//! does not have the posts any more. Until then, they keep what the archive has from being shown or
//! restored. A database that was restored from a copy of the last day gets them again; with
//! `--evict-after-backup`, from a copy of the last day before the last backup.

use std::time::{Duration, SystemTime};

use crate::{
    archive::{Archive, Config},
    error::Error,
    store::Store,
};

/// How long tombstones stay.
const TOMBSTONE_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The most posts of one query.
const PAGE: usize = 500;

/// Removes tombstones that are not needed any more.
pub(crate) async fn remove_tombstones(
    store: &Store,
    archive: &Archive,
    config: &Config,
) -> Result<(), Error> {
    let mut until = SystemTime::now();
    if config.evict_after_backup {
        until = until.min(archive.backed_up_until().await?);
    }
    let before = until.checked_sub(TOMBSTONE_TTL).unwrap_or(SystemTime::UNIX_EPOCH);
    for ids in store.old_tombstones(before).await?.chunks(PAGE) {
        let existing = archive.existing(ids).await?;
        let gone: Vec<_> = ids.iter().copied().filter(|id| !existing.contains(id)).collect();
        store.remove_tombstones(&gone).await?;
    }
    Ok(())
}
