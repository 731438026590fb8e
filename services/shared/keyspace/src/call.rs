//! Calls of functions of the service's library: builds `FCALL`.

use std::sync::LazyLock;

use microblog_domain::Partition;
use redis::{Arg, Cmd, ToRedisArgs, Value};

use crate::{
    Error, Library, PartitionStates, Recovery, RelevantChange, Version, journal::SeenVersions,
    library::VersionedLibrary,
};

/// A call of a function: its name in the library's source, its keys and its arguments.
///
/// A call must declare every key. All keys must be in one partition, unless
/// [`Keyspace::joins_partitions`](crate::Keyspace::joins_partitions).
#[derive(Clone)]
pub struct Call {
    function: &'static str,
    // A `Cmd` stores a list of byte strings in one buffer, which suits many small ones.
    keys: Cmd,
    arguments: Cmd,
    // Of a function that changes the state, with its journal.
    journal: Option<(Partition, String)>,
    // Whether its changes follow from those of another partition.
    is_derived: bool,
    // Of a function of a recovery, with its journal.
    recovery: Option<(Version, String)>,
}

impl Call {
    /// Returns a call without keys and arguments.
    pub fn new(function: &'static str) -> Self {
        let (keys, arguments) = (Cmd::new(), Cmd::new());
        Self { function, keys, arguments, journal: None, is_derived: false, recovery: None }
    }

    /// Adds a key.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.keys.arg(key.as_ref());
        self
    }

    /// Adds keys in their order.
    #[must_use]
    pub fn keys(self, keys: impl IntoIterator<Item: AsRef<[u8]>>) -> Self {
        keys.into_iter().fold(self, Self::key)
    }

    /// Adds an argument, or one for each item of a list.
    #[must_use]
    pub fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.arguments.arg(argument);
        self
    }

    /// Adds the journal of a function that is registered with `register_change`.
    #[must_use]
    pub fn journal(mut self, partition: Partition, key: String) -> Self {
        self.journal = Some((partition, key));
        self
    }

    /// Makes the call not wait until its changes are durable: they follow from changes of another
    /// partition, which are.
    #[must_use]
    pub fn derived(self) -> Self {
        Self { is_derived: true, ..self }
    }

    /// Adds the journal of a function that is registered with `register_recovery`.
    #[must_use]
    pub fn recovery(mut self, recovery: Recovery, journal: String) -> Self {
        self.recovery = Some((recovery.version, journal));
        self
    }

    /// Returns the command of a call without a journal, for the [`Kind`](crate::Kind) of a client-side
    /// cache.
    pub fn into_command(self, library: Library) -> Cmd {
        static NONE: LazyLock<SeenVersions> =
            LazyLock::new(|| SeenVersions::new(PartitionStates::default()));
        self.command(&VersionedLibrary::of(library), &NONE)
    }

    /// Returns the command, with the function name of this library version. `seen` has the
    /// newest versions.
    pub(crate) fn command(&self, library: &VersionedLibrary, seen: &SeenVersions) -> Cmd {
        let arguments = self.keys.args_iter().chain(self.arguments.args_iter());
        let bytes: usize = arguments.map(|argument| bytes_of(&argument).len()).sum();
        let of_journal = self.journal.as_ref().map(|(_, key)| key);
        let journal = of_journal.or(self.recovery.as_ref().map(|(_, key)| key));
        let keys = self.keys.args_iter().len() + usize::from(journal.is_some());
        let count = keys + self.arguments.args_iter().len();
        let mut command = Cmd::with_capacity(5 + count, bytes + self.function.len() + 96);
        command.arg("FCALL");
        library.write_function(self.function, &mut command);
        command.arg(keys);
        let add = |command: &mut Cmd, arguments: &Cmd| {
            arguments.args_iter().for_each(|argument| {
                command.arg(bytes_of(&argument));
            });
        };
        add(&mut command, &self.keys);
        if let Some(key) = journal {
            command.arg(key);
        }
        add(&mut command, &self.arguments);
        if let Some((version, _)) = &self.recovery {
            command.arg(version.to_string());
        }
        if let Some((partition, _)) = self.journal {
            command.arg(&seen.arguments(partition, self.waits(seen)));
        }
        command
    }

    /// Returns the result in a reply, which may be an error reply. If calls wait until changes are
    /// durable, and the function is one that changes the state, also what the result relies on.
    pub(crate) fn result(
        &self,
        reply: Value,
        seen: &SeenVersions,
    ) -> Result<(Value, Option<RelevantChange>), Error> {
        let Some((partition, journal)) = &self.journal else { return Ok((reply, None)) };
        let (result, change) = seen.take_result(*partition, reply)?;
        let relevant =
            || RelevantChange { partition: *partition, journal: journal.clone(), change };
        Ok((result, self.waits(seen).then(relevant)))
    }

    fn waits(&self, seen: &SeenVersions) -> bool {
        seen.waits() && !self.is_derived
    }

    /// Returns the first key, which determines the node of a cluster.
    pub(crate) fn first_key(&self) -> Option<&[u8]> {
        self.keys.args_iter().next().map(|key| bytes_of(&key))
    }
}

