//! Canaries: unique words in place of secrets, and the forms in which they may be printed.

use std::{cell::RefCell, iter};

const LETTERS: &[u8] = b"abcdefghijkmnopqrstuvwxyz23456789";
const LENGTH: usize = 20;

/// Secrets that servers derive, with their prefixes.
const MADE: [(&str, &str); 4] = [
    ("the hash of a password", "$argon2"),
    ("a user's signed identity", "v1.user:"),
    ("the system's signed identity", "v1.system."),
    ("an anonymous signed identity", "v1.anonymous."),
];

/// The secrets of a test, each with a description.
pub(crate) struct Canaries(RefCell<Vec<(String, String)>>);

impl Canaries {
    pub(crate) fn new() -> Self {
        let made = MADE.map(|(what, beginning)| (what.to_owned(), beginning.to_owned()));
        Self(RefCell::new(made.to_vec()))
    }

    /// Generates a canary.
    pub(crate) fn make(&self, what: &str) -> String {
        self.make_of(what, LENGTH)
    }

    /// Generates a canary of this length.
    pub(crate) fn make_of(&self, what: &str, length: usize) -> String {
        let secret = word(length);
        self.add(what, &secret);
        secret
    }

    /// Adds a secret that the system generated.
    pub(crate) fn add(&self, what: &str, secret: &str) {
        self.0.borrow_mut().push((what.to_owned(), secret.to_owned()));
    }

    /// Returns the descriptions of the secrets in a text, each with its context.
    pub(crate) fn shown_by(&self, text: &str) -> Vec<String> {
        let secrets = self.0.borrow();
        let shown = secrets.iter().filter_map(|(what, secret)| {
            let at = forms(secret).iter().find_map(|form| text.find(form))?;
            Some(format!("{what}: …{}…", around(text, at)))
        });
        shown.collect()
    }
}

/// Returns a unique word.
pub(crate) fn word(length: usize) -> String {
    let letter = || char::from(LETTERS[rand::random_range(0..LETTERS.len())]);
    iter::repeat_with(letter).take(length).collect()
}

/// As text, and as Rust's debug formats print bytes: in decimal and hexadecimal.
fn forms(secret: &str) -> [String; 3] {
    let decimal = format!("{:?}", secret.as_bytes());
    let decimal = decimal.trim_matches(['[', ']']).to_owned();
    [secret.to_owned(), decimal, hex::encode(secret)]
}

/// Returns the context of a position in its line.
fn around(text: &str, at: usize) -> String {
    const BEFORE: usize = 300;
    const AFTER: usize = 120;
    let line = text[..at].char_indices().rev().take_while(|(_, letter)| *letter != '\n');
    let start = line.take(BEFORE).last().map_or(at, |(start, _)| start);
    text[start..].chars().take(BEFORE + AFTER).collect()
}

#[test]
fn a_secret_is_found_in_every_printed_form() {
    let canaries = Canaries::new();
    let secret = canaries.make("the password");
    assert!(canaries.shown_by("nothing to see, not even é").is_empty());
    let bytes = secret.as_bytes();
    for text in [
        format!("é redis://user:{secret}@host"),
        format!("{:?}", Some(bytes)),
        format!("frame {}", hex::encode(bytes)),
    ] {
        let shown = canaries.shown_by(&text);
        assert!(shown.len() == 1 && shown[0].starts_with("the password: "), "{text}: {shown:?}");
    }
}
