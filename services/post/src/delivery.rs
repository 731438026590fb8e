//! Delivery of posts to the timeline service. A post is noted as undelivered in the transaction that makes
//! it, until the timeline service has accepted it. A job delivers those which a call could not.
//!
//! New posts go through a [queue](Queue), one for each worker. Up to
//! [`CALLS_MAX`](queue::CALLS_MAX) calls are in flight, and each takes up to [`BATCH_MAX`] queued
//! posts. With few callers, each post has its own call at once; with many, a post waits for a call
//! or two.

mod queue;

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use microblog_chassis::{Peer, context, status};
use microblog_domain::{Partition, PostId, Stamp};
use microblog_proto::timeline::{self, TimelineServicePeer};
use microblog_record::{
    Database, number_rows,
    sql::{number, read, statement},
};
use microblog_storage::{Lease, Tables, transaction::database_now_ms};
use sqlx::any::AnyRow;
use tokio::{sync::Semaphore, time::timeout};
use tonic::Status;

use crate::{error::Error, group::end_delivery_text, metrics::DeliveryMetrics, post::Content};
use queue::{BATCH_MAX, Batch, Queue};

/// How long a caller waits for the delivery of its post, and a call for its answer. The job delivers the
/// post after that.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// The most callers of a worker that wait for a delivery while the timeline service is
/// unresponsive. The job delivers the posts of the others. Waiting callers must not use up the
/// slots of readers.
const WAITING_CALLERS_MAX: usize = 64;

/// The timeout of a call by the job.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// When the job delivers a post: its call has ended by then.
pub(crate) const UNDELIVERED_AFTER: Duration = Duration::from_secs(3);

/// How old the posts are, at most, that are delivered again.
const REDELIVERED_MAX: Duration = Duration::from_secs(3_600);

/// Delivers posts.
#[derive(Clone)]
pub(crate) struct Delivery {
    tables: Tables,
    timeline: Option<TimelineServicePeer<Peer>>,
    queue: Arc<Queue>,
    attempts: Arc<Semaphore>,
    /// Posts that are still noted as undelivered.
    delivered: Arc<Mutex<Vec<PostId>>>,
    metrics: DeliveryMetrics,
}

impl Delivery {
    /// Returns a delivery to a timeline service. Without one, all posts count as delivered.
    pub(crate) fn new(tables: Tables, timeline: Option<Peer>) -> Self {
        let (queue, attempts) = (Arc::default(), Arc::new(Semaphore::new(WAITING_CALLERS_MAX)));
        let timeline = timeline.map(TimelineServicePeer::new);
        let (delivered, metrics) = (Arc::default(), DeliveryMetrics::new());
        Self { tables, timeline, queue, attempts, delivered, metrics }
    }

    /// Delivers a new post within [`ATTEMPT_TIMEOUT`]. While the timeline service is unresponsive,
    /// only [`WAITING_CALLERS_MAX`] callers wait for it. The job delivers what is left.
    pub(crate) async fn attempt(&self, id: PostId, content: &Content) {
        let is_waiting = self.timeline.is_some() && self.queue.is_unresponsive();
        let permit = is_waiting.then(|| self.attempts.try_acquire());
        if matches!(permit, Some(Err(_))) {
            return;
        }
        let (done, dispatcher) = self.queue.add(delivery(id, content));
        if let Some(mut dispatcher) = dispatcher {
            let delivery = self.clone();
            tokio::spawn(async move {
                while let Some(batch) = dispatcher.next() {
                    delivery.deliver_batch(batch).await;
                }
            });
        }
        if timeout(ATTEMPT_TIMEOUT, done).await.is_err() {
            tracing::debug!("delivery timed out; it is repeated");
        }
    }

