//! How a round trip failed, in a word.

use redis::Value;

use crate::Error;

/// That a group of consumers is there already: what whoever creates it wants, each time that a process
/// starts. It is no failure.
const THERE_ALREADY: &str = "BUSYGROUP";

/// How a round trip failed: `error.type` is the code with which Redis refused, or `timeout`,
/// `unavailable` or `malformed`.
pub(super) enum Failure<'a> {
    Refused(&'a str),
    Other(&'a str),
}

impl<'a> Failure<'a> {
    /// Returns that of answers some of which are refusals: the first one.
    pub(super) fn among(answers: &'a [Value]) -> Option<Self> {
        answers.iter().find_map(refusal).map(Self::Refused)
    }

    /// Returns that of an error in place of answers.
    pub(super) fn of(error: &'a Error) -> Self {
        match error.said() {
            Some(code) => Self::Refused(code),
            None => Self::Other(error.word()),
        }
    }

    /// Returns it in a word.
    pub(super) fn name(&self) -> &str {
        let (Self::Refused(name) | Self::Other(name)) = self;
        name
    }
}

/// Returns the code of an answer that is a refusal.
fn refusal(answer: &Value) -> Option<&str> {
    match answer {
        Value::ServerError(error) => Some(error.code()).filter(|code| *code != THERE_ALREADY),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure_of(answers: &[&str]) -> Option<String> {
        let parse = |answer: &&str| redis::parse_redis_value(answer.as_bytes()).unwrap();
        let answers: Vec<_> = answers.iter().map(parse).collect();
        Failure::among(&answers).map(|failure| failure.name().to_owned())
    }

    #[test]
    fn a_group_that_is_there_already_is_no_failure() {
        assert_eq!(failure_of(&["+OK\r\n", "-BUSYGROUP already exists\r\n"]), None);
        let several = ["-BUSYGROUP already exists\r\n", "-OOM is full\r\n", "-ERR bad\r\n"];
        assert_eq!(failure_of(&several).as_deref(), Some("OOM"));
    }
}
