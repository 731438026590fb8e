//! Operation names of round trips: commands and functions, never keys or arguments.

use std::borrow::Cow;

use redis::{Arg, Cmd};

/// The operation of several commands.
pub(super) const PIPELINE: &str = "PIPELINE";

/// The operation name of one or more commands.
pub(super) struct OperationName<'a> {
    /// `GET` for one command; `PIPELINE GET` for several; `PIPELINE` if they differ.
    pub(super) operation: Cow<'a, str>,
    /// The function, if all commands call the same one.
    pub(super) function: Option<String>,
}

impl<'a> OperationName<'a> {
    pub(super) fn of(commands: impl ExactSizeIterator<Item = &'a Cmd> + Clone) -> Self {
        let count = commands.len();
        let command = common(commands.clone().map(|command| argument(command, 0)));
        let command = command.map(String::from_utf8_lossy);
        let function = match command.as_deref() {
            Some("FCALL") => common(commands.map(|command| argument(command, 1))).map(function),
            _ => None,
        };
        let operation = match (count, command) {
            (1, Some(command)) => command,
            (_, Some(command)) => format!("{PIPELINE} {command}").into(),
            (_, None) => PIPELINE.into(),
        };
        Self { operation, function }
    }
}

/// Returns the name of the first command.
pub(super) fn first_command<'a>(mut commands: impl Iterator<Item = &'a Cmd>) -> &'a [u8] {
    commands.next().map_or(b"", |command| argument(command, 0))
}

fn argument(command: &Cmd, index: usize) -> &[u8] {
    match command.args_iter().nth(index) {
        Some(Arg::Simple(bytes)) => bytes,
        _ => b"",
    }
}

/// Returns the value that all items share.
fn common<'a>(mut all: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// Returns a function's name without the digest of its library version.
fn function(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.rsplit_once('_').map_or_else(|| name.to_string(), |(name, _digest)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    fn names(commands: &[Cmd]) -> (String, Option<String>) {
        let OperationName { operation, function } = OperationName::of(commands.iter());
        (operation.into_owned(), function)
    }

    #[test]
    fn operation_name_has_what_all_commands_share() {
        let get = |key| cmd("GET").arg(key).take();
        let call = |name| cmd("FCALL").arg(name).arg(1).arg("key").take();
        let (push, pull) = (call("tl_push_0a1b2c3d"), call("tl_pull_0a1b2c3d"));
        let named = |operation: &str, function: Option<&str>| {
            (operation.to_owned(), function.map(str::to_owned))
        };
        assert_eq!(names(&[get("a")]), named("GET", None));
        assert_eq!(names(&[get("a"), get("b")]), named("PIPELINE GET", None));
        assert_eq!(names(&[get("a"), push.clone()]), named("PIPELINE", None));
        assert_eq!(names(std::slice::from_ref(&push)), named("FCALL", Some("tl_push")));
        assert_eq!(names(&[push.clone(), push.clone()]), named("PIPELINE FCALL", Some("tl_push")));
        assert_eq!(names(&[push, pull]), named("PIPELINE FCALL", None));
    }
}
