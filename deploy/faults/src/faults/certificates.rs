//! Certificates and identity keys that are replaced, or not in time.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::sleep;

use crate::{
    system::{Certificates, Equipment, Setup, StoreKind, identity_key},
    trial::{Bite, Fault, Trial},
};

/// Servers read changed files within a second of their use, and identity keys within ten.
const READ: Duration = Duration::from_secs(3);
const KEYS_READ: Duration = Duration::from_secs(12);
/// Calls that fail meanwhile.
const FAILED: usize = 20;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    let setups = || vec![Setup::separate(StoreKind::Single).with(Equipment::Tls)];
    vec![
        Fault::new(
            "certificates-rolled",
            "all servers get certificates of a new authority, and the old one is removed",
            "files that were read again",
            setups(),
            |trial| Box::pin(rolled(trial)),
        ),
        Fault::new(
            "certificates-expired",
            "the certificates of all servers expire, and are renewed later",
            "failed calls",
            setups(),
            |trial| Box::pin(expired(trial)),
        ),
        Fault::new(
            "identity-keys-rolled",
            "the key that signs identities is replaced by a new one in three steps",
            "files that were read again",
            setups(),
            |trial| Box::pin(identity_keys_rolled(trial)),
        ),
    ]
}

/// A new authority is trusted, signs all certificates, and is at last the only one.
async fn rolled(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    certificates(trial)?.add_authority()?;
    reconnect(trial).await;
    certificates(trial)?.renew()?;
    reconnect(trial).await;
    certificates(trial)?.remove_old_authorities()?;
    reconnect(trial).await;
    Ok(reloads(trial, since))
}

/// The certificates of new connections have expired for some time.
async fn expired(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    certificates(trial)?.expire();
    sleep(READ).await;
    trial.system.close_connections();
    trial.load.unknown(FAILED, since).await;
    certificates(trial)?.renew()?;
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    Ok(Bite::Seen(format!("{unknown} unknown outcomes")))
}

/// As operators replace them: all servers verify with the new key before one signs with it.
async fn identity_keys_rolled(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let certificates = certificates(trial)?;
    let old = certificates.identity_keys()?.remove(0);
    let new = identity_key();
    for keys in [&[old.clone(), new.clone()][..], &[new.clone(), old], &[new]] {
        certificates.write_identity_keys(keys);
        sleep(KEYS_READ).await;
    }
    trial.after().await;
    Ok(reloads(trial, since))
}

/// Lets all servers connect again with the files as they are now.
async fn reconnect(trial: &Trial) {
    sleep(READ).await;
    trial.system.close_connections();
    trial.after().await;
}

fn reloads(trial: &Trial, since: usize) -> Bite {
    let (reloads, unknown) =
        (trial.system.logged("files reloaded"), trial.load.shared.log.unknown(since));
    Bite::seen_if(reloads > 0, format!("{reloads} reloads of files, {unknown} unknown outcomes"))
}

fn certificates(trial: &Trial) -> Result<&Certificates> {
    trial.system.certificates.as_ref().context("the setup has no TLS")
}
