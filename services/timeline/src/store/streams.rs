//! Fan-out streams: what is to be done to home timelines, a step at a time. A step is a stream's
//! entry, read by one worker, which renews its claim while it works. Where the worker dies, another
//! claims the entry.

use std::time::Duration;

use futures::future::try_join_all;
use microblog_keyspace::{
    Batch, Call, Error, Exclusive, decode,
    redis::{Cmd, cmd},
};
use prost::Message as _;

use super::{Store, malformed};
use crate::{
    job::{self, Job},
    keys::{self, STREAMS},
};

/// The consumer group, and the one consumer in it: a step belongs to whoever read it, and which
/// replica that is, nobody needs to know.
const GROUP: &str = "fanout";
const CONSUMER: &str = "worker";
const FIELD: &str = "job";

// How much later than Redis ends a read that waits its answer may come, as long as that of any command
// by default.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// The idle time after which a step may count as abandoned: several times `RENEWAL_PERIOD`.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(1);

/// How often a worker resets the idle time of a step that it works on.
pub(crate) const RENEWAL_PERIOD: Duration = Duration::from_millis(300);
const _: () = assert!(3 * RENEWAL_PERIOD.as_millis() < ABANDONED_AFTER.as_millis());

/// Among how many pending steps of a stream the abandoned ones are looked for.
const PENDING_MAX: usize = 100;

/// How many steps are read or claimed at once. Few, since they wait for their turn.
pub(crate) const STEPS_MAX: usize = 4;

/// Among how many steps of a stream the oldest job is looked for.
const LOOKED_AT_MAX: usize = 100;

/// A step of a job, as a worker has it.
#[derive(Clone, Debug)]
pub struct Step {
    /// The stream that it is in.
    stream: String,
    /// Its name there.
    id: String,
    /// What is to be done; `None` for what this version does not understand.
    pub job: Option<Job>,
}

/// The backlog of fan-out streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backlog {
    /// How many steps there are, those under way among them. A job has one step at a time.
    pub(crate) depth: u64,
    /// When the oldest job was added, in milliseconds since 1970; `None` if there is none.
    oldest_ms: Option<u64>,
}

impl Backlog {
    /// Returns how long ago the oldest job was added; zero if there is none.
    pub(crate) fn age(&self) -> Duration {
        self.oldest_ms.map(job::age).unwrap_or_default()
    }
}

impl Store {
    /// Adds jobs to their authors' streams. All go out together.
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

    /// Returns a connection on which to wait for the steps of a stream, whose group is there from
    /// now on.
    pub(crate) async fn listen(&self, stream: &str) -> Result<Exclusive, Error> {
        self.keyspace.call::<()>(Call::new("tl_listen").key(stream).arg(GROUP)).await?;
        self.keyspace.exclusive(stream).await
    }

    /// Waits up to so long for steps that nobody has read yet.
    pub(crate) async fn next_steps(
        &self,
        connection: &mut Exclusive,
        stream: &str,
        patience: Duration,
    ) -> Result<Vec<Step>, Error> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(CONSUMER).arg("COUNT").arg(STEPS_MAX);
        read.arg("BLOCK").arg(patience.as_millis() as u64).arg("STREAMS").arg(stream).arg(">");
        let longest = patience + ANSWER_MAX;
        let streams: Option<Vec<(String, Entries)>> = connection.query(&read, longest).await?;
        let entries = streams.unwrap_or_default().into_iter().flat_map(|(_, entries)| entries);
        Ok(entries.map(|entry| Step::read(stream, entry)).collect())
    }

    /// Returns the ids of steps that were read, are not done, and have been idle for as long as an
    /// abandoned one.
    pub(crate) async fn idle_steps(&self, stream: &str) -> Result<Vec<String>, Error> {
        let mut pending = cmd("XPENDING");
        pending.arg(stream).arg(GROUP).arg("IDLE").arg(ABANDONED_AFTER.as_millis() as u64);
        pending.arg("-").arg("+").arg(PENDING_MAX);
        type Pending = (String, String, u64, u64);
        let entries: Vec<Pending> = self.keyspace.query(pending).await?;
        Ok(entries.into_iter().map(|(id, ..)| id).collect())
    }

    /// Claims those of these steps that are still idle. Of several workers that try, one gets a step.
    pub(crate) async fn claim(&self, stream: &str, ids: &[String]) -> Result<Vec<Step>, Error> {
        let mut claim = cmd("XCLAIM");
        claim.arg(stream).arg(GROUP).arg(CONSUMER).arg(ABANDONED_AFTER.as_millis() as u64);
        claim.arg(ids);
        let entries: Entries = self.keyspace.query(claim).await?;
        Ok(entries.into_iter().map(|entry| Step::read(stream, entry)).collect())
    }

    /// Resets the idle time of a step. Does nothing to one that is done.
    pub(crate) async fn renew(&self, step: &Step) -> Result<(), Error> {
        let mut claim = cmd("XCLAIM");
        claim.arg(&step.stream).arg(GROUP).arg(CONSUMER).arg(0).arg(&step.id).arg("JUSTID");
        let _ids: Vec<String> = self.keyspace.query(claim).await?;
        Ok(())
    }

    /// Ends a step, with the one that follows in its place, if there is one.
    pub(crate) async fn advance(&self, step: &Step, next: Option<&Job>) -> Result<(), Error> {
        let call = Call::new("tl_advance").key(&step.stream).arg(GROUP).arg(&step.id);
        let call = match next {
            Some(job) => call.arg(job.encode_to_vec()),
            None => call,
        };
        let _is_first: bool = self.keyspace.call(call).await?;
        Ok(())
    }

    /// Returns the backlog of all streams together.
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
        range.arg(&stream).arg("-").arg("+").arg("COUNT").arg(LOOKED_AT_MAX);
        let entries: Entries = self.keyspace.query(range).await?;
        let steps = entries.into_iter().map(|entry| Step::read(&stream, entry));
        Ok(Backlog { depth, oldest_ms: steps.filter_map(|step| step.added_ms()).min() })
    }
}

type Fields = Option<Vec<(String, Vec<u8>)>>;
type Entries = Vec<(String, Fields)>;

impl Step {
    /// Returns its name in its stream.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    // A job's later steps are added when they come to be: what tells its age is in it.
    fn added_ms(&self) -> Option<u64> {
        let job = self.job.as_ref().map(|job| job.added_ms).filter(|&added_ms| added_ms > 0);
        job.or_else(|| self.id.split('-').next()?.parse().ok())
    }

    fn read(stream: &str, (id, fields): (String, Fields)) -> Self {
        let job = fields.unwrap_or_default().into_iter().find(|(name, _)| name == FIELD);
        let job = job.and_then(|(_, bytes)| Job::decode(&bytes[..]).ok());
        Self { stream: stream.to_owned(), id, job: job.filter(Job::is_understood) }
    }
}
