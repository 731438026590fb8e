//! The demo follow graph: pronounceable names, and a skewed distribution of followers.
//! Deterministic.

use std::collections::BTreeSet;

use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus, seq::IndexedRandom as _};

use crate::edges::{self, EdgeList};

const ACCOUNTS: usize = 200;
const FOLLOWS_EACH_MAX: f64 = 40.0;
const FOLLOW_BACK: f64 = 0.3;
const SEED: u64 = 2024;

/// The demo graph, and two of its accounts.
pub(in crate::up) struct DemoGraph {
    pub(in crate::up) list: EdgeList,
    /// The account with the most followers.
    pub(in crate::up) most_followed: String,
    /// The account that follows the most.
    pub(in crate::up) viewer: String,
}

impl DemoGraph {
    /// Generates the graph.
    pub(in crate::up) fn generate() -> Result<Self, edges::Error> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
        let names = names(&mut random);
        let follows = follows(&mut random);
        let text: String = follows
            .iter()
            .map(|&(follower, target)| format!("{} {}\n", names[follower], names[target]))
            .collect();
        let most = |end: fn(&(usize, usize)) -> usize| {
            let mut counts = [0; ACCOUNTS];
            follows.iter().for_each(|follow| counts[end(follow)] += 1);
            (0..ACCOUNTS).max_by_key(|&account| counts[account]).unwrap_or_default()
        };
        Ok(Self {
            list: edges::parse("the demo graph", text.as_bytes())?,
            most_followed: names[most(|follow| follow.1)].clone(),
            viewer: names[most(|follow| follow.0)].clone(),
        })
    }
}

/// Returns the display name of an account: `kalo_miresu` is Kalo Miresu.
pub(super) fn display_name(name: &str) -> String {
    let capital = |part: &str| {
        let (first, rest) = part.split_at(1);
        first.to_ascii_uppercase() + rest
    };
    name.split('_').map(capital).collect::<Vec<_>>().join(" ")
}

fn names(random: &mut Xoshiro256PlusPlus) -> Vec<String> {
    let mut names = BTreeSet::new();
    while names.len() < ACCOUNTS {
        let name = format!("{}_{}", word(random, 2), word(random, 3));
        names.insert(name);
    }
    names.into_iter().collect()
}

fn word(random: &mut Xoshiro256PlusPlus, syllables: usize) -> String {
    let mut letter = |letters: &str| {
        let at = random.random_range(0..letters.len());
        letters[at..=at].to_owned()
    };
    (0..syllables).map(|_| letter("bdfgklmnprstvz") + &letter("aeiou")).collect()
}

/// Returns the follows as indexes: each account follows some earlier accounts with preferential
/// attachment (Barabási and Albert), and some of these follow back.
fn follows(random: &mut Xoshiro256PlusPlus) -> Vec<(usize, usize)> {
    let mut follows = Vec::new();
    let mut seen = BTreeSet::new();
    // Each account once, and once more per follower: sampling from it is preferential attachment.
    let mut urn = vec![0];
    for account in 1..ACCOUNTS {
        // Most accounts follow few, and few follow many.
        let many = FOLLOWS_EACH_MAX.powf(random.random::<f64>().powi(2)) as usize;
        for _ in 0..many.max(2) {
            // A follow-back may have added it already.
            let others = urn.choose(random).filter(|&&drawn| drawn != account);
            let Some(&target) = others else { continue };
            let back = random.random_bool(FOLLOW_BACK);
            for follow in [Some((account, target)), back.then_some((target, account))] {
                if let Some(follow) = follow.filter(|&follow| seen.insert(follow)) {
                    follows.push(follow);
                    urn.push(follow.1);
                }
            }
        }
        urn.push(account);
    }
    follows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_graph_is_deterministic_and_skewed() {
        let sample = DemoGraph::generate().unwrap();
        assert_eq!(DemoGraph::generate().unwrap().list.edges, sample.list.edges);
        assert_eq!(sample.list.names().len(), ACCOUNTS);
        assert_eq!(sample.list.self_follows, 0);
        let place = |wanted: &str| sample.list.names().position(|name| name == wanted).unwrap();
        let most_followed = place(&sample.most_followed) as u32;
        let followers =
            sample.list.edges.iter().filter(|edge| edge.target == most_followed).count();
        let average = sample.list.edges.len() / ACCOUNTS;
        assert!(followers > 4 * average, "{followers} followers, {average} on the average");
        assert_ne!(sample.most_followed, sample.viewer);
    }

    #[test]
    fn display_names_are_capitalized() {
        assert_eq!(display_name("kalo_miresu"), "Kalo Miresu");
    }
}
