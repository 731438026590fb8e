//! A recording, sent to Redis again with nothing around it.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use microblog_keyspace::redis::{Client, aio::MultiplexedConnection};

use super::{
    recording::Recording,
    wire::{self, Wire},
};
use crate::{info::Info, system::connect};

/// Over how many connections: with fewer, Redis would have nothing to do between an answer and what
/// is sent next.
const CONNECTIONS: usize = 4;

/// What Redis made of it.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Replayed {
    /// Calls' worth of commands a second.
    pub(crate) calls_per_second: f64,
    /// Redis' processor time for a call: to read, to carry out, to write, and what its background
    /// and that of the system take beside it.
    pub(crate) server_us_per_call: f64,
    /// How many commands a call sends, those inside functions not counted.
    pub(crate) commands_per_call: f64,
    /// How many bytes a call sends.
    pub(crate) request_bytes_per_call: f64,
    /// How many bytes come back for a call.
    pub(crate) answer_bytes_per_call: f64,
    /// The share of the calls' commands that Redis refused.
    pub(crate) errors: f64,
}

/// Some calls that are sent together.
#[derive(Debug, Default)]
struct Bunch {
    calls: u64,
    commands: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Tally {
    calls: u64,
    commands: u64,
    errors: u64,
    sent: u64,
    received: u64,
}

impl Recording {
    /// Sends the recorded commands over and over for some time, pipelined, with so many calls under
    /// way all in all: as they are, call by call.
    ///
    /// What only reads does the same each time. What writes does not: the request id was seen, the
    /// follow is there, the post is liked, so that Redis looks and answers without writing; and what
    /// gives work to others is left out. For calls that write, Redis could really do less than this.
    /// The data are as before, but that a home timeline may have to be built again.
    pub(crate) async fn replay(
        &self,
        admin: &Client,
        depth: usize,
        duration: Duration,
    ) -> anyhow::Result<Replayed> {
        let connections = CONNECTIONS.min(depth.max(1));
        let bunches = self.bunches(depth.div_ceil(connections).max(1));
        let mut connection = connect(admin).await?;
        let wires = try_join_all((0..connections).map(|_| Wire::connect(admin))).await?;
        let cpu_before = cpu_seconds(&mut connection).await?;
        let begin = Instant::now();
        let end = begin + duration;
        // Each begins elsewhere, so that not all ask for the same at the same time.
        let start = |place: usize| place * bunches.len() / connections;
        let send = |(place, wire)| send(wire, &bunches, start(place), end);
        let tallies = try_join_all(wires.into_iter().enumerate().map(send)).await?;
        let seconds = begin.elapsed().as_secs_f64();
        let cpu = cpu_seconds(&mut connection).await? - cpu_before;
        let sum = |field: fn(&Tally) -> u64| tallies.iter().map(field).sum::<u64>() as f64;
        let calls = sum(|tally| tally.calls);
        Ok(Replayed {
            calls_per_second: calls / seconds,
            server_us_per_call: cpu * 1e6 / calls,
            commands_per_call: sum(|tally| tally.commands) / calls,
            request_bytes_per_call: sum(|tally| tally.sent) / calls,
            answer_bytes_per_call: sum(|tally| tally.received) / calls,
            errors: sum(|tally| tally.errors) / sum(|tally| tally.commands),
        })
    }

    fn bunches(&self, size: usize) -> Vec<Bunch> {
        // All of the same size: the first calls come once more where the last bunch has room.
        let count = self.calls.len().div_ceil(size);
        let mut calls = self.calls.iter().cycle();
        let bunch = |_| {
            calls.by_ref().take(size).fold(Bunch::default(), |mut bunch, call| {
                bunch.calls += 1;
                bunch.commands += call.len() as u64;
                bunch.bytes.extend(call.iter().flat_map(|command| wire::encode(command)));
                bunch
            })
        };
        (0..count).map(bunch).collect()
    }
}

async fn send(
    mut wire: Wire,
    bunches: &[Bunch],
    start: usize,
    end: Instant,
) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    for bunch in bunches.iter().cycle().skip(start) {
        let answers = wire.exchange(&bunch.bytes, bunch.commands).await?;
        tally.calls += bunch.calls;
        tally.commands += bunch.commands;
        tally.errors += answers.errors;
        tally.sent += bunch.bytes.len() as u64;
        tally.received += answers.bytes;
        if Instant::now() >= end {
            break;
        }
    }
    Ok(tally)
}

/// Returns how many seconds of a processor the server has used so far, its other threads' included:
/// with reading and writing, which the usage of commands leaves out.
async fn cpu_seconds(admin: &mut MultiplexedConnection) -> anyhow::Result<f64> {
    let info = Info::ask(admin, &["cpu"]).await?;
    Ok(info.field::<f64>("used_cpu_user")? + info.field::<f64>("used_cpu_sys")?)
}

#[cfg(test)]
mod tests {
    use microblog_testkit::RedisServer;

    use super::*;

    #[tokio::test]
    async fn what_was_recorded_is_sent_again() {
        let server = RedisServer::start().await;
        let client = Client::open(server.admin_url()).unwrap();
        let mut caller = connect(&client).await.unwrap();
        let mut number = 0;
        let recording = Recording::of(&client, 20, async || {
            number += 1;
            let mut pipe = microblog_keyspace::redis::pipe();
            pipe.cmd("SADD").arg("t:{0}:numbers:1").arg(number);
            pipe.cmd("HSET").arg("t:{0}:hash:1").arg(&[0_u8, 10, 13, 34, 92, 255]).arg("value");
            pipe.exec_async(&mut caller).await?;
            Ok(())
        })
        .await
        .unwrap();
        assert_eq!(recording.calls.len(), 20);

        let mut admin = server.admin().await;
        microblog_keyspace::redis::cmd("FLUSHALL").exec_async(&mut admin).await.unwrap();
        let replayed = recording.replay(&client, 8, Duration::from_millis(100)).await.unwrap();
        assert_eq!((replayed.commands_per_call, replayed.errors), (2.0, 0.0));
        assert!(replayed.calls_per_second > 0.0);
        let mut card = microblog_keyspace::redis::cmd("SCARD");
        let count: u64 = card.arg("t:{0}:numbers:1").query_async(&mut admin).await.unwrap();
        assert_eq!(count, 20);
        let mut get = microblog_keyspace::redis::cmd("HGET");
        get.arg("t:{0}:hash:1").arg(&[0_u8, 10, 13, 34, 92, 255]);
        let value: String = get.query_async(&mut admin).await.unwrap();
        assert_eq!(value, "value");
    }
}