    // Dropping the batch resumes its callers, whatever the result.
    async fn deliver_batch(&self, batch: Batch) {
        let Some(context) = batch.context() else { return };
        let work = self.deliver_bisecting(batch.deliveries(), ATTEMPT_TIMEOUT);
        if let Err(error) = context.run(work).await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "delivery failed; it is repeated");
        }
    }

    /// Delivers the posts that calls have not delivered, if this replica is the one that does. A rejected
    /// post does not stop the others; an outage does. Returns the first failure.
    pub(crate) async fn deliver_rest(&self, lease: &Lease) -> Result<(), Error> {
        let database = self.tables.database().await?;
        let (mut after, mut outcome) = (0, Ok(()));
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(database_now_ms(database).await?);
        let before = first_at(now - UNDELIVERED_AFTER);
        while lease.take(database).await? {
            let Undelivered { deliveries, gone, last } =
                undelivered(database, after, before).await?;
            let Some(last) = last else {
                match note_redelivered(database).await? {
                    true => after = 0,
                    false => break,
                }
                continue;
            };
            after = last;
            end_delivery(database, gone.into_iter()).await?;
            let delivered = self.deliver_bisecting(deliveries, CALL_TIMEOUT).await;
            let is_outage = delivered.as_ref().is_err_and(is_outage);
            outcome = outcome.and(delivered);
            self.note_delivered().await?;
            if is_outage {
                // It may be this replica that cannot reach the timelines.
                lease.give_back(database).await?;
                break;
            }
        }
        outcome
    }

    /// Notes in the database what calls have delivered.
    pub(crate) async fn note_delivered(&self) -> Result<(), Error> {
        let delivered =
            mem::take(&mut *self.delivered.lock().unwrap_or_else(PoisonError::into_inner));
        if delivered.is_empty() {
            return Ok(());
        }
        let database = self.tables.database().await?;
        let is_embedded = database.is_embedded();
        let now_ms = unix_ms(SystemTime::now());
        let is_late = |id: &&PostId| unix_ms(id.created_at()) + LATE_MS < now_ms;
        let late: Vec<_> = delivered.iter().filter(is_late).map(|id| [id.get(), now_ms]).collect();
        let write = async {
            if !late.is_empty() {
                let query = statement(note_late_text(is_embedded));
                let query = number_rows::bind(query, is_embedded, &late);
                query.execute(database.writers()).await?;
            }
            Ok(())
        };
        database.write("INSERT late_deliveries", write).await?;
        end_delivery(database, delivered.iter().map(|id| id.get())).await
    }

    /// Notes that all posts which were delivered since a time, an hour ago at most, are to be delivered again. The
    /// job does it.
    pub(crate) async fn redeliver(&self, since: SystemTime) -> Result<(), Error> {
        const NOTE: &str = "INSERT INTO redeliveries (since, after) VALUES ($1, 0) \
            ON CONFLICT (since) DO UPDATE SET after = 0";
        let database = self.tables.database().await?;
        let since = unix_ms(since.max(SystemTime::now() - REDELIVERED_MAX));
        let note = async {
            sqlx::query(NOTE).bind(number(since)).execute(database.writers()).await.map(drop)
        };
        Ok(database.write("INSERT redeliveries", note).await?)
    }

    /// Measures how many posts calls could not deliver, up to 100,000.
    pub(crate) async fn measure(&self) -> Result<(), Error> {
        const COUNT: &str = "SELECT COUNT(*), COALESCE(MIN(id), 0) FROM \
            (SELECT id FROM undelivered WHERE id < $1 ORDER BY id LIMIT 100000) AS oldest";
        let database = self.tables.database().await?;
        let now = SystemTime::now();
        let query = sqlx::query(COUNT).bind(number(first_at(now - UNDELIVERED_AFTER)));
        let read = async {
            let row = query.fetch_one(database.readers()).await?;
            Ok((read(&row, 0)?, read(&row, 1)?))
        };
        let (count, oldest) = database.read("SELECT undelivered", read).await?;
        let since = PostId::new(oldest).map_or(now, PostId::created_at);
        self.metrics.note(count, now.duration_since(since).unwrap_or_default());
        Ok(())
    }

    /// Forgets late deliveries that are not repeated any more.
    pub(crate) async fn remove_old(&self) -> Result<(), Error> {
        const REMOVE: &str = "DELETE FROM late_deliveries WHERE delivered < $1";
        let database = self.tables.database().await?;
        let before = number(unix_ms(SystemTime::now() - REDELIVERED_MAX));
        let remove =
            async { sqlx::query(REMOVE).bind(before).execute(database.writers()).await.map(drop) };
        Ok(database.write("DELETE late_deliveries", remove).await?)
    }

    // Delivers posts in one call. If it is rejected, bisects the posts until each rejected one is
    // alone.
    async fn deliver_bisecting(
        &self,
        deliveries: Vec<timeline::Delivery>,
        call_timeout: Duration,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        let mut parts = vec![deliveries];
        while let Some(mut part) = parts.pop() {
            let delivered = self.deliver_call(&part, call_timeout).await;
            match &delivered {
                Err(error) if is_outage(error) => return delivered,
                Err(_) if part.len() > 1 => {
                    let half = part.split_off(part.len() / 2);
                    parts.extend([half, part]);
                    continue;
                }
                Err(error) => {
                    let error = error as &dyn std::error::Error;
                    let post = part.first().map(|delivery| delivery.post_id);
                    tracing::debug!(post, error, "post rejected by the timeline service");
                }
                Ok(()) => {}
            }
            outcome = outcome.and(delivered);
        }
        outcome
    }

    async fn deliver_call(
        &self,
        deliveries: &[timeline::Delivery],
        call_timeout: Duration,
    ) -> Result<(), Error> {
        if deliveries.is_empty() {
            return Ok(());
        }
        if let Some(timeline) = &self.timeline {
            // The principal of a caller who posts may not call Deliver; this service may.
            let request = timeline::DeliverRequest { deliveries: deliveries.to_vec() };
            let answer = timeout(call_timeout, context::as_system(timeline.deliver(request)));
            let late = |_| Err(Status::deadline_exceeded("no answer in time"));
            let answer = answer.await.unwrap_or_else(late).map_err(Error::Timeline);
            self.queue.record_answer(answer.as_ref().is_err_and(is_outage));
            answer?;
        }
        let delivered = deliveries.iter().filter_map(|delivery| PostId::new(delivery.post_id));
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner).extend(delivered);
        Ok(())
    }
}

