//! The lines of an export: of which kinds there are, and how many of each were written.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Serialize;

use super::output::Output;

/// What a line is about, in the order of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// The account itself.
    Account,
    /// Whom it follows.
    Following,
    /// Who follows it.
    Follower,
    /// Whom it blocks.
    Block,
    /// Whom it mutes.
    Mute,
    /// A post or repost of its.
    Post,
    /// A comment of its, on a post of anybody's.
    Comment,
    /// That there is nothing more.
    End,
}

impl Kind {
    /// Returns what people call several of them.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Account => "accounts",
            Self::Following => "following",
            Self::Follower => "followers",
            Self::Block => "blocks",
            Self::Mute => "mutes",
            Self::Post => "posts",
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
}

/// An export on its way to where it is written.
pub(super) struct Lines {
    output: Output,
    counts: BTreeMap<Kind, u64>,
}

impl Lines {
    /// Starts one.
    pub(super) fn new(output: Output) -> Self {
        Self { output, counts: BTreeMap::new() }
    }

    /// Says that lines of a kind come now, of which there may be none.
    pub(super) fn begin(&mut self, kind: Kind) {
        self.counts.entry(kind).or_default();
    }

    /// Writes a line.
    pub(super) fn write(&mut self, kind: Kind, record: &impl Serialize) -> anyhow::Result<()> {
        self.append(kind, record)?;
        *self.counts.entry(kind).or_default() += 1;
        Ok(())
    }

    /// Writes the last line, which says how many there are of each kind, and returns the number of
    /// all lines.
    pub(super) fn finish(mut self) -> anyhow::Result<u64> {
        let end = End { lines: std::mem::take(&mut self.counts) };
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
