//! Fan-out streams: what is to be done to home timelines, a step at a time. A step is a stream's
//! entry, read by one worker; where that one dies, another claims it.

use std::time::Duration;

use microblog_keyspace::{
    Batch, Call, Error, Exclusive, decode,
    redis::{Cmd, cmd},
};
use prost::Message as _;

use super::{Store, malformed};
use crate::{job::Job, keys};

/// The consumer group, and the one consumer in it: a step belongs to whoever read it, and which
/// replica that is, nobody needs to know.
const GROUP: &str = "fanout";
const CONSUMER: &str = "worker";
const FIELD: &str = "job";

// How much later than Redis ends a read that waits its answer may come, as long as that of any command
// by default.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// After how long a step counts as abandoned.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(10);

/// How many steps are read or claimed at once. Few, since they wait for their turn.
const STEPS_MAX: usize = 4;

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

/// What waits in a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    /// How many steps there are, those under way among them.
    pub(crate) depth: u64,
    /// When the oldest job was added, in milliseconds since 1970; `None` if there is none.
    pub(crate) oldest_ms: Option<u64>,
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

    /// Takes over steps that were read long ago and are not done: some of them, and from where to
    /// go on looking, `None` at the end.
    pub(crate) async fn abandoned_steps(
        &self,
        stream: &str,
        from: &str,
    ) -> Result<(Vec<Step>, Option<String>), Error> {
        let mut claim = cmd("XAUTOCLAIM");
        claim.arg(stream).arg(GROUP).arg(CONSUMER).arg(ABANDONED_AFTER.as_millis() as u64);
        claim.arg(from).arg("COUNT").arg(STEPS_MAX);
        let (next, entries, _deleted): (String, Entries, Vec<String>) =
            self.keyspace.query(claim).await?;
        let steps = entries.into_iter().map(|entry| Step::read(stream, entry)).collect();
        Ok((steps, Some(next).filter(|next| next != "0-0")))
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

    /// Returns what waits in a stream.
    pub(crate) async fn queue(&self, number: u16) -> Result<Queue, Error> {
        let stream = keys::fanout(number);
        let depth = self.keyspace.query(cmd("XLEN").arg(&stream).take()).await?;
        let mut range: Cmd = cmd("XRANGE");
        range.arg(&stream).arg("-").arg("+").arg("COUNT").arg(LOOKED_AT_MAX);
        let entries: Entries = self.keyspace.query(range).await?;
        let steps = entries.into_iter().map(|entry| Step::read(&stream, entry));
        Ok(Queue { depth, oldest_ms: steps.filter_map(|step| step.added_ms()).min() })
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
