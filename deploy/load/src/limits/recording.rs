//! The commands that calls send to Redis, as Redis' MONITOR shows them while calls are made one at a
//! time.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, ensure};
use futures::{Stream, StreamExt as _};
use microblog_keyspace::redis::{Client, cmd};
use tokio::time::sleep;
use uuid::Uuid;

use super::monitor::{self, Observed};
use crate::system::connect;

/// Between two calls. What a call leaves to the background comes in it for the most part.
const PAUSE: Duration = Duration::from_millis(10);

/// One in so many calls has a command of a kind at least, or the kind is the background's: a sweep
/// through all partitions makes the call long that it meets, and comes during it as a whole.
const RARE: usize = 10;

/// Of what comes in so many times fewer pauses than calls, hardly any is the background's.
const OFTEN: usize = 4;

/// The commands of calls, in the order in which Redis carried them out.
///
/// Those inside functions are not there, since the function is. Neither is the background's: a kind
/// of command (its name, its function, what kind of key it is about) counts as the calls' if it came
/// during a tenth of them at least, and in not even a quarter as many of the pauses between them; one
/// that waits for something never does. What the background always does for a call before that is
/// answered, such as the first step of a fan-out, counts as the call's.
///
/// What puts work into a queue is left out, one cheap command of a call that publishes: sent again,
/// it would have the system do that work while something else is measured.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Each call's commands, never none.
    pub(super) calls: Vec<Vec<Command>>,
}

/// A command's name and arguments.
pub(super) type Command = Vec<Vec<u8>>;

/// When a call was under way, in microseconds since the Unix epoch.
type Span = (u64, u64);

impl Recording {
    /// Makes a call so many times, and records what the system behind it sends to Redis, whose
    /// administrator this is. Nobody else must call the system meanwhile.
    pub(crate) async fn of(
        admin: &Client,
        count: usize,
        mut call: impl AsyncFnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let mut connection = connect(admin).await?;
        let lines = admin.get_async_monitor().await?.into_on_message::<String>();
        let end = Uuid::new_v4().to_string();
        let make = async {
            let mut spans: Vec<Span> = Vec::with_capacity(count);
            for _ in 0..count {
                let begin = now_us()?;
                call().await?;
                spans.push((begin, now_us()?));
                sleep(PAUSE).await;
            }
            cmd("ECHO").arg(&end).exec_async(&mut connection).await?;
            anyhow::Ok(spans)
        };
        let (spans, observed) = tokio::try_join!(make, observe(lines, &end))?;
        let calls = attribute(&spans, observed).into_iter().filter(|call| !call.is_empty());
        let words = |call: Vec<Observed>| call.into_iter().map(|command| command.words).collect();
        let calls: Vec<Vec<Command>> = calls.map(words).collect();
        ensure!(!calls.is_empty(), "the calls sent nothing to this Redis");
        Ok(Self { calls })
    }
}

/// Collects what is carried out until the command that says so.
async fn observe(
    lines: impl Stream<Item = String> + Unpin,
    end: &str,
) -> anyhow::Result<Vec<Observed>> {
    let mut lines = lines;
    let mut observed = Vec::new();
    while let Some(line) = lines.next().await {
        let command = monitor::parse(&line).context("not a line of MONITOR")?;
        if command.words.last().is_some_and(|word| word == end.as_bytes()) {
            return Ok(observed);
        }
        if !command.is_inner {
            observed.push(command);
        }
    }
    anyhow::bail!("Redis stopped telling what it does")
}

/// During how many calls, and during how many pauses, a kind of command came.
#[derive(Debug, Default)]
struct Seen {
    calls: BTreeSet<usize>,
    pauses: BTreeSet<usize>,
}

/// Returns the commands of each call.
fn attribute(spans: &[Span], observed: Vec<Observed>) -> Vec<Vec<Observed>> {
    // How many calls had begun, and whether the last of these was under way.
    let place = |command: &Observed| {
        let begun = spans.partition_point(|&(begin, _)| begin <= command.at_us);
        (begun, begun > 0 && command.at_us <= spans[begun - 1].1)
    };
    let mut seen: HashMap<Vec<u8>, Seen> = HashMap::new();
    for command in &observed {
        let Seen { calls, pauses } = seen.entry(kind(command)).or_default();
        let (begun, is_during) = place(command);
        if is_during { calls } else { pauses }.insert(begun);
    }
    let is_of_calls = |command: &Observed| {
        seen.get(&kind(command)).is_some_and(|Seen { calls, pauses }| {
            calls.len() * RARE >= spans.len()
                && pauses.len() * OFTEN < calls.len()
                && !is_of_streams(command)
        })
    };
    let mut calls: Vec<Vec<Observed>> = spans.iter().map(|_| Vec::new()).collect();
    for command in observed {
        let (begun, is_during) = place(&command);
        if is_during && is_of_calls(&command) {
            calls[begun - 1].push(command);
        }
    }
    calls
}

/// Returns whether a command waits for work, or gives some to whoever waits.
fn is_of_streams(command: &Observed) -> bool {
    let is =
        |name: &[u8]| command.words.first().is_some_and(|word| word.eq_ignore_ascii_case(name));
    is(b"XREAD") || is(b"XREADGROUP") || is(b"XADD")
}

/// Returns what commands of the same kind have in common: the name; the function, if it is one;
/// and the first key up to its third colon (`rel:{}:following`), without numbers.
fn kind(command: &Observed) -> Vec<u8> {
    let words = &command.words;
    let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
    let is_call = name.starts_with(b"FCALL");
    let function = words.get(1).filter(|_| is_call);
    let key = words.get(if is_call { 3 } else { 1 });
    let key = key.map(|key| key.splitn(4, |&byte| byte == b':').take(3).collect::<Vec<_>>());
    let mut kind = name;
    for part in function.into_iter().map(Vec::as_slice).chain(key.into_iter().flatten()) {
        kind.push(b' ');
        kind.extend(part.iter().filter(|byte| !byte.is_ascii_digit()));
    }
    kind
}

fn now_us() -> anyhow::Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(since.as_micros())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(at_us: u64, text: &str) -> Observed {
        let words = text.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        Observed { at_us, is_inner: false, words }
    }

    #[test]
    fn what_comes_between_calls_or_waits_for_work_is_not_theirs() {
        let observed = vec![
            command(5, "PING"),
            command(12, "GET user:{7}:profile:1"),
            command(13, "FCALL follow 1 rel:{7}:clock 5"),
            command(14, "PING"),
            command(15, "XREADGROUP GROUP g c BLOCK 1000 STREAMS tl:{7}:fanout >"),
            command(20, "GET user:{8}:profile:2"),
            command(21, "PING"),
            command(25, "FCALL project 1 rel:{7}:followers:9"),
            command(35, "FCALL follow 1 rel:{3}:clock 5"),
            command(41, "PING"),
        ];
        let calls = attribute(&[(10, 20), (30, 40)], observed);
        let texts: Vec<Vec<_>> =
            calls.iter().map(|call| call.iter().map(|command| command.at_us).collect()).collect();
        assert_eq!(texts, [vec![12, 13, 20], vec![35]]);
    }

    #[test]
    fn commands_are_of_one_kind_whatever_account_they_are_about() {
        let kind = |text| String::from_utf8(kind(&command(0, text))).unwrap();
        assert_eq!(kind("zrange rel:{12}:followers:34 0 9"), "ZRANGE rel {} followers");
        assert_eq!(kind("FCALL rel_follow 2 rel:{12}:clock x"), "FCALL rel_follow rel {} clock");
        assert_eq!(kind("PING"), "PING");
    }
}
