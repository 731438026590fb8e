//! Validation of user text: Unicode normalisation (NFC), trimming, length in grapheme clusters, and
//! rejection of disruptive characters.

use unicode_normalization::UnicodeNormalization as _;
use unicode_segmentation::UnicodeSegmentation as _;

use crate::Invalid;

/// Whether a text may have several lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// For names and places.
    One,
    /// For descriptions and posts.
    Many,
}

// Bytes per permitted character: room for accents and emoji sequences.
const BYTES_PER_CHARACTER_MAX: usize = 16;

// Bytes in one character: room for the longest emoji sequences, but not for a thousand marks
// stacked on one letter.
const BYTES_OF_CHARACTER_MAX: usize = 64;

/// Returns the text normalised to NFC and trimmed, or its error. Rejects more than `max_characters`
/// grapheme clusters (Unicode UAX #29), more than 16 bytes per permitted character, and more than
/// 64 bytes in one. Rejects control characters, bidirectional overrides and noncharacters. Accepts
/// an empty text. Fixes what keyboards insert: a tab becomes a space, and isolates, which phones
/// put around names between scripts, are removed.
pub fn clean(
    field: &str,
    text: &str,
    max_characters: usize,
    lines: Lines,
) -> Result<String, Invalid> {
    let bytes_max = max_characters * BYTES_PER_CHARACTER_MAX;
    if text.len() > 2 * bytes_max {
        return Err(too_long(field, max_characters));
    }
    let is_isolate = |c: &char| matches!(c, '\u{2066}'..='\u{2069}');
    let space = |c| if c == '\t' { ' ' } else { c };
    let text: String = text.chars().filter(|c| !is_isolate(c)).map(space).nfc().collect();
    let text = text.trim().replace("\r\n", "\n");
    if let Some(found) = text.chars().find(|&c| is_forbidden(c, lines)) {
        let problem = format!("must not contain the character U+{:04X}", u32::from(found));
        return Err(Invalid::new(field, problem));
    }
    let mut characters = 0;
    for character in text.graphemes(true) {
        characters += 1;
        if character.len() > BYTES_OF_CHARACTER_MAX {
            return Err(Invalid::new(field, "must not stack so many marks on one character"));
        }
    }
    if text.len() > bytes_max || characters > max_characters {
        return Err(too_long(field, max_characters));
    }
    // Only invisible characters count as empty.
    if text.chars().all(is_invisible) { Ok(String::new()) } else { Ok(text) }
}

fn too_long(field: &str, max_characters: usize) -> Invalid {
    Invalid::new(field, format!("must have at most {max_characters} characters"))
}

fn is_forbidden(c: char, lines: Lines) -> bool {
    match c {
        '\n' => lines == Lines::One,
        '\u{2028}' | '\u{2029}' => true,
        // Embeddings and overrides would reorder the surrounding text.
        '\u{202a}'..='\u{202e}' => true,
        // Interlinear annotations, the byte-order mark, and "tag" language codes but for flags.
        '\u{fff9}'..='\u{fffb}' | '\u{feff}' | '\u{e0001}' => true,
        // Noncharacters: the last two code points of each plane, and a block of their own.
        '\u{fdd0}'..='\u{fdef}' => true,
        c if u32::from(c) & 0xfffe == 0xfffe => true,
        c => c.is_control(),
    }
}

fn is_invisible(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{3164}')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{fe00}'..='\u{fe0f}')
        || matches!(c, '\u{e0020}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(text: &str) -> Result<String, Invalid> {
        clean("bio", text, 5, Lines::One)
    }

    #[test]
    fn text_is_trimmed_and_normalised() {
        assert_eq!(one("  e\u{301} ").unwrap(), "é");
        assert_eq!(clean("bio", "a\r\nb", 5, Lines::Many).unwrap(), "a\nb");
        assert_eq!(one("").unwrap(), "");
    }

    #[test]
    fn characters_are_counted_as_grapheme_clusters() {
        let family = "👩‍👩‍👧‍👦";
        assert_eq!(one(&family.repeat(3)).unwrap(), family.repeat(3));
        assert!(one("微博微博微博").is_err());
        assert!(one("微博微博微").is_ok());
        assert!(one(&"e\u{301}\u{302}".repeat(5)).is_ok());
    }

    #[test]
    fn stacked_combining_marks_are_limited() {
        let stacked = |marks| one(&format!("a{}", "\u{302}".repeat(marks)));
        assert!(stacked(20).is_ok());
        assert!(stacked(35).unwrap_err().problem.contains("marks"));
        assert!(stacked(1_000).is_err());
    }

    #[test]
    fn tabs_and_bidirectional_isolates_are_normalised() {
        assert_eq!(one("a\tb").unwrap(), "a b");
        assert_eq!(one("\u{2068}عم\u{2069}").unwrap(), "عم");
        assert_eq!(one("e\u{2068}\u{301}").unwrap(), "é");
    }

    #[test]
    fn control_and_override_characters_are_rejected() {
        for text in ["a\0", "a\u{7}b", "a\nb", "\u{202e}abc", "a\u{ffff}", "a\u{85}b"] {
            let error = one(text).unwrap_err();
            assert!(error.problem.contains("U+"), "{text:?}: {error}");
        }
        assert!(clean("bio", "a\nb", 5, Lines::Many).is_ok());
    }

    #[test]
    fn invisible_text_is_empty() {
        assert_eq!(one("\u{200b}\u{200d}").unwrap(), "");
        assert_eq!(one(" \u{3000} ").unwrap(), "");
    }

    proptest! {
        #[test]
        fn cleaning_is_idempotent(text in "\\PC{0,40}") {
            if let Ok(cleaned) = clean("bio", &text, 30, Lines::Many) {
                prop_assert_eq!(clean("bio", &cleaned, 30, Lines::Many), Ok(cleaned));
            }
        }
    }
}
