//! Writes `proto/README.md`, the reference of all RPCs, from the comments of the protos:
//!
//! ```sh
//! cargo run --package microblog-proto --example reference
//! ```
//!
//! `contract.rs` reads what was compiled, `prose.rs` makes Markdown of comments, `page.rs` puts the
//! page together. `tests/reference.rs` uses them as well.

mod contract;
mod page;
mod prose;

use std::{error::Error, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let packages = contract::read(microblog_proto::DESCRIPTORS)?;
    fs::write(page::FILE, page::write(&packages))?;
    println!("wrote {}", page::FILE);
    Ok(())
}
