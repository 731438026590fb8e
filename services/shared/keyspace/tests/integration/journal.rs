//! Change journals: a function appends only to a journal that has what its caller has seen.

use microblog_domain::Partition;
use microblog_keyspace::{Call, Config, Error, Journals, Keyspace, Library, redis};
use microblog_testkit::RedisServer;

use crate::support::{USER, key};

const LIBRARY: Library = Library {
    name: "test",
    source: "
register_change('test_change', function(keys, args)
  for _, change in ipairs(args) do
    append_change(change, 9)
  end
  return #args
end)
",
};

const PARTITION: Partition = Partition::new(5);

/// A Redis with a journal, and a process that uses it.
struct Journal {
    server: RedisServer,
    keyspace: Keyspace,
}

impl Journal {
    /// Returns a journal with entries, each with its version, and a process that has seen a version.
    async fn with(entries: &[(&str, &str)], seen: &str) -> Self {
        let server = RedisServer::start().await;
        let journal = Self { keyspace: open(&server).await, server };
        for (version, text) in entries {
            journal.append(version, text).await;
        }
        journal.keyspace.states().require(PARTITION, seen.parse().unwrap());
        journal
    }

    async fn append(&self, version: &str, text: &str) {
        let mut append = redis::cmd("XADD");
        append.arg(key(5, "journal")).arg(version).arg("c").arg(text);
        append.exec_async(&mut self.server.admin().await).await.unwrap();
    }

    async fn change(&self, changes: &[&str]) -> Result<usize, Error> {
        change(&self.keyspace, changes).await
    }

    async fn is_rejected(&self) -> bool {
        matches!(self.change(&["change"]).await, Err(Error::Recovering(_)))
    }

    /// Returns the versions and the texts of the entries.
    async fn entries(&self) -> Vec<(String, String)> {
        let read = redis::cmd("XRANGE").arg(key(5, "journal")).arg("-").arg("+").take();
        let entries: Vec<(String, [String; 2])> =
            read.query_async(&mut self.server.admin().await).await.unwrap();
        entries.into_iter().map(|(version, [_, text])| (version, text)).collect()
    }

    /// Returns all that Redis knows of the journal.
    async fn contents(&self) -> redis::Value {
        let read = redis::cmd("XINFO").arg("STREAM").arg(key(5, "journal")).arg("FULL").take();
        read.query_async(&mut self.server.admin().await).await.unwrap()
    }

    /// Asserts that changes are rejected, and leave the journal as it is.
    async fn assert_closed(&self, case: &str) {
        let before = self.contents().await;
        for attempt in 1..4 {
            assert!(self.is_rejected().await, "{case}: attempt {attempt}");
        }
        assert_eq!(self.contents().await, before, "{case}");
    }
}

async fn open(server: &RedisServer) -> Keyspace {
    let keyspace = Keyspace::open(&Config::at(server.url(USER)), LIBRARY).unwrap();
    keyspace.ready().await.unwrap();
    keyspace
}

async fn change(keyspace: &Keyspace, changes: &[&str]) -> Result<usize, Error> {
    let call = Call::new("test_change").journal(PARTITION, key(5, "journal"));
    keyspace.call(changes.iter().fold(call, |call, change| call.arg(change))).await
}

fn owned(entries: &[(&str, &str)]) -> Vec<(String, String)> {
    entries.iter().map(|&(version, text)| (version.to_owned(), text.to_owned())).collect()
}

#[tokio::test]
async fn a_change_of_a_seen_epoch_takes_one_command() {
    let journal = Journal::with(&[("1-0", "opened")], "0-0").await;
    for (changes, is_read) in [(&["a", "b"][..], true), (&["c"], false), (&["d", "e"], false)] {
        journal.server.reset_commandstats().await;
        assert_eq!(journal.change(changes).await.unwrap(), changes.len());
        let commands = journal.server.commandstats().await;
        assert_eq!(commands.contains_key("xrevrange"), is_read, "{changes:?}");
        assert_eq!(commands["xadd"], changes.len() as u64);
    }
    let entries = [
        ("1-0", "opened"),
        ("1-1", "a 9"),
        ("1-2", "b 9"),
        ("1-3", "c 9"),
        ("1-4", "d 9"),
        ("1-5", "e 9"),
    ];
    assert_eq!(journal.entries().await, owned(&entries));
}

#[tokio::test]
async fn a_journal_that_lacks_what_a_caller_has_seen_rejects_all_changes() {
    let (opened, entry) = (("1-0", "opened"), ("1-1", "x 9"));
    for (entries, seen, recovering) in [
        (&[opened, entry][..], "1-2", "2-0"),
        (&[opened], "1-2", "2-0"),
        (&[opened, entry], "1-70", "2-0"),
        (&[opened, entry], "4-2", "5-0"),
    ] {
        let journal = Journal::with(entries, seen).await;
        let rejected = journal.change(&["change", "another"]).await;
        assert!(matches!(rejected, Err(Error::Recovering(_))), "{seen}");
        let text = format!("recovering {seen} change 9");
        let expected = [entries, &[(recovering, &*text)]].concat();
        assert_eq!(journal.entries().await, owned(&expected));
        journal.assert_closed(seen).await;
        let other = change(&open(&journal.server).await, &["change"]).await;
        assert!(matches!(other, Err(Error::Recovering(_))), "it has seen nothing");
        assert_eq!(journal.entries().await, owned(&expected));
    }
}

#[tokio::test]
async fn a_lost_journal_is_not_created() {
    let journal = Journal::with(&[], "1-2").await;
    assert!(journal.is_rejected().await && journal.is_rejected().await);
    assert_eq!(journal.entries().await, []);
}

#[tokio::test]
async fn a_recovery_rejects_changes_until_its_end() {
    let entries = [("1-0", "opened"), ("1-1", "x 9"), ("3-0", "recovering x 9")];
    for seen in ["0-0", "1-0", "1-1", "3-0", "3-5"] {
        let journal = Journal::with(&entries, seen).await;
        if seen == "3-5" {
            // It has seen changes after the recovery, which Redis has lost.
            assert!(journal.is_rejected().await);
            assert_eq!(journal.entries().await.last().unwrap().0, "4-0");
            journal.assert_closed(seen).await;
            continue;
        }
        journal.assert_closed(seen).await;
        journal.append("3-1", "recovered x 9").await;
        assert_eq!(journal.change(&["a", "b"]).await.unwrap(), 2, "{seen}");
        let after = [("3-1", "recovered x 9"), ("3-2", "a 9"), ("3-3", "b 9")];
        assert_eq!(journal.entries().await, owned(&[&entries[..], &after].concat()), "{seen}");
    }
}

#[tokio::test]
async fn a_lease_that_was_ended_can_be_taken_at_once() {
    let journals = Journals { key: |partition| key(partition.number(), "journal") };
    let journal = Journal::with(&[], "0-0").await;
    let keyspace = &journal.keyspace;
    for _ in 0..100 {
        assert!(journals.lease(keyspace, PARTITION, "first", false).await.unwrap());
        assert!(!journals.lease(keyspace, PARTITION, "second", false).await.unwrap());
        journals.end_lease(keyspace, PARTITION, "second").await.unwrap();
        assert!(journals.lease(keyspace, PARTITION, "first", true).await.unwrap());
        journals.end_lease(keyspace, PARTITION, "first").await.unwrap();
        assert!(!journals.lease(keyspace, PARTITION, "first", true).await.unwrap());
    }
}
