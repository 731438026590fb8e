//! The mark of a primary.

use microblog_domain::Partition;
use microblog_keyspace::{Call, key};
use microblog_testkit::Topology;

use crate::support::System;

/// A mark: its history, its position, and its time.
type Mark<'a> = (&'a str, &'a str, i64);

const AGE_MAX_S: i64 = 12;

impl System {
    fn mark_call(&self, function: &'static str) -> Call {
        Call::new(function).key(key(format_args!("rel:{{{}}}:mark", Partition::new(7))))
    }

    /// Returns the server's replication id, its time, and the mark's history, position and time.
    async fn read_mark(&self) -> (String, i64, Option<[String; 3]>) {
        let fields: Vec<String> = self.keyspace.call(self.mark_call("read_mark")).await.unwrap();
        let mark = fields.get(3..).and_then(|mark| {
            let [history, position, _, time] = mark else { return None };
            Some([history, position, time].map(String::clone))
        });
        (fields[0].clone(), fields[1].parse().unwrap(), mark)
    }

    /// Writes a mark in place of what a verifier has read: replication id, history and position.
    async fn mark(&self, id: &str, (history, position, time): Mark<'_>, read: [&str; 3]) -> bool {
        let call = self.mark_call("mark").arg(id).arg(history).arg(position).arg("bits").arg(time);
        let call = read.into_iter().fold(call, |call, part| call.arg(part));
        self.keyspace.call::<u8>(call).await.unwrap() == 1
    }

    async fn keep(&self, id: &str, history: &str, position: &str) -> bool {
        let call = self.mark_call("keep").arg(id).arg(history).arg(position).arg(AGE_MAX_S);
        self.keyspace.call::<u8>(call).await.unwrap() == 1
    }

    async fn end_mark(&self, history: &str) -> bool {
        self.keyspace.call::<u8>(self.mark_call("end_mark").arg(history)).await.unwrap() == 1
    }
}

#[tokio::test]
async fn a_verifier_replaces_only_the_mark_that_it_has_read() {
    let system = System::start(Topology::Cluster).await;
    let (id, now, none) = system.read_mark().await;
    assert_eq!(none, None);
    let [first, second] = [("h1", "1 10", now), ("h1", "2 20", now)];
    assert!(!system.mark("another", first, ["", "", ""]).await, "of another server");
    assert!(!system.mark(&id, first, [&id, "h1", "0 0"]).await, "there is no mark any more");
    assert!(system.mark(&id, first, ["", "", ""]).await);
    assert!(!system.mark(&id, second, ["", "", ""]).await, "there is a mark meanwhile");
    for read in [[&*id, "h1", "0 0"], [&id, "h0", "1 10"], ["another", "h1", "1 10"]] {
        assert!(!system.mark(&id, second, read).await, "another mark: {read:?}");
    }
    assert!(system.mark(&id, second, [&id, "h1", "1 10"]).await);
    let mark = ["h1", "2 20", &now.to_string()].map(str::to_owned);
    assert_eq!(system.read_mark().await.2, Some(mark));
}

#[tokio::test]
async fn a_mark_is_kept_while_it_is_relied_on_and_nobody_has_written_another() {
    let system = System::start(Topology::Single).await;
    let (id, now, _) = system.read_mark().await;
    let young = ("h1", "1 10", now - AGE_MAX_S + 5);
    assert!(!system.keep(&id, "h1", "1 10").await, "there is none");
    assert!(system.mark(&id, young, ["", "", ""]).await);
    for [id, history, position] in
        [["another", "h1", "1 10"], [&id, "h0", "1 10"], [&id, "h1", "0 0"]]
    {
        assert!(!system.keep(id, history, position).await, "{history} {position} of {id}");
    }
    for time in ["it is kept", "the answer was lost"] {
        assert!(system.keep(&id, "h1", "1 10").await, "{time}");
        let [.., kept] = system.read_mark().await.2.unwrap();
        assert!(kept.parse::<i64>().unwrap() >= now, "{time}: {kept}");
    }

    let old = ("h1", "1 10", now - AGE_MAX_S - 1);
    assert!(system.mark(&id, old, [&id, "h1", "1 10"]).await);
    assert!(!system.keep(&id, "h1", "1 10").await, "trust that has ended does not begin again");
}

#[tokio::test]
async fn a_writer_ends_the_mark_of_another_history_only() {
    let system = System::start(Topology::Single).await;
    assert!(!system.end_mark("h1").await, "there is none");
    let (id, now, _) = system.read_mark().await;
    assert!(system.mark(&id, ("h1", "1 10", now), ["", "", ""]).await);
    assert!(!system.end_mark("h1").await);
    assert!(system.end_mark("h2").await);
    assert_eq!(system.read_mark().await.2, None);
}
