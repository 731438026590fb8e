//! Validation of user text: Unicode normalisation (NFC), trimming, length in grapheme clusters, and
//! rejection of disruptive and invisible characters.
//!
//! Properties and NFC are those of Unicode 18.0, grapheme clusters those of Unicode 17.0.

use icu_properties::{
    CodePointMapData, CodePointSetData,
    props::{DefaultIgnorableCodePoint, GeneralCategory, PrependedConcatenationMark},
};
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

// Bytes per permitted character: those of the longest emoji in Unicode's list (RGI), a kiss of two
// people with skin tones. So what people write meets the limit in characters first.
const BYTES_PER_CHARACTER_MAX: usize = 35;

// Bytes in one character: room for the longest clusters of any script, but not for a thousand marks
// stacked on one letter.
const BYTES_OF_CHARACTER_MAX: usize = 64;

/// Returns the text normalised to NFC and trimmed, or its error. Rejects more than `max_characters`
/// grapheme clusters (Unicode UAX #29), more than 35 bytes per permitted character, and more than
/// 64 bytes in one. Rejects control characters, bidirectional overrides and noncharacters. Accepts
/// an empty text. Fixes what keyboards insert: a tab becomes a space, and isolates, which phones
/// put around names between scripts, are removed.
///
/// Rejects one line with a grapheme cluster that shows nothing and is not white space; direction
/// marks and zero-width spaces are removed. Several lines are empty if no character shows.
pub fn clean(
    field: &str,
    text: &str,
    max_characters: usize,
    lines: Lines,
) -> Result<String, Invalid> {
    cleaned(text, max_characters, lines).map_err(|problem| Invalid::new(field, problem))
}

/// Returns whether some character of a text shows.
pub fn shows(text: &str) -> bool {
    text.contains(is_shown)
}

/// Returns the cleaned text, or what is wrong with it.
fn cleaned(text: &str, max_characters: usize, lines: Lines) -> Result<String, String> {
    let bytes_max = max_characters * BYTES_PER_CHARACTER_MAX;
    let too_many_bytes = || Err(format!("must have at most {bytes_max} bytes"));
    // Bounds the cost of normalisation.
    if text.len() > 2 * bytes_max {
        return too_many_bytes();
    }
    let space = |c| if c == '\t' { ' ' } else { c };
    let text: String = text.chars().filter(|&c| !is_removed(c, lines)).map(space).nfc().collect();
    let text = text.trim().replace("\r\n", "\n");
    if let Some(found) = text.chars().find(|&c| is_forbidden(c, lines)) {
        return Err(format!("must not contain the character U+{:04X}", u32::from(found)));
    }
    check_characters(&text, max_characters)?;
    if text.len() > bytes_max {
        return too_many_bytes();
    }
    match lines {
        Lines::One => match first_hidden(&text).map(u32::from) {
            Some(c) => {
                Err(format!("must not contain the character U+{c:04X} where it shows nothing"))
            }
            None => Ok(text),
        },
        Lines::Many if shows(&text) => Ok(text),
        Lines::Many => Ok(String::new()),
    }
}

fn check_characters(text: &str, max: usize) -> Result<(), String> {
    let mut characters = 0;
    for character in text.graphemes(true) {
        characters += 1;
        if character.len() > BYTES_OF_CHARACTER_MAX {
            let max = BYTES_OF_CHARACTER_MAX;
            return Err(format!("must have at most {max} bytes in each character"));
        }
    }
    if characters > max { Err(format!("must have at most {max} characters")) } else { Ok(()) }
}

fn is_removed(c: char, lines: Lines) -> bool {
    match c {
        '\u{2066}'..='\u{2069}' => true,
        // A Khmer keyboard inserts zero-width spaces, Arabic and Hebrew ones insert direction marks.
        '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{61c}' => lines == Lines::One,
        _ => false,
    }
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

/// What a reader sees of a character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visibility {
    Shown,
    /// Shown on or with the characters before it.
    Attached,
    /// At most changes how the characters of its grapheme cluster are shown.
    Hidden,
}

