//! Fan-out streams. A stream entry is one step of a job. One worker reads it and renews its claim
//! while it works. If the worker dies, another one claims the entry.

use std::time::Duration;

use futures::future::try_join_all;
use microblog_keyspace::{
    Batch, Call, DedicatedConnection, Error, decode,
    redis::{Cmd, cmd},
};
use prost::Message as _;

use super::{Store, malformed};
use crate::{
    job::{self, Job},
    keys::{self, STREAMS},
};

/// The consumer group and its only consumer. The idle time alone decides who may claim a step.
const GROUP: &str = "fanout";
const CONSUMER: &str = "worker";
const FIELD: &str = "job";

// The time for a response after a blocking read ends; equals the default timeout of commands.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The idle time after which a pending step counts as abandoned: several times `RENEWAL_PERIOD`.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(1);

/// The interval in which a worker resets the idle time of its step.
pub(crate) const RENEWAL_PERIOD: Duration = Duration::from_millis(300);
const _: () = assert!(3 * RENEWAL_PERIOD.as_millis() < ABANDONED_AFTER.as_millis());

/// The most pending entries to check for abandoned steps.
const PENDING_MAX: usize = 100;

/// The most steps per read or claim. Few, since they wait for a permit.
pub(crate) const STEPS_MAX: usize = 4;

/// The most stream entries to scan for the oldest job.
const BACKLOG_SCAN_MAX: usize = 100;

/// A fan-out step: an entry of a fan-out stream.
#[derive(Clone, Debug)]
pub struct Step {
    /// The stream key.
    stream: String,
    /// The entry id.
    id: String,
    /// The job; `None` if this version does not support it.
    pub job: Option<Job>,
}

/// The backlog of the fan-out streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backlog {
    /// The number of steps, pending ones included. A job has one step at a time.
    pub(crate) depth: u64,
    /// The enqueue time of the oldest job, in milliseconds since 1970; `None` without jobs.
    oldest_ms: Option<u64>,
}

impl Backlog {
    /// Returns the age of the oldest job; zero without jobs.
    pub(crate) fn age(&self) -> Duration {
        self.oldest_ms.map(job::age).unwrap_or_default()
    }
}

impl Store {
    /// Enqueues jobs to their authors' streams, all concurrently.
    pub async fn enqueue(&self, jobs: &[Job]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(jobs.len());
        for job in jobs {
            let author = job.author().ok_or_else(|| malformed("job"))?;
            let stream = keys::fanout_of(author);
            let mut command = cmd("XADD");
            command.arg(stream).arg("*").arg(FIELD).arg(job.encode_to_vec());
            batch.query(keys::stream_partition(author), command);
        }
        for answer in self.keyspace.send(batch).await? {
            decode::<String>(answer)?;
        }
        Ok(())
    }

    /// Returns whether the stream has its consumer group. If not, it is new, or Redis has lost it.
    pub(crate) async fn has_group(&self, stream: &str) -> Result<bool, Error> {
        self.keyspace.call(Call::new("tl_has_group").key(stream).arg(GROUP)).await
    }

    /// Creates the consumer group if needed. Returns a connection for blocking reads.
    pub(crate) async fn listen(&self, stream: &str) -> Result<DedicatedConnection, Error> {
        self.keyspace.call::<()>(Call::new("tl_create_group").key(stream).arg(GROUP)).await?;
        self.keyspace.dedicated_connection(stream).await
    }

