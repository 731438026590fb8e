//! The names of commands, and of the functions that they call. Never a key or an argument.

use std::borrow::Cow;

use redis::{Arg, Cmd};

/// Several commands at once.
pub(super) const PIPELINE: &str = "PIPELINE";

/// What some commands are called together.
pub(super) struct Names<'a> {
    /// `GET`; of several, `PIPELINE GET`, or `PIPELINE` if not all are the same.
    pub(super) operation: Cow<'a, str>,
    /// The function that all of them call, if it is one.
    pub(super) function: Option<String>,
}

impl<'a> Names<'a> {
    pub(super) fn of(commands: impl ExactSizeIterator<Item = &'a Cmd> + Clone) -> Self {
        let count = commands.len();
        let command = of_all(commands.clone().map(|command| argument(command, 0)));
        let command = command.map(String::from_utf8_lossy);
        let function = match command.as_deref() {
            Some("FCALL") => of_all(commands.map(|command| argument(command, 1))).map(function),
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

/// Returns the name of the first one.
pub(super) fn first<'a>(mut commands: impl Iterator<Item = &'a Cmd>) -> &'a [u8] {
    commands.next().map_or(b"", |command| argument(command, 0))
}

fn argument(command: &Cmd, place: usize) -> &[u8] {
    match command.args_iter().nth(place) {
        Some(Arg::Simple(bytes)) => bytes,
        _ => b"",
    }
}

/// Returns what all have in common.
fn of_all<'a>(mut all: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// Returns a function's name as the library's source has it, without the digest behind it.
fn function(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.rsplit_once('_').map_or_else(|| name.to_string(), |(name, _digest)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    fn names(commands: &[Cmd]) -> (String, Option<String>) {
        let Names { operation, function } = Names::of(commands.iter());
        (operation.into_owned(), function)
    }

    #[test]
    fn commands_are_called_by_what_they_have_in_common() {
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