/// Returns whether an immediate retry is pointless: the timeline service is unavailable.
fn is_outage(error: &Error) -> bool {
    matches!(error, Error::Timeline(status) if status::is_service_unavailable(status))
}

/// The most posts that are noted as undelivered at once.
const PAGE: usize = 5_000;

/// When a delivery is late, in milliseconds.
const LATE_MS: u64 = 60_000;

/// The posts between two ids that were delivered late since a time; and all behind an id.
const LATE: &str = "SELECT id FROM late_deliveries WHERE id > $1 AND id <= $2 AND delivered >= $3 ORDER BY id LIMIT $4";
const MADE: &str = "SELECT id FROM posts WHERE id > $1 ORDER BY id LIMIT $2";

/// A redelivery that is under way: of the posts that were delivered since a time (Unix ms), those behind an id.
struct Redelivery {
    since_ms: u64,
    after: u64,
}

impl Redelivery {
    async fn first(database: &Database) -> Result<Option<Self>, Error> {
        const FIRST: &str = "SELECT since, after FROM redeliveries ORDER BY since LIMIT 1";
        let read = async {
            let row = sqlx::query(FIRST).fetch_optional(database.writers()).await?;
            row.map(|row| Ok(Self { since_ms: read(&row, 0)?, after: read(&row, 1)? })).transpose()
        };
        Ok(database.write("SELECT redeliveries", read).await?)
    }

    // Returns the next page of posts, in order, and the id behind which the next one begins; `None` at the end.
    async fn page(&self, database: &Database) -> Result<(Vec<u64>, Option<u64>), Error> {
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(self.since_ms);
        // What was not late was made at most a minute before.
        let first_made = first_at(since - Duration::from_millis(LATE_MS)).saturating_sub(1);
        let is_late = self.after < first_made;
        let query = match is_late {
            true => [self.after, first_made, self.since_ms, PAGE as u64]
                .iter()
                .fold(sqlx::query(LATE), |query, parameter| query.bind(number(*parameter))),
            false => sqlx::query(MADE).bind(number(self.after)).bind(PAGE as i64),
        };
        let read = async {
            query.fetch_all(database.writers()).await?.iter().map(|row| read(row, 0)).collect()
        };
        let ids: Vec<u64> = database.write("SELECT posts", read).await?;
        let last = ids.last().copied().filter(|_| ids.len() == PAGE);
        Ok((ids, last.or(is_late.then_some(first_made))))
    }

    // Notes how far it has come, unless it has begun again.
    async fn note(&self, database: &Database, next: Option<u64>) -> Result<(), Error> {
        const GO_ON: &str = "UPDATE redeliveries SET after = $3 WHERE since = $1 AND after = $2";
        const END: &str = "DELETE FROM redeliveries WHERE since = $1 AND after = $2";
        let query = sqlx::query(if next.is_some() { GO_ON } else { END });
        let query = query.bind(number(self.since_ms)).bind(number(self.after));
        let query = next.into_iter().fold(query, |query, next| query.bind(number(next)));
        let note = async { query.execute(database.writers()).await.map(drop) };
        Ok(database.write("UPDATE redeliveries", note).await?)
    }
}

