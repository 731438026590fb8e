//! Invariants of a service: the violations that a check finds, and the repairs that are made.

/// Descriptions of violations with the ids concerned: the first hundred, since one fault causes
/// many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violations(Vec<String>);

impl Violations {
    /// Maximum number kept.
    pub const MAX: usize = 100;

    /// Records a violation unless the condition holds.
    pub fn check(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds && self.0.len() < Self::MAX {
            self.0.push(violation());
        }
    }

    /// Adds the violations of another check.
    pub fn add(&mut self, other: Self) {
        let room = Self::MAX.saturating_sub(self.0.len());
        self.0.extend(other.0.into_iter().take(room));
    }

    /// Returns whether there are no violations.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the descriptions.
    pub fn into_vec(self) -> Vec<String> {
        self.0
    }
}

/// Descriptions of repairs with the ids concerned: the first thousand, and the number of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    lines: Vec<String>,
    more: u64,
}

impl Repairs {
    /// Maximum number of descriptions, so that they fit into a message.
    pub const MAX: usize = 1_000;

    /// Adds a repair.
    pub fn add(&mut self, repair: String) {
        if self.lines.len() < Self::MAX {
            self.lines.push(repair);
        } else {
            self.more += 1;
        }
    }

    /// Adds the repairs of another run.
    pub fn extend(&mut self, other: Self) {
        other.lines.into_iter().for_each(|line| self.add(line));
        self.more += other.more;
    }

    /// Returns whether there were no repairs.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the descriptions.
    pub fn into_vec(self) -> Vec<String> {
        let Self { mut lines, more } = self;
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failed_checks_count_up_to_the_maximum() {
        let mut found = Violations::default();
        found.check(true, || unreachable!("it holds"));
        let mut more = Violations::default();
        for n in 0..80 {
            found.check(false, || format!("first {n}"));
            more.check(false, || format!("second {n}"));
        }
        found.add(more);
        found.check(false, || unreachable!("there are enough"));
        let found = found.into_vec();
        assert_eq!(found.len(), Violations::MAX);
        assert_eq!((found[0].as_str(), found[99].as_str()), ("first 0", "second 19"));
    }

    #[test]
    fn repairs_beyond_the_maximum_are_counted() {
        let mut all = Repairs::default();
        assert!(all.is_empty());
        for _ in 0..2 {
            let mut some = Repairs::default();
            (0..600).for_each(|n| some.add(format!("repair {n}")));
            all.extend(some);
        }
        let lines = all.into_vec();
        assert_eq!(lines.len(), Repairs::MAX + 1);
        assert_eq!(lines[Repairs::MAX], "and 200 more");
    }
}
