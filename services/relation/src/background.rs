//! Background jobs. They run in one worker thread of each replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::run_periodically;
use microblog_keyspace::Keyspace;
use microblog_storage::{Item as _, Lease, Tables, Verifier, Writer};

use crate::{deletion, graph::List, group::Steps};

/// The period of the deletion of accounts.
const PERIOD: Duration = Duration::from_secs(1);

/// Returns the background jobs. They never complete.
pub(crate) fn jobs(
    tables: &Tables,
    keyspace: &Keyspace,
    writer: &Writer<Steps>,
) -> Vec<BoxFuture<'static, ()>> {
    let verifier = Verifier::new(tables.clone(), keyspace.clone(), List::PREFIX);
    let (tables, writer) = (tables.clone(), writer.clone());
    let lease = Lease::new("deletion");
    let delete = async move || deletion::end_edges(&tables, &writer, &lease).await;
    vec![Box::pin(verifier.run()), Box::pin(run_periodically("deleting accounts", PERIOD, delete))]
}