// Notes a page of posts that are to be delivered again as undelivered. Returns whether there was one.
async fn note_redelivered(database: &Database) -> Result<bool, Error> {
    let Some(redelivery) = Redelivery::first(database).await? else { return Ok(false) };
    let (ids, next) = redelivery.page(database).await?;
    if !ids.is_empty() {
        let is_embedded = database.is_embedded();
        let query = statement(note_undelivered_text(is_embedded));
        let query = number_rows::bind_column(query, is_embedded, ids.iter().copied());
        let note = async { query.execute(database.writers()).await.map(drop) };
        database.write("INSERT undelivered", note).await?;
    }
    redelivery.note(database, next).await?;
    Ok(true)
}

// Notes posts as delivered. If this fails, they are delivered again.
async fn end_delivery(
    database: &Database,
    ids: impl ExactSizeIterator<Item = u64>,
) -> Result<(), Error> {
    if ids.len() == 0 {
        return Ok(());
    }
    let is_embedded = database.is_embedded();
    let query = statement(end_delivery_text(is_embedded));
    let query = number_rows::bind_column(query, is_embedded, ids);
    let end = async { query.execute(database.writers()).await.map(drop) };
    Ok(database.write("DELETE undelivered", end).await?)
}

fn note_late_text(is_embedded: bool) -> String {
    let rows = number_rows::table(is_embedded, 1, 2);
    format!(
        "INSERT INTO late_deliveries (id, delivered) SELECT column1, column2 FROM {rows} WHERE 1 = 1 \
         ON CONFLICT (id) DO UPDATE SET delivered = excluded.delivered"
    )
}

fn note_undelivered_text(is_embedded: bool) -> String {
    let rows = number_rows::table(is_embedded, 1, 1);
    format!(
        "INSERT INTO undelivered (id) SELECT column1 FROM {rows} WHERE 1 = 1 ON CONFLICT (id) DO NOTHING"
    )
}

fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Returns the first number of an id at a time.
fn first_at(time: SystemTime) -> u64 {
    Stamp::first_at(time, Partition::new(0)).get()
}

/// A page of posts that are not delivered.
struct Undelivered {
    deliveries: Vec<timeline::Delivery>,
    /// Those that do not exist any more.
    gone: Vec<u64>,
    /// The last one; `None` if there are none.
    last: Option<u64>,
}

async fn undelivered(database: &Database, after: u64, before: u64) -> Result<Undelivered, Error> {
    let of_post = |column: &str, table: &str| {
        format!("COALESCE((SELECT {column} FROM {table} WHERE {table}.id = undelivered.id), 0)")
    };
    let [author, root] = ["author", "root"].map(|column| of_post(column, "posts"));
    let has_text = of_post("CASE WHEN text = '' THEN 0 ELSE 1 END", "texts");
    let text = format!(
        "SELECT id, {author}, {root}, {has_text} FROM undelivered WHERE id > $1 AND id < $2 \
         ORDER BY id LIMIT {BATCH_MAX}"
    );
    let read = async {
        let query = statement(text).bind(number(after)).bind(number(before));
        let delivery = |row: &AnyRow| {
            Ok(timeline::Delivery {
                post_id: read(row, 0)?,
                author_id: read(row, 1)?,
                root_id: read(row, 2)?,
                has_text: read(row, 3)? == 1,
            })
        };
        query.fetch_all(database.readers()).await?.iter().map(delivery).collect()
    };
    let all: Vec<timeline::Delivery> = database.read("SELECT undelivered", read).await?;
    let last = all.last().map(|last| last.post_id);
    let (deliveries, gone): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|delivery| delivery.author_id != 0);
    let gone = gone.into_iter().map(|delivery| delivery.post_id).collect();
    Ok(Undelivered { deliveries, gone, last })
}

fn delivery(id: PostId, content: &Content) -> timeline::Delivery {
    let (post_id, author_id) = (id.get(), content.author.get());
    let root_id = content.origin.map_or(0, |origin| origin.root.get());
    let has_text = !content.text.is_empty();
    timeline::Delivery { post_id, author_id, root_id, has_text }
}