fn bytes_of<'a>(argument: &Arg<&'a [u8]>) -> &'a [u8] {
    match argument {
        Arg::Simple(bytes) => bytes,
        // A cursor, which FCALL does not have.
        _ => b"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Change, Library, PartitionStates};

    #[test]
    fn command_has_the_versioned_function_and_the_number_of_keys() {
        let library = VersionedLibrary::of(Library { name: "test", source: "-- nothing\n" });
        let seen = SeenVersions::new(PartitionStates::default());
        let call = Call::new("f").arg(1).key("a").arg(&[2, 3]).key("b").arg("");
        let command = call.command(&library, &seen).get_packed_command();
        let suffix = library.name.strip_prefix("test").unwrap();
        let mut expected = redis::cmd("FCALL");
        expected.arg(format!("f{suffix}")).arg(2).arg("a").arg("b");
        expected.arg(1).arg(2).arg(3).arg("");
        assert_eq!(command, expected.get_packed_command());
    }

    #[test]
    fn journal_and_newest_version_are_the_last_key_and_arguments() {
        let library = VersionedLibrary::of(Library { name: "test", source: "-- nothing\n" });
        let (seen, partition) = (SeenVersions::new(PartitionStates::default()), Partition::new(7));
        let call = Call::new("f").journal(partition, "j".into()).key("a").arg(1);
        let words = |seen: &SeenVersions| -> Vec<String> {
            let command = call.command(&library, seen);
            let word = |word: Arg<&[u8]>| String::from_utf8(bytes_of(&word).to_vec()).unwrap();
            command.args_iter().skip(2).map(word).collect()
        };
        assert_eq!(words(&seen), ["2", "a", "j", "1", "0", "0", "0"]);
        for (version, newest) in [("3-0", ["3", "0"]), ("2-9", ["3", "0"]), ("3-8", ["3", "8"])] {
            assert_eq!(call.result(reply(version, ""), &seen).unwrap(), (Value::Int(5), None));
            assert_eq!(words(&seen)[4..6], newest, "after {version}");
        }
        let unrecorded = Value::Array(vec![Value::Int(6), Value::Nil, Value::Nil]);
        assert_eq!(call.result(unrecorded, &seen).unwrap(), (Value::Int(6), None));
        assert!(call.result(reply("rubbish", ""), &seen).is_err());
        assert!(call.result(Value::Int(5), &seen).is_err());
    }

    #[test]
    fn a_call_of_a_recovery_has_the_journal_and_the_version_that_began_it() {
        let library = VersionedLibrary::of(Library { name: "test", source: "-- nothing\n" });
        let seen = SeenVersions::new(PartitionStates::default());
        let recovery = Recovery { partition: Partition::new(7), version: "3-0".parse().unwrap() };
        let call = Call::new("f").recovery(recovery, "j".into()).key("a").arg(1);
        let command = call.command(&library, &seen);
        let words: Vec<_> = command.args_iter().skip(2).map(|word| bytes_of(&word)).collect();
        assert_eq!(words, [&b"2"[..], b"a", b"j", b"1", b"3-0"]);
    }

    #[test]
    fn a_call_that_waits_asks_for_the_change_that_its_result_relies_on() {
        let library = VersionedLibrary::of(Library { name: "test", source: "-- nothing\n" });
        let (seen, partition) = (SeenVersions::new(PartitionStates::default()), Partition::new(7));
        let call = Call::new("f").journal(partition, "j".into());
        seen.set_waits();
        let command = call.command(&library, &seen);
        assert_eq!(command.args_iter().last(), Some(Arg::Simple(&b"1"[..])));
        let derived = call.clone().derived();
        let command = derived.command(&library, &seen);
        assert_eq!(command.args_iter().last(), Some(Arg::Simple(&b"0"[..])));
        assert_eq!(derived.result(reply("3-7", ""), &seen).unwrap(), (Value::Int(5), None));
        let relevant = |reply| call.result(reply, &seen).unwrap().1.unwrap();
        let change = Change { version: "3-8".parse().unwrap(), text: "follow 1 2".into() };
        assert_eq!(relevant(reply("3-8", "follow 1 2")).change, Some(change));
        let without_journal = Value::Array(vec![Value::Int(6), Value::Nil, Value::Nil]);
        let unrecorded = relevant(without_journal);
        assert_eq!((unrecorded.partition, &*unrecorded.journal), (partition, "j"));
        assert_eq!(unrecorded.change, None);
    }

    fn reply(version: &str, text: &str) -> Value {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Array(vec![Value::Int(5), bulk(version), bulk(text)])
    }
}