/// Characters without ink that no property tells from others of their kind: the Braille pattern
/// without dots, the null notehead, and the blank hieroglyphs.
const BLANK: [char; 4] = ['\u{2800}', '\u{1d159}', '\u{13441}', '\u{13442}'];

const MONGOLIAN_VOWEL_SEPARATOR: char = '\u{180e}';

fn visibility(c: char) -> Visibility {
    use GeneralCategory as Category;
    // Unlike other ignorable characters, it is a grapheme cluster of its own inside of words.
    if c == MONGOLIAN_VOWEL_SEPARATOR {
        return Visibility::Attached;
    }
    if CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c) || BLANK.contains(&c) {
        return Visibility::Hidden;
    }
    match CodePointMapData::<GeneralCategory>::new().get(c) {
        Category::Control
        | Category::Unassigned
        | Category::SpaceSeparator
        | Category::LineSeparator
        | Category::ParagraphSeparator => Visibility::Hidden,
        Category::NonspacingMark | Category::SpacingMark | Category::EnclosingMark => {
            Visibility::Attached
        }
        // Signs that enclose the digits after them; the other format characters join hieroglyphs.
        Category::Format if CodePointSetData::new::<PrependedConcatenationMark>().contains(c) => {
            Visibility::Shown
        }
        Category::Format => Visibility::Attached,
        _ => Visibility::Shown,
    }
}

fn is_shown(c: char) -> bool {
    visibility(c) == Visibility::Shown
}

/// Returns the first character of a line that is not white space and whose grapheme cluster shows
/// nothing. A cluster of marks shows something after one that does: some vowel signs, such as those
/// of Burmese, are clusters of their own.
fn first_hidden(line: &str) -> Option<char> {
    let mut shows = false;
    line.graphemes(true).find_map(|cluster| {
        let is_attached = cluster.starts_with(|c| visibility(c) == Visibility::Attached);
        shows = cluster.contains(is_shown) || shows && is_attached;
        if shows { None } else { cluster.chars().find(|c| !c.is_whitespace()) }
    })
}

#[cfg(test)]
mod tests {
    use icu_properties::props::GeneralCategoryGroup;
    use proptest::{collection::vec, prelude::*, sample::select};

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

    /// Graphemes that people write, some of which have invisible characters in them.
    const WRITTEN: [&str; 26] = [
        "a",
        "e\u{301}",
        "微",
        // A variant of a Japanese name.
        "葛\u{e0100}",
        "한",
        "\u{1112}\u{1161}\u{11ab}",
        // Old Korean, without a first consonant.
        "\u{115f}\u{1161}",
        "म\u{93f}",
        "क\u{94d}\u{200d}ष",
        "र\u{94d}त\u{94d}स\u{94d}न\u{94d}य",
        "ක\u{dca}\u{200d}",
        "ཧ\u{f90}\u{fb5}\u{fa8}\u{fb3}\u{fba}\u{fbc}\u{fbb}\u{f82}",
        "ท\u{e35}\u{e48}",
        "م\u{651}\u{64e}",
        "ی\u{200c}",
        "ש\u{5c1}\u{5b8}",
        "ᠡ\u{180b}",
        "\u{602}١",
        "❤\u{fe0f}",
        "1\u{fe0f}\u{20e3}",
        "👍🏽",
        "🇩🇪",
        "🏳\u{fe0f}\u{200d}🌈",
        ENGLAND,
        FAMILY,
        KISS,
    ];

    const ENGLAND: &str = "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}";
    const FAMILY: &str = "👨\u{200d}👩\u{200d}👧\u{200d}👦";
    const KISS: &str = "👩🏻\u{200d}❤\u{fe0f}\u{200d}💋\u{200d}👨🏿";

    /// Characters that show nothing and are grapheme clusters of their own after a letter. The first
    /// shows nothing but stands for a consonant.
    const HIDDEN: [char; 13] = [
        '\u{115f}',
        '\u{2800}',
        '\u{ffa0}',
        '\u{3164}',
        '\u{1160}',
        '\u{ad}',
        '\u{2060}',
        '\u{2063}',
        '\u{206a}',
        '\u{378}',
        '\u{e0080}',
        '\u{1d159}',
        '\u{13441}',
    ];

