//! A seeded random number generator.

use std::hash::{BuildHasher as _, RandomState};

use proptest::{
    prelude::RngExt as _,
    test_runner::{RngAlgorithm, TestRng},
};

/// Set it to repeat the operations of a run.
const SEED: &str = "MICROBLOG_MODEL_SEED";

/// Returns the seed from the environment, or a new one.
pub(crate) fn seed() -> u64 {
    let given = std::env::var(SEED).ok();
    given.map_or_else(|| RandomState::new().hash_one(SEED), |seed| seed.parse().expect("a number"))
}

/// Returns instructions to repeat a run.
pub(crate) fn again(seed: u64) -> String {
    format!("again with {SEED}={seed}")
}

/// A random number generator.
pub(crate) struct Rng(TestRng);

impl Rng {
    /// Returns the generator of one of several users of a seed.
    pub(crate) fn new(seed: u64, one: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&one.to_le_bytes());
        Self(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    /// Returns a number below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0.random_range(0..count)
    }

    /// Returns a number below `count`; lower ones are more likely.
    pub(crate) fn low(&mut self, count: usize) -> usize {
        (0..3).map(|_| self.below(count)).min().unwrap_or(0)
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Returns one of these by weight.
    pub(crate) fn weighed<T: Copy>(&mut self, all: &[(usize, T)]) -> T {
        let mut place = self.below(all.iter().map(|(weight, _)| weight).sum());
        let is_it = |&&(weight, _): &&(usize, T)| {
            let is_here = place < weight;
            place = place.saturating_sub(weight);
            is_here
        };
        all.iter().find(is_it).expect("within the sum").1
    }
}
