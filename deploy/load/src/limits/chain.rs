//! Which calls a call makes, and how large they are; and the same as text, for a command line.

use std::{fmt, str::FromStr};

use anyhow::{Context as _, ensure};

/// Who is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    User,
    Relation,
    Post,
    Timeline,
}

impl Peer {
    /// All of them, in the order of their discriminants.
    pub(crate) const ALL: [Self; 4] = [Self::User, Self::Relation, Self::Post, Self::Timeline];

    fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Relation => "relation",
            Self::Post => "post",
            Self::Timeline => "timeline",
        }
    }
}

/// One call, by the bytes of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) peer: Peer,
    pub(crate) request: usize,
    pub(crate) answer: usize,
}

/// The calls that one call makes: stages one after the other, the calls of a stage at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) stages: Vec<Vec<Step>>,
}

/// `user:56:15,relation:9:700;post:9:60`: stages, calls, and for each whom it asks and its bytes.
impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step =
            |Step { peer, request, answer }: &Step| format!("{}:{request}:{answer}", peer.name());
        let stage = |stage: &Vec<Step>| stage.iter().map(step).collect::<Vec<_>>().join(",");
        f.write_str(&self.stages.iter().map(stage).collect::<Vec<_>>().join(";"))
    }
}

impl FromStr for Chain {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let stage = |stage: &str| stage.split(',').map(step).collect();
        let stages = text.split_terminator(';').map(stage).collect::<anyhow::Result<_>>()?;
        Ok(Self { stages })
    }
}

fn step(text: &str) -> anyhow::Result<Step> {
    let mut parts = text.split(':');
    let mut next = || parts.next().with_context(|| format!("not a call: {text}"));
    let name = next()?;
    let peer = Peer::ALL.into_iter().find(|peer| peer.name() == name);
    let step = Step {
        peer: peer.with_context(|| format!("not a service: {name}"))?,
        request: next()?.parse()?,
        answer: next()?.parse()?,
    };
    ensure!(parts.next().is_none(), "not a call: {text}");
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_read_as_it_is_written() {
        let call = |peer, request, answer| Step { peer, request, answer };
        let chain = Chain {
            stages: vec![
                vec![call(Peer::User, 56, 15), call(Peer::Relation, 9, 700)],
                vec![call(Peer::Post, 0, 60)],
            ],
        };
        assert_eq!(chain.to_string(), "user:56:15,relation:9:700;post:0:60");
        assert_eq!(chain.to_string().parse::<Chain>().unwrap(), chain);
        assert_eq!("".parse::<Chain>().unwrap(), Chain::default());
        for wrong in ["user", "user:1", "user:1:2:3", "nobody:1:2", "user:a:1", "user:1:1,,"] {
            assert!(wrong.parse::<Chain>().is_err(), "{wrong}");
        }
    }
}
