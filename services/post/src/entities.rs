//! Parses mentions and hashtags in a text. Pure: does not check that an account exists.

use std::ops::Range;

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
/// A mention is `@` and a name: up to 30 of A-Z, a-z, 0-9 and underscore. A hashtag has one of two
/// forms, of which the first takes precedence:
///
/// * `#topic#`, as on Weibo: any characters of one line except `@`. It does not begin or end with a
///   space, nor end with a sign that joins tags (`#a,#b`).
/// * `#topic`, as elsewhere: letters, digits and underscores, not digits alone.
///
/// Full-width signs count like ASCII ones. Neither is parsed inside a URL, nor after a letter or
/// digit of a script that separates words by spaces, as in an e-mail address.
pub(crate) fn find(text: &str) -> Vec<Entity> {
    let mut found = Vec::new();
    // The parsed part of the text, in bytes and in code points.
    let (mut at, mut code_points) = (0, 0);
    // Where the ASCII word before the sign begins, and the end of the searched part.
    let (mut word_at, mut looked) = (0, 0);
    while let Some(offset) = text[at..].find(['@', '＠', '#', '＃']) {
        let start = at + offset;
        let sign = text[start..].chars().next().unwrap_or_default();
        code_points += text[at..start].chars().count();
        let is_outside = |c: char| !c.is_ascii() || c.is_whitespace();
        word_at = text[looked..start].rfind(is_outside).map_or(word_at, |found| looked + found);
        looked = start;
        let after = &text[start + sign.len_utf8()..];
        let matched = if is_part_of_more(&text[word_at..start]) {
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

// Returns whether a sign after this word is part of the word, an address or a URL. The word is
// ASCII except for its first character.
fn is_part_of_more(word: &str) -> bool {
    let is_in_url = || word.contains("://");
    match word.chars().next_back() {
        None => false,
        Some('&' | '@' | '＠') => true,
        // `example.com/@ann` is a URL; `well said//@ann: …` is how reposts are quoted.
        Some('/') => word.contains('.') || is_in_url(),
        Some(c) if is_spaced(c) && (c.is_alphanumeric() || c == '_') => true,
        Some(_) => is_in_url(),
    }
}

// Returns whether a character is of a script that separates words by spaces. Scripts from U+0E00 on
// do not: Thai, Lao, Tibetan, Burmese, …, Chinese, Japanese (Korean does, but attaches particles to
// names). The exception is Latin and Greek letters with several diacritics.
fn is_spaced(c: char) -> bool {
    c < '\u{e00}' || ('\u{1e00}'..'\u{2000}').contains(&c)
}

// Each parser returns the number of bytes that it consumes after the sign.

fn mention(after: &str) -> Option<(usize, Target)> {
    let length = after.find(|c| !is_name(c)).unwrap_or(after.len());
    let is_address = after[length..].starts_with(['@', '＠']);
    let is_mention = (1..=NAME_MAX).contains(&length) && !is_address;
    is_mention.then(|| (length, Target::Mention(after[..length].to_owned())))
}

fn topic(after: &str) -> Option<(usize, Target)> {
    let length = after.find(['#', '＃', '@', '＠', '\n'])?;
    let (topic, closing) = (&after[..length], after[length..].chars().next()?);
    let is_topic = matches!(closing, '#' | '＃')
        && !topic.is_empty()
        && !topic.starts_with(KEYCAP)
        && !topic.ends_with([',', ';', '/', '|', '('])
        && !topic.starts_with(char::is_whitespace)
        && !topic.ends_with(char::is_whitespace)
        && topic.graphemes(true).nth(TAG_MAX).is_none();
    is_topic.then(|| (length + closing.len_utf8(), hashtag(topic)))
}

// Characters that make an emoji keycap of the sign before them.
const KEYCAP: [char; 2] = ['\u{fe0f}', '\u{20e3}'];

fn tag(after: &str) -> Option<(usize, Target)> {
    // Grapheme clusters keep combining marks with their letter.
    let is_letter = |cluster: &&str| cluster.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let letters = || after.graphemes(true).take_while(is_letter);
    let length = letters().map(str::len).sum();
    let tag = &after[..length];
    let is_tag = letters().nth(TAG_MAX).is_none() && tag.contains(|c: char| !c.is_numeric());
    is_tag.then(|| (length, hashtag(tag)))
}

fn hashtag(topic: &str) -> Target {
    Target::Hashtag(topic.to_lowercase())
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
    fn addresses_and_urls_have_no_mentions() {
        for text in [
            "ann@example.com",
            "https://example.com/@ann",
            "https://example.com/?by=@ann",
            "example.com/@ann",
            "josé@example.com",
            "Huế@example.com",
            "@@ann",
            "@ann@example.com",
            "@",
            "@ ann",
            "@张三",
        ] {
            check(text, &[]);
        }
        check(&format!("@{}", "a".repeat(31)), &[]);
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
    fn lookalikes_of_hashtags_are_rejected() {
        for text in
            ["#", "##", "# #", "C#", "&#39;", "https://example.com/#top", "a#b", "#-", "#️⃣ and #️⃣"]
        {
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
        fn any_text_is_parsed_and_entities_do_not_overlap(text in "[@#＠＃ a1_字é\n👍.]{0,60}") {
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
