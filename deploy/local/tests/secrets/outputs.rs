//! Outputs outputs, by their source.

use crate::canaries::Canaries;

/// The outputs.
#[derive(Default)]
pub(crate) struct Outputs(Vec<(String, String)>);

impl Outputs {
    pub(crate) fn add(&mut self, source: impl Into<String>, text: impl Into<String>) {
        self.0.push((source.into(), text.into()));
    }

    /// Asserts that no output contains a secret.
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

    /// Asserts that all outputs of these sources contain a public text, which shows that they were
    /// outputs and searched.
    pub(crate) fn assert_contains(&self, source: &str, public: &str) {
        let mut texts = self.0.iter().filter(|(of, _)| of.starts_with(source)).peekable();
        assert!(texts.peek().is_some(), "nothing from {source}");
        for (of, text) in texts {
            let length = text.len();
            assert!(text.contains(public), "{of} does not contain `{public}` in {length} bytes");
        }
    }
}
