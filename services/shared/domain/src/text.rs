//! Rules for text that people write: normalised (NFC), trimmed, counted as people count, free of
//! what disturbs the text around it.

use unicode_normalization::UnicodeNormalization as _;
use unicode_segmentation::UnicodeSegmentation as _;

use crate::Invalid;

/// Whether a text may have more than one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// A name, a place.
    One,
    /// A description, a post.
    Many,
}

// Room for accents and emoji sequences, but not for a mark stacked a thousand times on one letter.
const BYTES_PER_CHARACTER_MAX: usize = 16;

/// Returns a text normalised to NFC and trimmed, or what is wrong with it: more than `max_characters`
/// characters (grapheme clusters, as Unicode's UAX #29 counts them), or more than 16 bytes for each
/// of them, a control character, a bidirectional override, or a character that Unicode reserves.
/// An empty text is fine.
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
    let text: String = text.nfc().collect::<String>().trim().replace("\r\n", "\n");
    if let Some(found) = text.chars().find(|&c| is_forbidden(c, lines)) {
        let problem = format!("must not contain the character U+{:04X}", u32::from(found));
        return Err(Invalid::new(field, problem));
    }
    if text.len() > bytes_max || text.graphemes(true).nth(max_characters).is_some() {
        return Err(too_long(field, max_characters));
    }
    // Nothing but invisible characters is nothing.
    if text.chars().all(is_invisible) { Ok(String::new()) } else { Ok(text) }
}

fn too_long(field: &str, max_characters: usize) -> Invalid {
    Invalid::new(field, format!("must have at most {max_characters} characters"))
}

fn is_forbidden(c: char, lines: Lines) -> bool {
    match c {
        '\n' => lines == Lines::One,
        '\u{2028}' | '\u{2029}' => true,
        // Embeddings, overrides and isolates would reorder what stands beside the text.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
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
    fn characters_are_counted_as_people_count() {
        let family = "👩‍👩‍👧‍👦";
        assert_eq!(one(&family.repeat(3)).unwrap(), family.repeat(3));
        assert!(one("微博微博微博").is_err());
        assert!(one("微博微博微").is_ok());
        assert!(one(&format!("a{}", "\u{301}".repeat(1000))).is_err());
    }

    #[test]
    fn what_disturbs_other_text_is_refused() {
        for text in ["a\0", "a\u{7}b", "a\nb", "\u{202e}abc", "a\u{2066}b", "a\u{ffff}", "a\u{85}b"]
        {
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
        fn cleaning_twice_changes_nothing_more(text in "\\PC{0,40}") {
            if let Ok(cleaned) = clean("bio", &text, 30, Lines::Many) {
                prop_assert_eq!(clean("bio", &cleaned, 30, Lines::Many), Ok(cleaned));
            }
        }
    }
}
