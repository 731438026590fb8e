//! The spans of a trace as a tree.

use std::fmt;

use crate::collector::Seen;

// The values of the protocol.
pub(crate) const SERVER: i32 = 2;
pub(crate) const CLIENT: i32 = 3;
pub(crate) const PRODUCER: i32 = 4;
pub(crate) const CONSUMER: i32 = 5;

/// The spans of one trace.
pub(crate) struct Tree(pub(crate) Vec<Seen>);

impl Tree {
    /// Returns the only span of a service, kind and name below another span.
    pub(crate) fn below(
        &self,
        parent: &[u8],
        service: &str,
        kind: i32,
        name: &str,
    ) -> Option<&Seen> {
        self.children(parent).find(|seen| {
            seen.service == service && seen.span.kind == kind && seen.span.name == name
        })
    }

    /// Returns the round trips to Redis below a span.
    pub(crate) fn redis(&self, parent: &Seen) -> Vec<&Seen> {
        self.stores(parent, "redis")
    }

    /// Returns the operations of a database below a span.
    pub(crate) fn database(&self, parent: &Seen) -> Vec<&Seen> {
        self.stores(parent, "sqlite")
    }

    fn stores(&self, parent: &Seen, system: &str) -> Vec<&Seen> {
        let children = self.children(&parent.span.span_id);
        let is_of = |seen: &&Seen| seen.attribute("db.system.name").as_deref() == Some(system);
        children.filter(is_of).collect()
    }

    /// Returns the operations of post's database.
    pub(crate) fn database_of_post(&self) -> Vec<&Seen> {
        let calls = self.0.iter().filter(|seen| seen.span.name.starts_with("microblog.post."));
        calls.flat_map(|call| self.database(call)).collect()
    }

    /// Returns the parent of a span.
    pub(crate) fn parent(&self, child: &Seen) -> Option<&Seen> {
        self.0.iter().find(|seen| seen.span.span_id == child.span.parent_span_id)
    }

    /// Returns the spans whose parent is neither among them nor the given span.
    pub(crate) fn orphans(&self, root: &[u8]) -> Vec<&Seen> {
        let is_known = |id: &[u8]| self.0.iter().any(|seen| seen.span.span_id == id);
        let mut orphans: Vec<_> = self.0.iter().collect();
        orphans.retain(|seen| {
            let parent = &seen.span.parent_span_id;
            parent != root && !is_known(parent)
        });
        orphans
    }

    fn children(&self, parent: &[u8]) -> impl Iterator<Item = &Seen> {
        self.0.iter().filter(move |seen| seen.span.parent_span_id == parent)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, parent: &[u8], depth: usize) -> fmt::Result {
        for seen in self.children(parent) {
            let (service, name) = (&seen.service, &seen.span.name);
            writeln!(
                f,
                "{:indent$}{service}: {name} ({})",
                "",
                seen.span.kind,
                indent = depth * 2
            )?;
            self.write(f, &seen.span.span_id, depth + 1)?;
        }
        Ok(())
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut roots: Vec<_> =
            self.0.iter().map(|seen| seen.span.parent_span_id.clone()).collect();
        roots.retain(|parent| self.0.iter().all(|seen| seen.span.span_id != *parent));
        roots.sort();
        roots.dedup();
        roots.iter().try_for_each(|root| self.write(f, root, 0))
    }
}
