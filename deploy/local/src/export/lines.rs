//! The lines of an export: their kinds and counts.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Serialize;

use super::output::Output;

/// The kind of a line, in the order of the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// The account itself.
    Account,
    /// An account that it follows.
    Following,
    /// A follower.
    Follower,
    /// A blocked account.
    Block,
    /// A muted account.
    Mute,
    /// A post or repost by the account.
    Post,
    /// A post that the account likes.
    Like,
    /// A comment by the account, on any post.
    Comment,
    /// The end of the export.
    End,
}

impl Kind {
    /// Returns the plural, for progress output.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Account => "accounts",
            Self::Following => "following",
            Self::Follower => "followers",
            Self::Block => "blocks",
            Self::Mute => "mutes",
            Self::Post => "posts",
            Self::Like => "likes",
            Self::Comment => "comments",
            Self::End => "ends",
        }
    }
}

#[derive(Serialize)]
struct Line<'a, T> {
    kind: Kind,
    #[serde(flatten)]
    record: &'a T,
}

#[derive(Serialize)]
struct End {
    lines: BTreeMap<Kind, u64>,
    /// What the account has, and the export does not.
    omitted: Vec<&'static str>,
}

/// What an export never has: secrets, and what the notice service makes of the others' acts.
const OMITTED: [&str; 3] = ["password", "sessions", "notices"];

/// A writer of export lines.
pub(super) struct Lines {
    output: Output,
    counts: BTreeMap<Kind, u64>,
}

impl Lines {
    /// Starts an export.
    pub(super) fn new(output: Output) -> Self {
        Self { output, counts: BTreeMap::new() }
    }

    /// Starts a kind, which may have no lines.
    pub(super) fn begin(&mut self, kind: Kind) {
        self.counts.entry(kind).or_default();
    }

    /// Writes a line.
    pub(super) fn write(&mut self, kind: Kind, record: &impl Serialize) -> anyhow::Result<()> {
        self.append(kind, record)?;
        *self.counts.entry(kind).or_default() += 1;
        Ok(())
    }

    /// Writes the last line, with the counts of all kinds, and what the export leaves out. Returns the number
    /// of lines.
    pub(super) fn finish(mut self, without_comments: bool) -> anyhow::Result<u64> {
        let comments = without_comments.then_some("comments");
        let omitted = OMITTED.into_iter().chain(comments).collect();
        let end = End { lines: std::mem::take(&mut self.counts), omitted };
        self.append(Kind::End, &end)?;
        self.output.finish()?;
        Ok(end.lines.values().sum::<u64>() + 1)
    }

    fn append(&mut self, kind: Kind, record: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(&Line { kind, record })?;
        line.push(b'\n');
        self.output.write(&line).context("cannot write the export")
    }
}
