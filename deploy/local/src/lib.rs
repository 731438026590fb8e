//! What the tools of microblog share: starting it on this machine, follow graphs in files, bringing
//! them in, calls that are repeated, and progress for people.

pub mod edges;
pub mod graph;
pub mod keys;
pub mod progress;
pub mod remote;
pub mod tls;
pub mod up;
