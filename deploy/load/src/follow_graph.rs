//! The follow graph of a benchmark: from a file, or generated. Independent of services.

mod power_law;

use anyhow::{Context as _, ensure};
use microblog_local::edges::{self, EdgeList};

/// A follow graph, from a file or generated. Generation is deterministic on every machine.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Args {
    /// An edge list, `follower following` per line, gzipped or not; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["accounts", "following", "exponent"])]
    edges: Option<String>,
    /// Number of accounts to generate
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    accounts: u32,
    #[command(flatten)]
    kind: Kind,
}

/// Parameters of generated graphs, except the size.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Kind {
    /// Mean number of followed accounts (out-degree); uniform from 0 to twice the mean
    #[arg(long, value_name = "MEAN", default_value_t = 20)]
    following: u32,
    /// Exponent of the power law of followers (in-degree), above 1; smaller is more skewed
    #[arg(long, value_name = "NUMBER", default_value_t = 2.1, value_parser = exponent)]
    exponent: f64,
    /// Seed of the random numbers for the graph and for choices of accounts
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Args {
    /// Reads or generates the graph.
    pub(crate) fn graph(&self) -> anyhow::Result<EdgeList> {
        match &self.edges {
            Some(file) => Ok(edges::read(file)?),
            None => self.kind.graph(self.accounts),
        }
    }

    /// Returns the seed for choices of accounts.
    pub(crate) fn seed(&self) -> u64 {
        self.kind.seed
    }
}

impl Kind {
    /// Generates a graph with this number of accounts.
    pub(crate) fn graph(&self, accounts: u32) -> anyhow::Result<EdgeList> {
        let Self { following, exponent, seed } = *self;
        ensure!(accounts < u32::MAX, "too many accounts");
        let edges = power_law::edges(accounts, following, exponent, seed)
            .context("cannot generate a graph of this size")?;
        Ok(EdgeList::new((0..accounts).map(|number| format!("u{number}")), edges))
    }
}

fn exponent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(exponent) if exponent > 1.0 && f64::is_finite(exponent) => Ok(exponent),
        _ => Err("must be a number above 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

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
        for other in [["--accounts", "5"], ["--following", "2"], ["--exponent", "3"]] {
            parse(&[&["--edges", path], &other[..]].concat()).unwrap_err();
        }
    }

    #[test]
    fn exponents_up_to_1_and_non_numbers_are_rejected() {
        for exponent in ["1", "0", "-2", "NaN", "inf", "x"] {
            parse(&["--exponent", exponent]).unwrap_err();
        }
    }
}
