//! All that was seen from outside, and by what it was told.

use crate::canaries::Canaries;

/// What was seen.
#[derive(Default)]
pub(crate) struct Collected(Vec<(String, String)>);

impl Collected {
    pub(crate) fn add(&mut self, source: impl Into<String>, text: impl Into<String>) {
        self.0.push((source.into(), text.into()));
    }

    /// Asserts that no secret is in it.
    pub(crate) fn assert_keeps(&self, canaries: &Canaries) {
        let leaks: Vec<String> = self
            .0
            .iter()
            .flat_map(|(source, text)| {
                let shown = canaries.shown_by(text).into_iter();
                shown.map(move |shown| format!("{source} shows {shown}\n"))
            })
            .collect();
        assert!(leaks.is_empty(), "{} leaks:\n{}", leaks.len(), leaks.concat());
    }

    /// Asserts that what everybody may know is in everything from these sources: they are there, and
    /// were looked at.
    pub(crate) fn assert_tells(&self, source: &str, public: &str) {
        let mut texts = self.0.iter().filter(|(of, _)| of.starts_with(source)).peekable();
        assert!(texts.peek().is_some(), "nothing from {source}");
        for (of, text) in texts {
            let length = text.len();
            assert!(text.contains(public), "{of} does not tell `{public}` in {length} bytes");
        }
    }
}
