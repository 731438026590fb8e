//! Background jobs. They run in one worker thread of each replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::run_periodically;
use microblog_keyspace::Keyspace;
use microblog_record::sql::number;
use microblog_storage::{Item as _, Lease, Tables, Verifier, Writer, transaction::database_now_ms};

use crate::{
    deletion,
    delivery::{Delivery, UNDELIVERED_AFTER},
    error::Error,
    group::Calls,
    items::PostItem,
    metrics::DeletionMetrics,
    steps::REQUEST_KEPT_MS,
};

/// The period of most jobs.
const PERIOD: Duration = Duration::from_secs(1);

// A killed replica may have had the lease.
const _: () = assert!(
    UNDELIVERED_AFTER.as_secs() + PERIOD.as_secs() + Lease::DURATION.as_secs() < 10,
    "guarantee 3: another replica delivers within ten seconds"
);

/// How often what calls have delivered is noted in the database.
const NOTE_PERIOD: Duration = Duration::from_millis(200);

/// How often requests that are not known any more are removed, and how many at once.
const EXPIRY_PERIOD: Duration = Duration::from_secs(10);
const EXPIRED_MAX: usize = 5_000;

/// Returns the background jobs. They never complete.
pub(crate) fn jobs(
    tables: &Tables,
    keyspace: &Keyspace,
    writer: Writer<Calls>,
    delivery: &Delivery,
) -> Vec<BoxFuture<'static, ()>> {
    let verifier = Verifier::new(tables.clone(), keyspace.clone(), PostItem::PREFIX);
    let (of_deletion, of_expiry) = (tables.clone(), tables.clone());
    let (deliverer, lease) = (delivery.clone(), Lease::new("delivery"));
    let deliver = async move || {
        let delivered = deliverer.deliver_rest(&lease).await;
        deliverer.measure().await?;
        delivered
    };
    let lease = Lease::new("deletion");
    let metrics = DeletionMetrics::new();
    let delete = async move || deletion::delete_rest(&of_deletion, &writer, &lease, &metrics).await;
    let (lease, old) = (Lease::new("expiry"), delivery.clone());
    let expire = async move || {
        if lease.take(of_expiry.database().await?).await? {
            remove_requests(&of_expiry, &lease).await?;
            old.remove_old().await?;
        }
        Ok::<_, Error>(())
    };
    vec![
        Box::pin(verifier.run()),
        Box::pin(run_periodically("delivering posts", PERIOD, deliver)),
        Box::pin(run_periodically("deleting", PERIOD, delete)),
        Box::pin(run_periodically("removing old rows", EXPIRY_PERIOD, expire)),
    ]
}

/// Returns the job of each worker thread.
pub(crate) fn job(delivery: &Delivery) -> BoxFuture<'static, ()> {
    let delivery = delivery.clone();
    let note = async move || delivery.note_delivered().await;
    Box::pin(run_periodically("noting deliveries", NOTE_PERIOD, note))
}

async fn remove_requests(tables: &Tables, lease: &Lease) -> Result<(), Error> {
    let database = tables.database().await?;
    let made = database_now_ms(database).await?.saturating_sub(REQUEST_KEPT_MS);
    // A range, so that one which was used again meanwhile is looked at again.
    let least = if database.is_embedded() { "min" } else { "least" };
    let text = format!(
        "DELETE FROM requests WHERE made < {least}($1, \
         COALESCE((SELECT made FROM requests ORDER BY made LIMIT 1 OFFSET {EXPIRED_MAX}), $1))"
    );
    while lease.take(database).await? {
        let remove = microblog_record::sql::statement(text.clone()).bind(number(made));
        let remove = async { Ok(remove.execute(database.writers()).await?.rows_affected()) };
        if database.write("DELETE requests", remove).await? == 0 {
            break;
        }
    }
    Ok(())
}
