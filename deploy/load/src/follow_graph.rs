//! The follow graph of a benchmark: from a file, or generated. Independent of services.

use anyhow::Context as _;
use microblog_local::edges::{self, Edge, EdgeList};
use rand::{
    RngExt as _, SeedableRng as _,
    distr::{Distribution as _, weighted, weighted::WeightedIndex},
    rngs::Xoshiro256PlusPlus,
};

/// The weight of the first account, which has the most followers. Weights are integers, so that
/// rounding of floating-point powers does not change the graph between machines.
const WEIGHT_MAX: f64 = (1_u64 << 32) as f64;

/// The exponent of the power law of followers (in-degrees).
const EXPONENT: f64 = 2.1;

/// Maximum number of draws per follow. Many draws are duplicates if few accounts have most of the
/// weight, or if an account follows almost all others. After the maximum, the account follows
/// fewer.
const DRAWS_PER_FOLLOW: u32 = 8;

/// A follow graph, from a file or generated. Generation is deterministic on every machine.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Args {
    /// An edge list, `follower following` per line, gzipped or not; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["accounts", "following"])]
    edges: Option<String>,
    /// Number of accounts to generate
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    accounts: u32,
    /// Mean number of followed accounts (out-degree); uniform from 0 to twice the mean. Followers
    /// (in-degrees) follow a power law
    #[arg(long, value_name = "MEAN", default_value_t = 20)]
    following: u32,
    /// Seed of the random numbers for the graph and for choices of accounts
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Args {
    /// Returns the options of a generated graph.
    pub(crate) fn generated(accounts: u32, following: u32, seed: u64) -> Self {
        Self { edges: None, accounts, following, seed }
    }

    /// Reads or generates the graph.
    pub(crate) fn graph(&self) -> anyhow::Result<EdgeList> {
        let Self { edges, accounts, following, seed } = self;
        if let Some(file) = edges {
            return Ok(edges::read(file)?);
        }
        let edges = generate(*accounts, *following, *seed);
        let edges = edges.context("cannot generate a graph of this size")?;
        Ok(EdgeList::new((0..*accounts).map(|number| format!("u{number}")), edges))
    }
}

/// Returns edges without self-loops and duplicates, after Chung and Lu: an account is followed in
/// proportion to its weight, which is rank^(-1 / (exponent - 1)), so in-degrees have that exponent
/// ("Connected components in random graphs with given expected degree sequences", Annals of
/// Combinatorics 6, 2002). The first few accounts are saturated: almost all others follow them.
fn generate(accounts: u32, following: u32, seed: u64) -> Result<Vec<Edge>, weighted::Error> {
    if accounts < 2 {
        return Ok(Vec::new());
    }
    let targets = WeightedIndex::new((0..accounts).map(weight))?;
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
fn weight(place: u32) -> u64 {
    let share = (f64::from(place) + 1.0).powf(-1.0 / (EXPONENT - 1.0));
    ((WEIGHT_MAX * share).round() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, io::Write as _};

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        data: Args,
    }

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        Ok(Cli::try_parse_from([&["load"], flags].concat())?.data)
    }

    #[test]
    fn a_generated_graph_has_the_given_number_of_accounts() {
        for (requested, first) in [("0", None), ("1", Some("u0")), ("50", Some("u0"))] {
            let graph = parse(&["--accounts", requested]).unwrap().graph().unwrap();
            assert_eq!(graph.names().len().to_string(), requested);
            assert_eq!(graph.names().next(), first);
            assert_eq!(graph.edges.is_empty(), requested != "50");
        }
    }

    #[test]
    fn a_file_excludes_the_options_of_the_generator() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"ada bob\nbob cleo\n").unwrap();
        let path = file.path().to_str().unwrap();
        let graph = parse(&["--edges", path]).unwrap().graph().unwrap();
        assert_eq!((graph.names().len(), graph.edges.len()), (3, 2));
        for other in [["--accounts", "5"], ["--following", "2"]] {
            parse(&[&["--edges", path], &other[..]].concat()).unwrap_err();
        }
    }

    fn pairs(accounts: u32, following: u32, seed: u64) -> Vec<(u32, u32)> {
        let edges = generate(accounts, following, seed).unwrap();
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
        let graph = pairs(1000, 20, 1);
        assert_eq!(hash(&graph), 7_762_827_585_061_570_256, "{} edges", graph.len());
        assert_ne!(graph, pairs(1000, 20, 2));
    }

    #[test]
    fn in_degrees_have_the_exponent() {
        let mut followers = vec![0; 100_000];
        for (_, target) in pairs(100_000, 20, 1) {
            followers[target as usize] += 1;
        }
        let found = tail_exponent(&followers, 30);
        assert!((found - EXPONENT).abs() < 0.1, "{found}");
    }

    #[test]
    fn out_degrees_are_uniform_with_the_given_mean() {
        let graph = pairs(10_000, 20, 1);
        let mean = graph.len() as f64 / 10_000.0;
        assert!((mean - 20.0).abs() < 0.5, "{mean}");
        let mut following = vec![0_u32; 10_000];
        graph.iter().for_each(|(follower, _)| following[*follower as usize] += 1);
        assert_eq!((following.iter().min(), following.iter().max()), (Some(&0), Some(&40)));
    }

    #[test]
    fn graphs_have_no_self_loops_or_duplicate_edges() {
        for (accounts, following) in [(2, 1), (3, 20), (40, 39), (500, 20), (500, 1000)] {
            let graph = pairs(accounts, following, 1);
            assert!(!graph.is_empty());
            assert!(graph.iter().all(|(a, b)| a != b && *a < accounts && *b < accounts));
            assert_eq!(graph.iter().collect::<HashSet<_>>().len(), graph.len());
        }
    }
}