    /// What may or may not show something, depending on what is before it.
    const MIXED: [&str; 10] = [
        " ", "\u{301}", "\u{102c}", "\u{200d}", "\u{fe0f}", "\u{2800}", "\u{3164}", "\u{200b}",
        "\u{378}", "\u{2060}",
    ];

    fn problem(result: Result<String, Invalid>) -> String {
        result.unwrap_err().problem
    }

    #[test]
    fn the_versions_of_unicode_are_those_in_the_documents() {
        assert_eq!(icu_properties_data::unicode_tag!(), "18.0.0");
        assert_eq!(unicode_normalization::UNICODE_VERSION, (18, 0, 0));
        assert_eq!(unicode_segmentation::UNICODE_VERSION, (17, 0, 0));
    }

    #[test]
    fn characters_are_counted_as_grapheme_clusters() {
        for written in WRITTEN {
            let kept: String = written.repeat(5).nfc().collect();
            assert_eq!(one(&written.repeat(5)), Ok(kept.clone()), "{written}");
            assert_eq!(clean("bio", &written.repeat(5), 5, Lines::Many), Ok(kept), "{written}");
            assert_eq!(problem(one(&written.repeat(6))), "must have at most 5 characters");
        }
    }

    #[test]
    fn bytes_are_limited() {
        assert_eq!(KISS.len(), BYTES_PER_CHARACTER_MAX);
        let stacked = |mark: &str, marks| format!("a{}", mark.repeat(marks)).repeat(5);
        assert!(one(&stacked("\u{308}", 17)).is_ok());
        assert_eq!(problem(one(&stacked("\u{308}", 18))), "must have at most 175 bytes");
        // In NFC, these have twice as many.
        assert_eq!(problem(one(&stacked("\u{344}", 12))), "must have at most 175 bytes");
        assert_eq!(problem(one(&"a".repeat(351))), "must have at most 175 bytes");
    }

    #[test]
    fn stacked_combining_marks_are_limited() {
        let stacked = |marks| one(&format!("a{}", "\u{302}".repeat(marks)));
        assert!(stacked(32).is_ok());
        assert_eq!(problem(stacked(33)), "must have at most 64 bytes in each character");
        assert!(stacked(1_000).is_err());
    }

    #[test]
    fn tabs_and_bidirectional_isolates_are_normalised() {
        assert_eq!(one("a\tb").unwrap(), "a b");
        assert_eq!(one("\u{2068}عم\u{2069}").unwrap(), "عم");
        assert_eq!(one("e\u{2068}\u{301}").unwrap(), "é");
    }

