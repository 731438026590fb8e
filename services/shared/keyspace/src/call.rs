//! One call of a function of the service's library. Knows the form of `FCALL`, no function's name.

use redis::{Arg, Cmd, ToRedisArgs};

use crate::library::Composed;

/// One call of a function: its name as the library's source has it, its keys, its arguments.
///
/// Every key must be named, and all of them lie in one partition, unless the keyspace joins
/// partitions.
#[derive(Clone)]
pub struct Call {
    function: &'static str,
    // Used as mere lists of byte strings in one buffer each: a call has many small ones.
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

    /// Adds some keys, in their order.
    #[must_use]
    pub fn keys(self, keys: impl IntoIterator<Item: AsRef<[u8]>>) -> Self {
        keys.into_iter().fold(self, Self::key)
    }

    /// Adds an argument; a list adds one for each of its items.
    #[must_use]
    pub fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.arguments.arg(argument);
        self
    }

    /// Returns the command, with the function's name as this library has it.
    pub(crate) fn command(&self, library: &Composed) -> Cmd {
        let arguments = self.keys.args_iter().chain(self.arguments.args_iter());
        let bytes: usize = arguments.clone().map(|argument| bytes_of(&argument).len()).sum();
        let keys = self.keys.args_iter().len();
        let count = keys + self.arguments.args_iter().len();
        let mut command = Cmd::with_capacity(3 + count, bytes + self.function.len() + 32);
        command.arg("FCALL");
        library.write_function(self.function, &mut command);
        command.arg(keys);
        for argument in arguments {
            command.arg(bytes_of(&argument));
        }
        command
    }

    /// Returns a key, which tells a cluster where to call.
    pub(crate) fn first_key(&self) -> Option<&[u8]> {
        self.keys.args_iter().next().map(|key| bytes_of(&key))
    }
}

// Names the function alone: keys and arguments may be secret or huge.
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Call").field(&self.function).finish()
    }
}

fn bytes_of<'a>(argument: &Arg<&'a [u8]>) -> &'a [u8] {
    match argument {
        Arg::Simple(bytes) => bytes,
        // Only scans have a cursor, and no function is one.
        _ => b"",
    }
}
