//! Generates directed graphs whose in-degrees follow a power law, after Chung and Lu: each account
//! has a weight, and is followed in proportion to it ("Connected components in random graphs with
//! given expected degree sequences", Annals of Combinatorics 6, 2002).

use microblog_local::edges::Edge;
use rand::{
    RngExt as _, SeedableRng as _,
    distr::{Distribution as _, weighted, weighted::WeightedIndex},
    rngs::Xoshiro256PlusPlus,
};

/// The weight of the first account, who has the most followers. Weights are integers, so that a
/// last bit of a power that a machine rounds otherwise makes no other graph.
const WEIGHT_MAX: f64 = (1_u64 << 32) as f64;

/// How many times as many targets are drawn as an account is to follow, before it follows fewer:
/// where few have most of the weight, or there are hardly more accounts than it is to follow, most
/// of what is drawn is drawn twice.
const DRAWS_PER_FOLLOW: u32 = 8;

/// Returns who follows whom: each account from none to twice `following` others, with equal
/// chances, and nobody themselves or somebody twice. An account's expected number of followers is
/// proportional to its place, counted from 1, to the power of -1 / (`exponent` - 1), so that the
/// numbers of followers have that exponent; but for the first few, whom all but follow already.
pub(super) fn edges(
    accounts: u32,
    following: u32,
    exponent: f64,
    seed: u64,
) -> Result<Vec<Edge>, weighted::Error> {
    if accounts < 2 {
        return Ok(Vec::new());
    }
    let targets = WeightedIndex::new((0..accounts).map(|place| weight(place, exponent)))?;
    // One that is the same on all machines and in all versions, and has nothing to hide.
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let following_max = following.saturating_mul(2);
    let mut edges = Vec::new();
    // Of each account, who followed it last: nobody has drawn it, while that is not the follower
    // at hand.
    let mut followed_by = vec![u32::MAX; accounts as usize];
    for follower in 0..accounts {
        followed_by[follower as usize] = follower;
        let wanted = random.random_range(0..=following_max).min(accounts - 1);
        let mut found = 0;
        for _ in 0..wanted.saturating_mul(DRAWS_PER_FOLLOW) {
            if found == wanted {
                break;
            }
            let place = targets.sample(&mut random);
            if followed_by[place] != follower {
                followed_by[place] = follower;
                found += 1;
                edges.push(Edge { follower, target: place as u32 });
            }
        }
    }
    Ok(edges)
}

/// Returns the weight of the account at a place, counted from 0.
fn weight(place: u32, exponent: f64) -> u64 {
    let share = (f64::from(place) + 1.0).powf(-1.0 / (exponent - 1.0));
    ((WEIGHT_MAX * share).round() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn pairs(accounts: u32, following: u32, exponent: f64, seed: u64) -> Vec<(u32, u32)> {
        let edges = edges(accounts, following, exponent, seed).unwrap();
        edges.into_iter().map(|edge| (edge.follower, edge.target)).collect()
    }

    /// FNV-1a, which no version of anything changes.
    fn hash(pairs: &[(u32, u32)]) -> u64 {
        let bytes = pairs.iter().flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// The exponent of the tail from `least` on: the maximum likelihood estimate of Clauset, Shalizi
    /// and Newman, "Power-law distributions in empirical data", SIAM Review 51 (2009), (3.7).
    fn tail_exponent(degrees: &[u32], least: u32) -> f64 {
        let tail = || degrees.iter().filter(|&&degree| degree >= least);
        let logarithms = tail().map(|&degree| (f64::from(degree) / (f64::from(least) - 0.5)).ln());
        1.0 + tail().count() as f64 / logarithms.sum::<f64>()
    }

    #[test]
    fn a_seed_makes_the_same_graph_everywhere() {
        let graph = pairs(1000, 20, 2.1, 1);
        assert_eq!(hash(&graph), 7_762_827_585_061_570_256, "{} edges", graph.len());
        assert_ne!(graph, pairs(1000, 20, 2.1, 2));
    }

    #[test]
    fn followers_have_the_exponent_that_was_asked_for() {
        for exponent in [2.1, 2.5, 3.0] {
            let mut followers = vec![0; 100_000];
            for (_, target) in pairs(100_000, 20, exponent, 1) {
                followers[target as usize] += 1;
            }
            let found = tail_exponent(&followers, 30);
            assert!((found - exponent).abs() < 0.1, "{found} for {exponent}");
        }
    }

    #[test]
    fn accounts_follow_as_many_as_asked_for_on_average_and_not_all_the_same() {
        let graph = pairs(10_000, 20, 2.1, 1);
        let mean = graph.len() as f64 / 10_000.0;
        assert!((mean - 20.0).abs() < 0.5, "{mean}");
        let mut following = vec![0_u32; 10_000];
        graph.iter().for_each(|(follower, _)| following[*follower as usize] += 1);
        assert_eq!((following.iter().min(), following.iter().max()), (Some(&0), Some(&40)));
    }

    #[test]
    fn nobody_follows_themselves_or_somebody_twice_however_dense_it_is() {
        for (accounts, following) in [(2, 1), (3, 20), (40, 39), (500, 20), (500, 1000)] {
            let graph = pairs(accounts, following, 2.1, 1);
            assert!(!graph.is_empty());
            assert!(graph.iter().all(|(a, b)| a != b && *a < accounts && *b < accounts));
            assert_eq!(graph.iter().collect::<HashSet<_>>().len(), graph.len());
        }
    }

    #[test]
    fn without_others_or_followings_there_are_no_edges() {
        assert!(pairs(0, 20, 2.1, 1).is_empty());
        assert!(pairs(1, 20, 2.1, 1).is_empty());
        assert!(pairs(100, 0, 2.1, 1).is_empty());
    }

    #[test]
    fn exponents_at_the_ends_make_graphs_too() {
        assert!(!pairs(1000, 5, 1.000_001, 1).is_empty());
        assert!(!pairs(1000, 5, f64::MAX, 1).is_empty());
    }
}
