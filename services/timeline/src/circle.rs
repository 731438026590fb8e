//! How authors stand to a reader, as far as it was asked: once for each.

use std::iter;

use microblog_domain::{IdMap, IdSet, UserId};
use microblog_proto::relation::Relation;

use crate::{
    entry::Entry,
    error::Error,
    graph::{Graph, Standing},
    list::Shown,
};

/// Whose posts a timeline shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Those of whom the reader follows, and the reader's own.
    Followings,
    /// Those of whom the reader follows and is followed by.
    Mutuals,
}

/// The authors around a reader.
#[derive(Debug)]
pub(crate) struct Circle {
    pub(crate) reader: UserId,
    sight: Sight,
    standings: IdMap<UserId, Standing>,
    version: Option<u64>,
}

impl Circle {
    pub(crate) fn new(reader: UserId, sight: Sight) -> Self {
        Self { reader, sight, standings: IdMap::default(), version: None }
    }

    /// Asks about those of the authors who were not asked about before. No call if there is nobody
    /// new, unless nothing was ever asked.
    pub(crate) async fn ask(&mut self, graph: &Graph, authors: Vec<UserId>) -> Result<(), Error> {
        let is_new = |author: &UserId| !self.standings.contains_key(author);
        let authors: Vec<_> = authors.into_iter().filter(is_new).collect();
        if authors.is_empty() && self.version.is_some() {
            return Ok(());
        }
        let (standings, version) = graph.standings(self.reader, &authors).await?;
        self.standings.extend(authors.into_iter().zip(standings));
        // The oldest answer: what came later, the next read sees.
        self.version = Some(self.version.map_or(version, |known| known.min(version)));
        Ok(())
    }

    /// Returns the version of the reader's newest follow, as the oldest of the answers has it.
    pub(crate) fn version(&self) -> u64 {
        self.version.unwrap_or(0)
    }

    /// Returns whether the timeline shows an entry. Its author must have been asked about.
    pub(crate) fn is_visible(&self, entry: &Entry) -> bool {
        self.sees(entry.author)
    }

    /// Returns whether the timeline shows what an author posts, who must have been asked about.
    pub(crate) fn sees(&self, author: UserId) -> bool {
        // Readers see what they post, but are no friends of their own.
        if author == self.reader {
            return self.sight == Sight::Followings;
        }
        let standing = self.standings.get(&author).filter(|standing| !standing.is_apart());
        standing.is_some_and(|standing| match self.sight {
            Sight::Followings => standing.is_followed(),
            Sight::Mutuals => standing.is_mutual(),
        })
    }

    /// Returns whether there is somebody among those asked about whom the reader does not follow.
    pub(crate) fn has_strangers(&self) -> bool {
        self.standings.values().any(|standing| !standing.is_followed())
    }

    /// Returns how those who wrote what is shown, or stands in for it, stand to the reader: one for
    /// each.
    pub(crate) fn relations(&self, shown: &[Shown]) -> Vec<Relation> {
        let mut told = IdSet::default();
        told.reserve(shown.len());
        let entries =
            shown.iter().flat_map(|shown| iter::once(&shown.entry).chain(&shown.stand_ins));
        let authors = entries.map(|entry| entry.author).filter(|&author| told.insert(author));
        let standing = |author: UserId| {
            let own = (author == self.reader).then(|| Standing::own(author));
            own.or_else(|| self.standings.get(&author).copied())
        };
        authors.filter_map(standing).map(|standing| standing.relation()).collect()
    }
}
