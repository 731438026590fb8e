//! Invariants of a service: the violations that a check finds.

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
}
