//! Calls of functions of the service's library: builds `FCALL`.

use redis::{Arg, Cmd, ToRedisArgs};

use crate::{Library, library::VersionedLibrary};

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
}

impl Call {
    /// Returns a call without keys and arguments.
    pub fn new(function: &'static str) -> Self {
        Self { function, keys: Cmd::new(), arguments: Cmd::new() }
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

    /// Returns the command, for the [`Kind`](crate::Kind) of a client-side
    /// cache.
    pub fn into_command(self, library: Library) -> Cmd {
        self.command(&VersionedLibrary::of(library))
    }

    /// Returns the command, with the function name of this library version.
    pub(crate) fn command(&self, library: &VersionedLibrary) -> Cmd {
        let arguments = self.keys.args_iter().chain(self.arguments.args_iter());
        let bytes: usize = arguments.map(|argument| bytes_of(&argument).len()).sum();
        let keys = self.keys.args_iter().len();
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
        add(&mut command, &self.arguments);
        command
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

    #[test]
    fn command_has_the_versioned_function_and_the_number_of_keys() {
        let library = VersionedLibrary::of(Library { name: "test", source: "-- nothing\n" });
        let call = Call::new("f").arg(1).key("a").arg(&[2, 3]).key("b").arg("");
        let command = call.command(&library).get_packed_command();
        let suffix = library.name.strip_prefix("test").unwrap();
        let mut expected = redis::cmd("FCALL");
        expected.arg(format!("f{suffix}")).arg(2).arg("a").arg("b");
        expected.arg(1).arg(2).arg(3).arg("");
        assert_eq!(command, expected.get_packed_command());
    }
}
