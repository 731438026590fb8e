//! Being laid out.
fn main() {}
