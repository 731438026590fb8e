//! The length of model tests.

use std::env;

/// Set it for longer tests.
const STEPS: &str = "MICROBLOG_MODEL_STEPS";

/// Returns the steps of each run of a model test: together those of the environment, or a default, and
/// `most` in a run at most.
pub fn model_runs(default: usize, most: usize) -> impl Iterator<Item = usize> {
    let given = env::var(STEPS).ok();
    let all = given.map_or(default, |all| all.parse().expect("MICROBLOG_MODEL_STEPS is a number"));
    assert!(all > 0, "a model test takes steps");
    (0..all).step_by(most).map(move |done| most.min(all - done))
}