    /// Reads new steps; blocks up to this duration.
    pub(crate) async fn next_steps(
        &self,
        connection: &mut DedicatedConnection,
        stream: &str,
        block: Duration,
    ) -> Result<Vec<Step>, Error> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(CONSUMER).arg("COUNT").arg(STEPS_MAX);
        read.arg("BLOCK").arg(block.as_millis() as u64).arg("STREAMS").arg(stream).arg(">");
        let longest = block + RESPONSE_TIMEOUT;
        let streams: Option<Vec<(String, Entries)>> = connection.query(&read, longest).await?;
        let entries = streams.unwrap_or_default().into_iter().flat_map(|(_, entries)| entries);
        Ok(entries.map(|entry| Step::read(stream, entry)).collect())
    }

    /// Returns a page of the ids of pending steps that have been idle for `ABANDONED_AFTER`, from
    /// the oldest or from a cursor on, and the cursor of the next page; `None` after the last.
    pub(crate) async fn idle_steps(
        &self,
        stream: &str,
        cursor: Option<&str>,
    ) -> Result<(Vec<String>, Option<String>), Error> {
        let mut pending = cmd("XPENDING");
        pending.arg(stream).arg(GROUP).arg("IDLE").arg(ABANDONED_AFTER.as_millis() as u64);
        pending.arg(cursor.unwrap_or("-")).arg("+").arg(PENDING_MAX);
        type Pending = (String, String, u64, u64);
        let entries: Vec<Pending> = self.keyspace.query(pending).await?;
        let ids: Vec<_> = entries.into_iter().map(|(id, ..)| id).collect();
        let next = ids.last().filter(|_| ids.len() == PENDING_MAX).map(|last| format!("({last}"));
        Ok((ids, next))
    }

    /// Claims the steps that are still idle. Of concurrent claimers, one gets a step.
    pub(crate) async fn claim(&self, stream: &str, ids: &[String]) -> Result<Vec<Step>, Error> {
        let mut claim = cmd("XCLAIM");
        claim.arg(stream).arg(GROUP).arg(CONSUMER).arg(ABANDONED_AFTER.as_millis() as u64);
        claim.arg(ids);
        let entries: Entries = self.keyspace.query(claim).await?;
        Ok(entries.into_iter().map(|entry| Step::read(stream, entry)).collect())
    }

    /// Resets the idle time of a step. Does nothing if the step is done.
    pub(crate) async fn renew(&self, step: &Step) -> Result<(), Error> {
        let mut claim = cmd("XCLAIM");
        claim.arg(&step.stream).arg(GROUP).arg(CONSUMER).arg(0).arg(&step.id).arg("JUSTID");
        let _ids: Vec<String> = self.keyspace.query(claim).await?;
        Ok(())
    }

    /// Acknowledges and deletes a step and enqueues the next one, in one atomic step.
    pub(crate) async fn advance(&self, step: &Step, next: Option<&Job>) -> Result<(), Error> {
        let call = Call::new("tl_advance").key(&step.stream).arg(GROUP).arg(&step.id);
        let call = match next {
            Some(job) => call.arg(job.encode_to_vec()),
            None => call,
        };
        let _is_first: bool = self.keyspace.call(call).await?;
        Ok(())
    }

    /// Returns the total backlog of all streams.
    pub(crate) async fn backlog(&self) -> Result<Backlog, Error> {
        let streams = try_join_all((0..STREAMS).map(|number| self.stream_backlog(number))).await?;
        Ok(Backlog {
            depth: streams.iter().map(|stream| stream.depth).sum(),
            oldest_ms: streams.iter().filter_map(|stream| stream.oldest_ms).min(),
        })
    }

    async fn stream_backlog(&self, number: u16) -> Result<Backlog, Error> {
        let stream = keys::fanout(number);
        let depth = self.keyspace.query(cmd("XLEN").arg(&stream).take()).await?;
        let mut range: Cmd = cmd("XRANGE");
        range.arg(&stream).arg("-").arg("+").arg("COUNT").arg(BACKLOG_SCAN_MAX);
        let entries: Entries = self.keyspace.query(range).await?;
        let steps = entries.into_iter().map(|entry| Step::read(&stream, entry));
        Ok(Backlog { depth, oldest_ms: steps.filter_map(|step| step.added_ms()).min() })
    }
}

type Fields = Option<Vec<(String, Vec<u8>)>>;
type Entries = Vec<(String, Fields)>;

impl Step {
    /// Returns the entry id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the stream and the entry id, which is unique in its stream only.
    pub(crate) fn key(&self) -> String {
        format!("{} {}", self.stream, self.id)
    }

    // Later steps of a job have newer entry ids, so the enqueue time is in the job.
    fn added_ms(&self) -> Option<u64> {
        let job = self.job.as_ref().map(|job| job.added_ms).filter(|&added_ms| added_ms > 0);
        job.or_else(|| self.id.split('-').next()?.parse().ok())
    }

    fn read(stream: &str, (id, fields): (String, Fields)) -> Self {
        let job = fields.unwrap_or_default().into_iter().find(|(name, _)| name == FIELD);
        let job = job.and_then(|(_, bytes)| Job::decode(&bytes[..]).ok());
        Self { stream: stream.to_owned(), id, job: job.filter(Job::is_supported) }
    }
}
