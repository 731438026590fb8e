//! The demo posts, reposts, likes and comments: the most followed accounts post, and their
//! followers react. Deterministic.

use std::cmp::Reverse;

use rand::{
    RngExt as _, SeedableRng as _,
    rngs::Xoshiro256PlusPlus,
    seq::{IndexedRandom as _, SliceRandom as _},
};
use uuid::Builder;

use super::graph::DemoGraph;

const SEED: u64 = 2025;
const COMMENTS_MAX: usize = 4;
const REPOSTS_MAX: usize = 3;

/// Texts of posts, assigned to the authors in turn; `@` is replaced by a follower of the author.
const TEXTS: [&str; 20] = [
    "First light over the harbour. #morning",
    "Who else is learning #rust this winter?",
    "@ and I walked all the way to the lighthouse #walk in the rain#",
    "Three loaves, one of them good. #baking",
    "The library has a copy of the old atlas again #books",
    "Does anybody lend me a ladder? #neighbours",
    "Snow until Thursday, they say #weather",
    "Thank you, @, for the lemons!",
    "#night train# to the mountains, window seat",
    "A kingfisher, right behind the station #birds",
    "Tea or coffee? Choose wisely. #survey",
    "My radio speaks again, with a tube from 1957 #repair",
    "Rehearsal tonight at seven, @ brings the drum #choir",
    "Found in the attic: a map of a town that is no more #maps",
    "Nothing beats soup. #soup",
    "The bridge is open again! #city",
    "One hundred days of #drawing, and @ laughed only twice",
    "Where do the swifts go? #birds",
    "#open garden# on Sunday, bring a chair",
    "Good night, and thank you for the questions. #night",
];

const COMMENTS: [&str; 12] = [
    "Lovely!",
    "Where was that?",
    "I was there, too.",
    "Tell me more.",
    "Not in my town.",
    "Count me in.",
    "That makes two of us.",
    "How long did it take?",
    "Is there a picture?",
    "I would not have thought so.",
    "Next time, call me!",
    "Ha!",
];

const REPOSTS: [&str; 6] =
    ["", "", "This.", "For all who asked #found", "So true", "Look at that!"];

/// A post with its comments, likes and reposts. Accounts are indexes into the names.
pub(super) struct Planned {
    pub(super) post: Text,
    pub(super) likers: Vec<usize>,
    /// Each comment answers the previous one.
    pub(super) comments: Vec<Text>,
    /// Each repost repeats the previous one.
    pub(super) reposts: Vec<Text>,
}

/// A text of an author.
pub(super) struct Text {
    pub(super) author: usize,
    pub(super) text: String,
    request: [u8; 16],
}

impl Text {
    /// Returns the request id, which is deterministic.
    pub(super) fn request_id(&self) -> String {
        Builder::from_random_bytes(self.request).into_uuid().to_string()
    }
}

/// Returns all posts, in order of creation.
pub(super) fn plan(graph: &DemoGraph) -> Vec<Planned> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
    let names: Vec<&str> = graph.list.names().collect();
    let mut followers = vec![Vec::new(); names.len()];
    for edge in &graph.list.edges {
        followers[edge.target as usize].push(edge.follower as usize);
    }
    let mut authors: Vec<usize> = (0..names.len()).collect();
    authors.sort_by_key(|&author| Reverse(followers[author].len()));
    authors.truncate(TEXTS.len() / 2);
    let turns = authors.iter().cycle();
    let plan = |(text, &author): (&&str, &usize)| {
        let followers = &mut followers[author];
        followers.shuffle(&mut random);
        let friend = format!("@{}", names[followers[0]]);
        let text = text.replace('@', &friend);
        planned(&mut random, author, text, followers)
    };
    TEXTS.iter().zip(turns).map(plan).collect()
}

fn planned(
    random: &mut Xoshiro256PlusPlus,
    author: usize,
    text: String,
    followers: &[usize],
) -> Planned {
    let post = text_of(random, author, text);
    let likers = followers[..random.random_range(0..=followers.len())].to_vec();
    let mut comments = Vec::new();
    for n in 0..random.random_range(1..=COMMENTS_MAX) {
        // Every other text is the author's.
        let by = if n % 2 == 1 { Some(&author) } else { followers.choose(random) };
        comments.extend(by.map(|&by| random_text(random, by, &COMMENTS)));
    }
    let count = random.random_range(0..=REPOSTS_MAX).min(followers.len());
    let reposts = followers[..count].iter().map(|&by| random_text(random, by, &REPOSTS)).collect();
    Planned { post, likers, comments, reposts }
}

fn random_text(random: &mut Xoshiro256PlusPlus, author: usize, texts: &[&str]) -> Text {
    let text = texts.choose(random).copied().unwrap_or_default().to_owned();
    text_of(random, author, text)
}

fn text_of(random: &mut Xoshiro256PlusPlus, author: usize, text: String) -> Text {
    Text { author, text, request: random.random() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn posts_are_deterministic_and_request_ids_are_unique() {
        let graph = DemoGraph::generate().unwrap();
        let ids = || -> Vec<String> {
            let all = |planned: Planned| {
                [planned.post].into_iter().chain(planned.comments).chain(planned.reposts)
            };
            plan(&graph).into_iter().flat_map(all).map(|text| text.request_id()).collect()
        };
        assert_eq!(ids(), ids());
        assert_eq!(ids().iter().collect::<BTreeSet<_>>().len(), ids().len());
    }

    #[test]
    fn mentioned_accounts_exist() {
        let graph = DemoGraph::generate().unwrap();
        let names: BTreeSet<&str> = graph.list.names().collect();
        let mut mentions = 0;
        for planned in plan(&graph) {
            for word in planned.post.text.split([' ', ',', '!']) {
                if let Some(name) = word.strip_prefix('@') {
                    assert!(names.contains(name), "{name}");
                    mentions += 1;
                }
            }
        }
        assert!(mentions > 0);
    }
}
