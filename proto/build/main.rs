//! Compiles the protobuf files with protox, so that no `protoc` is needed.

mod access;
mod guard;
mod names;
mod peer;

use std::{env, error::Error, fmt::Write as _, fs, path::PathBuf};

use prost_build::{Service, ServiceGenerator};
use protox::Compiler;

use access::Contract;

const FILES: [&str; 18] = [
    // The details of errors: servers describe them, and clients are generated with them.
    "google/rpc/error_details.proto",
    "google/rpc/status.proto",
    "microblog/common/v1/access.proto",
    "microblog/common/v1/call_batch.proto",
    "microblog/common/v1/changes.proto",
    "microblog/common/v1/error.proto",
    "microblog/user/v1/user.proto",
    "microblog/relation/v1/relation.proto",
    "microblog/post/v1/post.proto",
    "microblog/post/v1/post_service.proto",
    "microblog/timeline/v1/timeline.proto",
    "microblog/notice/v1/notice.proto",
    "microblog/gateway/v1/accounts.proto",
    "microblog/gateway/v1/changes.proto",
    "microblog/gateway/v1/gateway.proto",
    "microblog/gateway/v1/notices.proto",
    "microblog/gateway/v1/posts.proto",
    "microblog/gateway/v1/timelines.proto",
];

const BYTES: [&str; 3] = [
    ".microblog.common.v1.BatchedCall",
    ".microblog.common.v1.BatchedReply",
    ".microblog.common.v1.BatchedMetadata",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=google");
    println!("cargo:rerun-if-changed=microblog");
    println!("cargo:rerun-if-changed=build");
    let mut compiler = Compiler::new(["."])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    let contract = Contract::read(&compiler.descriptor_pool())?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // Not re-encoded by prost, which would drop the custom options.
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    fs::write(out.join("rules.rs"), rules(&contract)?)?;
    let tonic = tonic_prost_build::configure().build_transport(false).service_generator();
    prost_build::Config::new()
        // Parts of the message that was received, instead of copies.
        .bytes(BYTES)
        .service_generator(Box::new(Generator { tonic, contract }))
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// Writes who may call which method, as the value of the constant `ACCESS`.
fn rules(contract: &Contract) -> Result<String, std::fmt::Error> {
    let mut rules = "&[\n".to_owned();
    for (path, access) in contract.methods() {
        writeln!(rules, "    (\"{path}\", Access::{access:?}),")?;
    }
    rules.push_str("]\n");
    Ok(rules)
}

/// Writes a peer and a guard for each service, in addition to tonic's client and server.
struct Generator {
    tonic: Box<dyn ServiceGenerator>,
    contract: Contract,
}

impl ServiceGenerator for Generator {
    fn generate(&mut self, service: Service, out: &mut String) {
        out.push_str(&peer::write(&service));
        out.push_str(&guard::write(&service, &self.contract));
        self.tonic.generate(service, out);
    }

    fn finalize(&mut self, out: &mut String) {
        self.tonic.finalize(out);
    }

    fn finalize_package(&mut self, package: &str, out: &mut String) {
        self.tonic.finalize_package(package, out);
    }
}
