//! Generates directed graphs whose in-degrees follow a power law, after Chung and Lu: each account
//! has a weight and is followed in proportion to it ("Connected components in random graphs with
//! given expected degree sequences", Annals of Combinatorics 6, 2002).

use microblog_local::edges::Edge;
use rand::{
    RngExt as _, SeedableRng as _,
    distr::{Distribution as _, weighted, weighted::WeightedIndex},
    rngs::Xoshiro256PlusPlus,
};

/// The weight of the first account, which has the most followers. Weights are integers, so that
/// rounding of floating-point powers does not change the graph between machines.
const WEIGHT_MAX: f64 = (1_u64 << 32) as f64;

/// Maximum number of draws per follow. Many draws are duplicates if few accounts have most of the
/// weight, or if an account follows almost all others. After the maximum, the account follows
/// fewer.
const DRAWS_PER_FOLLOW: u32 = 8;

/// Returns the edges, without self-loops and duplicates. Each account's out-degree is uniform from
/// 0 to twice `following`. An account's expected in-degree is proportional to rank^(-1 /
/// (`exponent` - 1)), with ranks from 1, so in-degrees have that exponent. The first few accounts
/// are saturated: almost all others follow them.
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
    // Portable and stable across versions, and not cryptographic.
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let following_max = following.saturating_mul(2);
    let mut edges = Vec::new();
    // For each account, the last follower that drew it, for duplicate detection.
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

/// Returns the weight of the account at a rank, from 0.
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

    /// FNV-1a, which is stable across versions.
    fn hash(pairs: &[(u32, u32)]) -> u64 {
        let bytes = pairs.iter().flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// Estimates the exponent of the tail from `least` on: the maximum likelihood estimator of
    /// Clauset, Shalizi and Newman, "Power-law distributions in empirical data", SIAM Review 51
    /// (2009), (3.7).
    fn tail_exponent(degrees: &[u32], least: u32) -> f64 {
        let tail = || degrees.iter().filter(|&&degree| degree >= least);
        let logarithms = tail().map(|&degree| (f64::from(degree) / (f64::from(least) - 0.5)).ln());
        1.0 + tail().count() as f64 / logarithms.sum::<f64>()
    }

    #[test]
    fn generation_is_deterministic_for_a_seed() {
        let graph = pairs(1000, 20, 2.1, 1);
        assert_eq!(hash(&graph), 7_762_827_585_061_570_256, "{} edges", graph.len());
        assert_ne!(graph, pairs(1000, 20, 2.1, 2));
    }

    #[test]
    fn in_degrees_have_the_given_exponent() {
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
    fn out_degrees_are_uniform_with_the_given_mean() {
        let graph = pairs(10_000, 20, 2.1, 1);
        let mean = graph.len() as f64 / 10_000.0;
        assert!((mean - 20.0).abs() < 0.5, "{mean}");
        let mut following = vec![0_u32; 10_000];
        graph.iter().for_each(|(follower, _)| following[*follower as usize] += 1);
        assert_eq!((following.iter().min(), following.iter().max()), (Some(&0), Some(&40)));
    }

    #[test]
    fn graphs_have_no_self_loops_or_duplicate_edges() {
        for (accounts, following) in [(2, 1), (3, 20), (40, 39), (500, 20), (500, 1000)] {
            let graph = pairs(accounts, following, 2.1, 1);
            assert!(!graph.is_empty());
            assert!(graph.iter().all(|(a, b)| a != b && *a < accounts && *b < accounts));
            assert_eq!(graph.iter().collect::<HashSet<_>>().len(), graph.len());
        }
    }

    #[test]
    fn graphs_of_one_account_or_without_following_have_no_edges() {
        assert!(pairs(0, 20, 2.1, 1).is_empty());
        assert!(pairs(1, 20, 2.1, 1).is_empty());
        assert!(pairs(100, 0, 2.1, 1).is_empty());
    }

    #[test]
    fn extreme_exponents_generate_edges() {
        assert!(!pairs(1000, 5, 1.000_001, 1).is_empty());
        assert!(!pairs(1000, 5, f64::MAX, 1).is_empty());
    }
}
