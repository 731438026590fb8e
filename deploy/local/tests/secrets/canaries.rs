//! Words that stand for secrets, and what they look like where somebody prints them.

use std::{cell::RefCell, iter};

const LETTERS: &[u8] = b"abcdefghijkmnopqrstuvwxyz23456789";
const LENGTH: usize = 20;

/// What servers make of secrets, and how that begins: nobody's business either.
const MADE: [(&str, &str); 4] = [
    ("the hash of a password", "$argon2"),
    ("a user's signed identity", "v1.user:"),
    ("the system's signed identity", "v1.system."),
    ("nobody's signed identity", "v1.nobody."),
];

/// The secrets of a test, each with what it is.
pub(crate) struct Canaries(RefCell<Vec<(String, String)>>);

impl Canaries {
    pub(crate) fn new() -> Self {
        let made = MADE.map(|(what, beginning)| (what.to_owned(), beginning.to_owned()));
        Self(RefCell::new(made.to_vec()))
    }

    /// Returns a new one.
    pub(crate) fn make(&self, what: &str) -> String {
        self.make_of(what, LENGTH)
    }

    /// Returns a new one of so many letters.
    pub(crate) fn make_of(&self, what: &str, length: usize) -> String {
        let secret = word(length);
        self.add(what, &secret);
        secret
    }

    /// Takes a secret in that the system made.
    pub(crate) fn add(&self, what: &str, secret: &str) {
        self.0.borrow_mut().push((what.to_owned(), secret.to_owned()));
    }

    /// Returns what each secret is that a text shows, with what stands around it.
    pub(crate) fn shown_by(&self, text: &str) -> Vec<String> {
        let secrets = self.0.borrow();
        let shown = secrets.iter().filter_map(|(what, secret)| {
            let at = forms(secret).iter().find_map(|form| text.find(form))?;
            Some(format!("{what}: …{}…", around(text, at)))
        });
        shown.collect()
    }
}

/// Returns a word that nobody else makes up.
pub(crate) fn word(length: usize) -> String {
    let letter = || char::from(LETTERS[rand::random_range(0..LETTERS.len())]);
    iter::repeat_with(letter).take(length).collect()
}

/// As text, and as the formats of Rust show bytes: in decimal and in hexadecimal numbers.
fn forms(secret: &str) -> [String; 3] {
    let decimal = format!("{:?}", secret.as_bytes());
    let decimal = decimal.trim_matches(['[', ']']).to_owned();
    [secret.to_owned(), decimal, hex::encode(secret)]
}

/// Returns what stands around a place in its line.
fn around(text: &str, at: usize) -> String {
    const BEFORE: usize = 300;
    const AFTER: usize = 120;
    let line = text[..at].char_indices().rev().take_while(|(_, letter)| *letter != '\n');
    let start = line.take(BEFORE).last().map_or(at, |(start, _)| start);
    text[start..].chars().take(BEFORE + AFTER).collect()
}

#[test]
fn a_secret_is_found_however_it_is_printed() {
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
