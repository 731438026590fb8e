//! Results of a repair of a service's invariants.

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
