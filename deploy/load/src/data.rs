//! Where a follow graph comes from: a file, or a generator. Knows nothing of services.

mod power_law;

use anyhow::{Context as _, ensure};
use microblog_local::edges::{self, EdgeList};

/// A follow graph: from a file, or generated, and then the same for the same options on every
/// machine.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Args {
    /// An edge list, `follower following` per line, gzipped or not; - is the standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["accounts", "following", "exponent"])]
    edges: Option<String>,
    /// How many accounts to generate
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    accounts: u32,
    #[command(flatten)]
    kind: Kind,
}

/// What generated graphs are like, whatever their size.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Kind {
    /// How many each follows on average: from none to twice as many, all equally likely
    #[arg(long, value_name = "MEAN", default_value_t = 20)]
    following: u32,
    /// Exponent of the power law of followers, above 1: the smaller, the more have the first few
    #[arg(long, value_name = "NUMBER", default_value_t = 2.1, value_parser = exponent)]
    exponent: f64,
    /// Another number makes another graph of the same kind, and other choices of accounts
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

    /// Returns what chooses accounts.
    pub(crate) fn seed(&self) -> u64 {
        self.kind.seed
    }
}

impl Kind {
    /// Generates a graph with so many accounts.
    pub(crate) fn graph(&self, accounts: u32) -> anyhow::Result<EdgeList> {
        let Self { following, exponent, seed } = *self;
        ensure!(accounts < u32::MAX, "that many accounts do not fit");
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
    fn a_graph_has_as_many_accounts_as_asked_for_also_none_and_one() {
        for (asked, first) in [("0", None), ("1", Some("u0")), ("50", Some("u0"))] {
            let graph = parse(&["--accounts", asked]).unwrap().graph().unwrap();
            assert_eq!(graph.names().len().to_string(), asked);
            assert_eq!(graph.names().next(), first);
            assert_eq!(graph.edges.is_empty(), asked != "50");
        }
    }

    #[test]
    fn a_file_takes_the_place_of_what_is_generated() {
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
    fn an_exponent_that_makes_no_power_law_is_refused() {
        for exponent in ["1", "0", "-2", "NaN", "inf", "x"] {
            parse(&["--exponent", exponent]).unwrap_err();
        }
    }
}
