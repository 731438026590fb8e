//! Parses mentions and hashtags in a text. Pure: does not check that an account exists.

use std::ops::Range;

use icu_properties::{
    CodePointMapData, CodePointSetData,
    props::{
        Alphabetic, DefaultIgnorableCodePoint, GeneralCategory, GeneralCategoryGroup, LineBreak,
        Script,
    },
};
use microblog_domain::text;
use unicode_segmentation::UnicodeSegmentation as _;

/// The longest account name, in bytes.
const NAME_MAX: usize = 30;

/// The longest hashtag, in grapheme clusters. Longer ones are not parsed.
const TAG_MAX: usize = 100;

/// A mention or hashtag in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entity {
    /// Its range, sign included, in Unicode code points.
    pub(crate) range: Range<u32>,
    /// Its target.
    pub(crate) target: Target,
}

/// What an entity points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `@name`: the account with this name, as written.
    Mention(String),
    /// `#topic#` or `#topic`: the topic, in lower case.
    Hashtag(String),
}

/// Returns the mentions and hashtags of a text, in order. They do not overlap.
///
/// A mention is `@` and a name: up to 30 of A-Z, a-z, 0-9 and underscore. The name must not go on: with
/// a word character, with a dot, hyphen or slash and then a word character (`@ann-lee`,
/// `@ann.example`), with `@` or with `://`. Everything else ends it (`@ann's`, `@ann: …`).
///
/// A hashtag has one of two forms, of which the first takes precedence:
///
/// * `#topic#`, as on Weibo: any characters of one line except `@`. It does not begin or end with a
///   space, nor end with a sign that joins tags (`#a,#b`).
/// * `#topic`, as elsewhere: letters, numbers and underscores, not numbers alone; between two of them
///   one sign that joins the parts of a word, such as a middle dot. It is not followed by `://`.
///
/// A hashtag in which no character shows ([`text::shows`]) is none.
///
/// Neither is parsed inside a URL, nor after a word character, as in an e-mail address. Full-width
/// signs count like ASCII ones.
///
/// Word characters are `Alphabetic`, numbers, marks and `Connector_Punctuation`. In scripts that do not
/// separate words by spaces, only digits and marks are: other letters directly precede and follow
/// mentions. Ignorable characters are skipped on both sides, and marks before the sign.
pub(crate) fn find(text: &str) -> Vec<Entity> {
    let mut found = Vec::new();
    // The parsed part of the text, in bytes and in code points.
    let (mut at, mut code_points) = (0, 0);
    // Where the word before the sign begins, and the end of the searched part.
    let (mut word_at, mut looked) = (0, 0);
    while let Some(offset) = text[at..].find(['@', '＠', '#', '＃']) {
        let start = at + offset;
        let sign = text[start..].chars().next().unwrap_or_default();
        code_points += text[at..start].chars().count();
        let is_outside = |c: char| c.is_whitespace() || !c.is_ascii() && !is_word_character(c);
        word_at = text[looked..start].rfind(is_outside).map_or(word_at, |found| looked + found);
        looked = start;
        let after = &text[start + sign.len_utf8()..];
        let matched = if is_part_of_more(&text[..start], &text[word_at..start]) {
            None
        } else if matches!(sign, '@' | '＠') {
            mention(after)
        } else {
            topic(after).or_else(|| tag(after))
        };
        let (length, target) = matched.map_or((0, None), |(length, target)| (length, Some(target)));
        let end = start + sign.len_utf8() + length;
        let length = text[start..end].chars().count();
        if let Some(target) = target {
            // Texts are far shorter than 2^32.
            let range = code_points as u32..(code_points + length) as u32;
            found.push(Entity { range, target });
        }
        (at, code_points) = (end, code_points + length);
    }
    found
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

// Returns whether a sign after this text is part of its last word, an address or a URL. The word has
// no space, and no character but its first that is neither ASCII nor a word character.
fn is_part_of_more(before: &str, word: &str) -> bool {
    let is_in_url = || word.contains(SCHEME_END);
    match before.chars().rev().find(|&c| !is_ignorable(c) && !is_mark(c)) {
        None => false,
        Some('&' | '=' | '@' | '＠') => true,
        // `example.com/@ann` is a URL; `well said//@ann: …` is how reposts are quoted.
        Some('/') => word.contains('.') || is_in_url(),
        Some(c) => is_word_character(c) || is_in_url(),
    }
}

// What follows the scheme of a URL.
const SCHEME_END: &str = "://";

// Each parser returns the number of bytes that it consumes after the sign.

fn mention(after: &str) -> Option<(usize, Target)> {
    let length = after.find(|c| !is_name(c)).unwrap_or(after.len());
    let (name, rest) = after.split_at(length);
    let is_mention = (1..=NAME_MAX).contains(&length) && !goes_on(rest);
    is_mention.then(|| (length, Target::Mention(name.to_owned())))
}

// Joins the parts of names of accounts, hosts and packages elsewhere. An apostrophe or colon does not:
// some languages attach endings with it.
const NAME_JOINTS: [char; 8] = ['.', '．', '-', '－', '\u{2010}', '\u{2011}', '/', '／'];

// Returns whether a name before this is the beginning of a longer one, of an address or of a URL.
fn goes_on(rest: &str) -> bool {
    let mut seen = rest.chars().filter(|&c| !is_ignorable(c));
    let next = match seen.next() {
        Some('@' | '＠') => return true,
        Some(c) if NAME_JOINTS.contains(&c) => seen.next(),
        next => next,
    };
    next.is_some_and(is_word_character) || rest.starts_with(SCHEME_END)
}

fn topic(after: &str) -> Option<(usize, Target)> {
    let length = after.find(['#', '＃', '@', '＠', '\n'])?;
    let (topic, closing) = (&after[..length], after[length..].chars().next()?);
    let is_topic = matches!(closing, '#' | '＃')
        && !topic.starts_with(KEYCAP)
        && !topic.ends_with([',', ';', '/', '|', '('])
        && !topic.starts_with(char::is_whitespace)
        && !topic.ends_with(char::is_whitespace)
        && topic.graphemes(true).nth(TAG_MAX).is_none();
    is_topic.then(|| hashtag(topic, length + closing.len_utf8()))?
}

// Characters that make an emoji keycap of the sign before them.
const KEYCAP: [char; 2] = ['\u{fe0f}', '\u{20e3}'];

fn tag(after: &str) -> Option<(usize, Target)> {
    let (mut length, mut characters) = (0, 0);
    // Grapheme clusters keep combining marks with their letter.
    let mut clusters = after.graphemes(true).peekable();
    while let Some(cluster) = clusters.next() {
        let joins = || length > 0 && TAG_JOINTS.contains(&cluster);
        let is_part =
            is_letter(cluster) || joins() && clusters.peek().is_some_and(|it| is_letter(it));
        if !is_part {
            break;
        }
        length += cluster.len();
        characters += 1;
    }
    let (tag, rest) = after.split_at(length);
    let is_tag = characters <= TAG_MAX
        && tag.contains(|c| !GeneralCategoryGroup::Number.contains(category(c)))
        && !rest.starts_with(SCHEME_END);
    is_tag.then(|| hashtag(tag, length))?
}

// Joins the parts of a word: the middle dots, also half-width, and the signs of Hebrew (maqaf,
// gershayim) and Tibetan (tsheg) that do.
const TAG_JOINTS: [&str; 6] = ["\u{b7}", "\u{30fb}", "\u{ff65}", "\u{5be}", "\u{5f4}", "\u{f0b}"];

// Ends Hebrew abbreviations and stands for sounds: UAX #29 counts it among the letters.
const GERESH: char = '\u{5f3}';

fn is_letter(cluster: &str) -> bool {
    cluster.starts_with(|c| is_alphanumeric(c) || c == '_' || c == GERESH)
}

fn hashtag(topic: &str, length: usize) -> Option<(usize, Target)> {
    text::shows(topic).then(|| (length, Target::Hashtag(topic.to_lowercase())))
}

fn category(c: char) -> GeneralCategory {
    CodePointMapData::<GeneralCategory>::new().get(c)
}

fn is_mark(c: char) -> bool {
    GeneralCategoryGroup::Mark.contains(category(c))
}

fn is_ignorable(c: char) -> bool {
    CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
}

fn is_alphanumeric(c: char) -> bool {
    CodePointSetData::new::<Alphabetic>().contains(c)
        || GeneralCategoryGroup::Number.contains(category(c))
}

// Returns whether a character continues a word before it.
fn is_word_character(c: char) -> bool {
    let is_digit = || category(c) == GeneralCategory::DecimalNumber;
    is_mark(c)
        || category(c) == GeneralCategory::ConnectorPunctuation
        || is_alphanumeric(c) && (is_digit() || !is_unspaced(c))
}

// Returns whether a letter is of a script that does not separate words by spaces: one between whose
// letters a line may break. Korean separates words, but attaches particles to names. Full-width
// letters break lines like ideographs, but are Latin.
fn is_unspaced(c: char) -> bool {
    matches!(
        CodePointMapData::<LineBreak>::new().get(c),
        LineBreak::Ideographic
            | LineBreak::ConditionalJapaneseStarter
            | LineBreak::Nonstarter
            | LineBreak::ComplexContext
            | LineBreak::Aksara
            | LineBreak::AksaraPrebase
            | LineBreak::AksaraStart
            | LineBreak::H2
            | LineBreak::H3
            | LineBreak::JL
            | LineBreak::JV
            | LineBreak::JT
    ) && CodePointMapData::<Script>::new().get(c) != Script::Latin
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Returns each entity as it is written, and its target.
    fn targets(text: &str) -> Vec<(String, String)> {
        let part = |range: &Range<u32>| {
            let (skip, take) = (range.start as usize, range.len());
            text.chars().skip(skip).take(take).collect()
        };
        let target = |entity: Entity| match entity.target {
            Target::Mention(name) => (part(&entity.range), format!("@{name}")),
            Target::Hashtag(tag) => (part(&entity.range), format!("#{tag}")),
        };
        find(text).into_iter().map(target).collect()
    }

    fn check(text: &str, expected: &[(&str, &str)]) {
        let expected: Vec<_> =
            expected.iter().map(|&(part, target)| (part.to_owned(), target.to_owned())).collect();
        assert_eq!(targets(text), expected, "{text}");
    }

    #[test]
    fn mentions_are_names_after_the_sign() {
        check("@bob", &[("@bob", "@bob")]);
        check("hi @Bob_1, (@cleo).", &[("@Bob_1", "@Bob_1"), ("@cleo", "@cleo")]);
        check("so true//@bob: look//@cleo: there", &[("@bob", "@bob"), ("@cleo", "@cleo")]);
        check("转发//@bob:看", &[("@bob", "@bob")]);
        check("https://example.com @bob", &[("@bob", "@bob")]);
        check("https://example.com看@bob", &[("@bob", "@bob")]);
        check("你好@bob再见＠cleo", &[("@bob", "@bob"), ("＠cleo", "@cleo")]);
        check(
            &format!("@{}", "a".repeat(30)),
            &[(&format!("@{0}", "a".repeat(30)), &format!("@{0}", "a".repeat(30)))],
        );
    }

    #[test]
    fn a_name_that_goes_on_is_no_mention() {
        for rest in [
            // Letters, also of other scripts and styles, and syllables.
            "ázs а α א ب क ა አ Ꭰ Ｂ 𝐚 ꓮ ⓐ",
            // Numbers, marks and connectors.
            "１ ٣ ๓ ² ① \u{301} \u{20e3} \u{e34} ＿ ‿",
            // What joins the parts of a name, and a word character.
            "-lee .example /list －lee ．example ／list ‐lee \u{2011}lee -é .1",
            // Ignorable characters before a word character.
            "\u{ad}lee \u{200b}lee \u{200d}lee \u{fe0f}\u{20e3} -\u{2060}lee",
            "@example.org ＠example.org \u{200b}@example.org .lee@example.org ://example.org",
        ] {
            for rest in rest.split(' ') {
                check(&format!("@ann{rest}"), &[]);
            }
        }
        check("@ann@example.org and @bob", &[("@bob", "@bob")]);
    }

    #[test]
    fn everything_else_ends_a_name() {
        for rest in [
            ". ...so ! ? , ,hi ) \" … —so --so - / 。So ：so +so ~so \\so $ ™",
            // Endings.
            "'s ’s 'in :n",
            "👍 👍🏽 ❤\u{fe0f} 🇩🇪 \u{200d}👍 \u{200f}",
            // Scripts that do not separate words by spaces: each class of line breaking.
            "你好 かな ァ ーん 々 ไทย ខ្មែរ 가 님 ᄀ ᅡ ᆨ ᬅ ᯀ 𑤿 ｶﾅ .你好 -님 \u{200b}ខ្មែរ",
        ] {
            for rest in rest.split(' ') {
                check(&format!("@ann{rest}"), &[("@ann", "@ann")]);
                check(&format!("@ann{rest} so"), &[("@ann", "@ann")]);
            }
        }
        check("@ann/@bob.@cleo", &[("@ann", "@ann"), ("@bob", "@bob"), ("@cleo", "@cleo")]);
    }

    #[test]
    fn addresses_and_urls_have_no_mentions() {
        for text in [
            "ann@example.com",
            "https://example.com/@ann",
            "https://example.com/?by=@ann",
            "https://example.com/café/@ann",
            "https://example.com/~@ann",
            "example.com/@ann",
            "example.com/?by=@ann",
            "josé@example.com",
            "Huế@example.com",
            "გია@example",
            "Ａ@example",
            "b\u{301}@example",
            "b\u{200d}@example",
            "_@example",
            "张三@example.com",
            "@@ann",
            "@@ann@example.com",
            "@",
            "@ ann",
            "@张三",
        ] {
            check(text, &[]);
        }
        check(&format!("@{}", "a".repeat(31)), &[]);
    }

    #[test]
    fn what_may_precede_a_sign() {
        for before in "か\u{309a} 葛\u{e0100} ที่ ខ្មែ 님 ❤\u{fe0f} \u{301} . ! * ) 。".split(' ')
        {
            check(&format!("{before}@ann"), &[("@ann", "@ann")]);
            check(&format!("{before}#ann"), &[("#ann", "#ann")]);
        }
    }

    #[test]
    fn topics_stand_between_two_signs() {
        check("#你好，世界#后面", &[("#你好，世界#", "#你好，世界")]);
        check("a #two words# b", &[("#two words#", "#two words")]);
        check("#520#", &[("#520#", "#520")]);
        check("#去哪儿？#", &[("#去哪儿？#", "#去哪儿？")]);
        check("＃宽＃", &[("＃宽＃", "#宽")]);
        check("#a##b#", &[("#a#", "#a"), ("#b#", "#b")]);
    }

    #[test]
    fn tags_follow_one_sign() {
        check("I like #Rust, and #tokio!", &[("#Rust", "#rust"), ("#tokio", "#tokio")]);
        check(
            "#cats,#dogs;#a/#b",
            &[("#cats", "#cats"), ("#dogs", "#dogs"), ("#a", "#a"), ("#b", "#b")],
        );
        check("#rust @bob,#tokio", &[("#rust", "#rust"), ("@bob", "@bob"), ("#tokio", "#tokio")]);
        check("#one #two\n#three", &[("#one", "#one"), ("#two", "#two"), ("#three", "#three")]);
        check("#v2 #2024 #١٢", &[("#v2", "#v2")]);
        check("中文#标签", &[("#标签", "#标签")]);
        check("#हिन्दी है", &[("#हिन्दी", "#हिन्दी")]);
        check("#Straße", &[("#Straße", "#straße")]);
    }

    #[test]
    fn joints_stand_inside_of_a_tag() {
        check("#il·lusió", &[("#il·lusió", "#il·lusió")]);
        check("#ぼっち・ざ・ろっく！", &[("#ぼっち・ざ・ろっく", "#ぼっち・ざ・ろっく")]);
        check("#ﾎﾞｯﾁ･ｻﾞ", &[("#ﾎﾞｯﾁ･ｻﾞ", "#ﾎﾞｯﾁ･ｻﾞ")]);
        check(
            "#על־ידי #צה״ל #ג׳ורג׳",
            &[("#על־ידי", "#על־ידי"), ("#צה״ל", "#צה״ל"), ("#ג׳ורג׳", "#ג׳ורג׳")],
        );
        check("#བོད་སྐད་", &[("#བོད་སྐད", "#བོད་སྐད")]);
        check("#one· #two・・three", &[("#one", "#one"), ("#two", "#two")]);
        for text in ["#·one", "#・", "#1 ·"] {
            check(text, &[]);
        }
        check(
            &format!("#{}bc", "a·".repeat(49)),
            &[(&format!("#{}bc", "a·".repeat(49)), &format!("#{}bc", "a·".repeat(49)))],
        );
        check(&format!("#{}b", "a·".repeat(50)), &[]);
    }

    #[test]
    fn what_shows_nothing_is_no_hashtag() {
        for text in [
            "#\u{2800}#",
            "#\u{3164}#",
            "#\u{200b}\u{200d}#",
            "#\u{301}#",
            "#\u{3164}",
            "#\u{115f}",
        ] {
            check(text, &[]);
        }
        check("#\u{2800}#one", &[("#one", "#one")]);
        check("#\u{2800}a#", &[("#\u{2800}a#", "#\u{2800}a")]);
    }

    #[test]
    fn lookalikes_of_hashtags_are_rejected() {
        for text in [
            "#",
            "##",
            "# #",
            "C#",
            "&#x27;",
            "https://example.com/#top",
            "a#b",
            "#-",
            "#️⃣and#️⃣",
            "#https://example.com",
        ] {
            check(text, &[]);
        }
        check(&format!("#{}", "a".repeat(101)), &[]);
        check(&format!("#{}#", "a".repeat(101)), &[]);
        check(
            &format!("#{0}", "a".repeat(100)),
            &[(&format!("#{0}", "a".repeat(100)), &format!("#{0}", "a".repeat(100)))],
        );
    }

    #[test]
    fn ranges_are_in_code_points() {
        let found = find("👍🏽é @bob #标签#");
        let ranges: Vec<_> = found.into_iter().map(|entity| entity.range).collect();
        assert_eq!(ranges, [4..8, 9..13]);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_and_entities_do_not_overlap(text in "[@#＠＃ a1_字é\n👍.:·\u{301}\u{200d}]{0,60}") {
            let mut end = 0;
            let length = text.chars().count() as u32;
            for entity in find(&text) {
                prop_assert!(entity.range.start >= end && entity.range.start < entity.range.end);
                prop_assert!(entity.range.end <= length);
                let sign = text.chars().nth(entity.range.start as usize);
                prop_assert!(sign.is_some_and(|c| "@＠#＃".contains(c)));
                end = entity.range.end;
            }
        }
    }
}
