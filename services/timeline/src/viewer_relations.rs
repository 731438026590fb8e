//! Relations between a viewer and authors. Each author is looked up once per read.

use std::iter;

use microblog_domain::{IdMap, IdSet, UserId};
use microblog_proto::relation::Relation;

use crate::{
    entry::Entry,
    error::Error,
    graph::{Graph, ViewerRelation},
    list::VisibleEntry,
};

/// Which timeline of a viewer: whose posts it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimelineKind {
    /// Posts of the viewer's followings and of the viewer.
    Home,
    /// Posts of users who follow the viewer and whom the viewer follows.
    Friends,
}

/// The relations that one read has loaded.
#[derive(Debug)]
pub(crate) struct ViewerRelations {
    pub(crate) reader: UserId,
    kind: TimelineKind,
    relations: IdMap<UserId, ViewerRelation>,
    version: Option<u64>,
}

impl ViewerRelations {
    pub(crate) fn new(reader: UserId, kind: TimelineKind) -> Self {
        Self { reader, kind, relations: IdMap::default(), version: None }
    }

    /// Loads the relations to authors that are not loaded yet. Makes no call if all are, except the
    /// first time, which loads the version.
    pub(crate) async fn load(&mut self, graph: &Graph, authors: Vec<UserId>) -> Result<(), Error> {
        let is_new = |author: &UserId| !self.relations.contains_key(author);
        let authors: Vec<_> = authors.into_iter().filter(is_new).collect();
        if authors.is_empty() && self.version.is_some() {
            return Ok(());
        }
        let (relations, version) = graph.relations(self.reader, &authors).await?;
        self.relations.extend(authors.into_iter().zip(relations));
        // The minimum over all responses. The next read handles later follows.
        self.version = Some(self.version.map_or(version, |known| known.min(version)));
        Ok(())
    }

    /// Returns the version of the viewer's newest follow, the minimum over all responses.
    pub(crate) fn version(&self) -> u64 {
        self.version.unwrap_or(0)
    }

    /// Returns whether the timeline shows an entry. Its author must be loaded.
    pub(crate) fn is_visible(&self, entry: &Entry) -> bool {
        self.is_author_visible(entry.author)
    }

    /// Returns whether the timeline shows an author's posts. The author must be loaded.
    pub(crate) fn is_author_visible(&self, author: UserId) -> bool {
        // Home timelines include the viewer's own posts; friends timelines do not.
        if author == self.reader {
            return self.kind == TimelineKind::Home;
        }
        let relation =
            self.relations.get(&author).filter(|relation| !relation.is_blocked_or_muted());
        relation.is_some_and(|relation| match self.kind {
            TimelineKind::Home => relation.is_followed(),
            TimelineKind::Friends => relation.is_mutual(),
        })
    }

    /// Returns whether the viewer does not follow some loaded author.
    pub(crate) fn has_unfollowed(&self) -> bool {
        self.relations.values().any(|relation| !relation.is_followed())
    }

    /// Returns the relations to the authors of visible entries and of their suppressed reposts,
    /// each author once.
    pub(crate) fn relations(&self, shown: &[VisibleEntry]) -> Vec<Relation> {
        let mut listed = IdSet::default();
        listed.reserve(shown.len());
        let entries =
            shown.iter().flat_map(|shown| iter::once(&shown.entry).chain(&shown.suppressed));
        let authors = entries.map(|entry| entry.author).filter(|&author| listed.insert(author));
        let relation = |author: UserId| {
            let own = (author == self.reader).then(|| ViewerRelation::to_self(author));
            own.or_else(|| self.relations.get(&author).copied())
        };
        authors.filter_map(relation).map(|relation| relation.relation()).collect()
    }
}
