//! Background jobs. They run in one worker thread of each replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::run_periodically;
use microblog_keyspace::Keyspace;
use microblog_storage::{Item as _, Lease, Tables, Verifier};

use crate::{expiry, items::AccountItem};

/// The period of the removal of what has expired.
const PERIOD: Duration = Duration::from_secs(60);

/// Returns the background jobs. They never complete.
pub(crate) fn jobs(tables: &Tables, keyspace: &Keyspace) -> Vec<BoxFuture<'static, ()>> {
    let verifier = Verifier::new(tables.clone(), keyspace.clone(), AccountItem::PREFIX);
    let (tables, lease) = (tables.clone(), Lease::new("expiry"));
    let remove = async move || expiry::remove_expired(&tables, &lease).await;
    vec![
        Box::pin(verifier.run()),
        Box::pin(run_periodically("removing expired rows", PERIOD, remove)),
    ]
}
