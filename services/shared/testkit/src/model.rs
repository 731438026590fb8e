//! The length of model tests.

use std::env;

/// Set it for longer runs.
const STEPS: &str = "MICROBLOG_MODEL_STEPS";

/// Returns how many steps a model test takes: those of the environment, or a default.
pub fn model_steps(default: usize) -> usize {
    let given = env::var(STEPS).ok();
    given.map_or(default, |steps| steps.parse().expect("MICROBLOG_MODEL_STEPS is a number"))
}
