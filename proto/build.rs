//! Compiles the protobuf files with protox, so that no `protoc` is needed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 10] = [
    "microblog/common/v1/error.proto",
    "microblog/user/v1/user.proto",
    "microblog/relation/v1/relation.proto",
    "microblog/post/v1/post.proto",
    "microblog/post/v1/post_service.proto",
    "microblog/timeline/v1/timeline.proto",
    "microblog/gateway/v1/accounts.proto",
    "microblog/gateway/v1/gateway.proto",
    "microblog/gateway/v1/posts.proto",
    "microblog/gateway/v1/timelines.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=microblog");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