    #[test]
    fn direction_marks_and_zero_width_spaces_are_removed_from_a_line() {
        for removed in ["\u{200b}", "\u{200e}", "\u{200f}", "\u{61c}"] {
            for text in [format!("{removed}ab"), format!("a{removed}b"), format!("ab{removed}")] {
                assert_eq!(one(&text).unwrap(), "ab");
                assert_eq!(clean("bio", &text, 5, Lines::Many).unwrap(), text);
            }
            assert_eq!(one(removed).unwrap(), "");
        }
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
    fn words_with_invisible_characters_inside_are_accepted() {
        for text in [
            "نمی\u{200c}خواهم",
            "م\u{64f}ح\u{64e}م\u{64e}\u{651}د",
            "ש\u{5b8}\u{5c1}לו\u{5b9}ם",
            "ව\u{dd2}ක\u{dca}\u{200d}රම",
            "ภาษาไทยท\u{e35}\u{e48}น\u{e35}\u{e48}",
            "န\u{102c}မည\u{103a}",
            "ᠠᠬ\u{180e}ᠠ",
            "𓀀\u{13430}𓁐",
            "山田\u{3000}太郎",
            "Ann\u{a0}Lee 💃🏽",
        ] {
            assert_eq!(clean("name", text, 50, Lines::One).unwrap(), text);
        }
    }

    #[test]
    fn what_shows_nothing_on_a_line_is_rejected() {
        for hidden in HIDDEN {
            let expected = format!(
                "must not contain the character U+{:04X} where it shows nothing",
                hidden as u32
            );
            for text in [format!("{hidden}"), format!("{hidden}a"), format!("a{hidden}b")] {
                assert_eq!(problem(one(&text)), expected, "{text:?}");
            }
        }
        // These belong to what is before them.
        for attached in [
            "\u{fe0f}",
            "\u{e0100}",
            "\u{200c}",
            "\u{200d}",
            "\u{34f}",
            "\u{e0067}",
            "\u{301}",
            "\u{20dd}",
            "\u{94d}",
            "\u{93f}",
            "\u{102c}",
            "\u{180e}",
            "\u{13430}",
        ] {
            assert!(one(&format!("a{attached}b")).is_ok(), "{attached:?}");
            for text in [attached, &format!("{attached}a"), &format!("a {attached}b")] {
                assert!(problem(one(text)).ends_with("shows nothing"), "{text:?}");
            }
        }
    }

    #[test]
    fn several_lines_without_anything_shown_are_empty() {
        let many = |text: &str| clean("text", text, 5, Lines::Many).unwrap();
        for text in [
            " \u{3000} ",
            "\u{200b}\u{200d}",
            "\u{2800}\n\u{2800}",
            "\u{ffa0}\u{3164}",
            "\u{fe0f}\u{e0067}",
            "\u{378}",
            "\u{301}",
            "\u{a0}\u{102c}",
        ] {
            assert_eq!(many(text), "", "{text:?}");
            assert!(!shows(text), "{text:?}");
        }
        for text in ["\u{2800}a", "a\u{2060}b", "\u{301}a", "\u{e000}"] {
            assert_eq!(many(text), text);
            assert!(shows(text), "{text:?}");
        }
    }

    #[test]
    fn no_character_that_unicode_calls_invisible_is_a_text() {
        let is_ignorable = CodePointSetData::new::<DefaultIgnorableCodePoint>();
        let is_prefix = CodePointSetData::new::<PrependedConcatenationMark>();
        let groups = GeneralCategoryGroup::Separator
            .union(GeneralCategoryGroup::Mark)
            .union(GeneralCategoryGroup::Control)
            .union(GeneralCategoryGroup::Unassigned)
            .union(GeneralCategoryGroup::Format);
        for c in char::MIN..=char::MAX {
            let category = CodePointMapData::<GeneralCategory>::new().get(c);
            let is_invisible = BLANK.contains(&c)
                || is_ignorable.contains(c)
                || groups.contains(category) && !is_prefix.contains(c);
            assert_eq!(is_shown(c), !is_invisible, "{c:?}");
            if is_invisible && !c.is_whitespace() && category != GeneralCategory::Unassigned {
                assert_eq!(first_hidden(&c.to_string()), Some(c));
            }
        }
    }

    proptest! {
        #[test]
        fn cleaning_is_idempotent(text in "\\PC{0,40}", lines in any_lines()) {
            if let Ok(cleaned) = clean("bio", &text, 30, lines) {
                prop_assert_eq!(clean("bio", &cleaned, 30, lines), Ok(cleaned));
            }
        }

        #[test]
        fn what_people_write_meets_the_limit_in_characters(text in vec(select(&WRITTEN[..]), 1..40)) {
            let cleaned = clean("bio", &text.concat(), 30, Lines::One);
            match text.len() {
                ..=30 => prop_assert!(cleaned.is_ok(), "{:?}", cleaned),
                _ => prop_assert_eq!(problem(cleaned), "must have at most 30 characters"),
            }
        }

        #[test]
        fn an_accepted_line_shows_each_character(
            text in vec(prop_oneof![select(&WRITTEN[..]), select(&MIXED[..])], 0..5),
        ) {
            let text = text.concat();
            if let Ok(line) = clean("name", &text, 30, Lines::One) {
                for word in line.split_whitespace() {
                    let is_shown = word.starts_with(|c| c == '\u{115f}' || is_shown(c));
                    prop_assert!(is_shown, "{:?}", text);
                    prop_assert!(!word.contains(&HIDDEN[1..]), "{:?}", text);
                }
            }
        }
    }

    fn any_lines() -> impl Strategy<Value = Lines> {
        prop_oneof![Just(Lines::One), Just(Lines::Many)]
    }
}
