//! What `microblog up` tells people: what it started, where, and what to try next.

use std::{env, path::Path};

use super::{
    data::DataDir,
    sample::{PASSWORD, Sample},
    services::SERVERS,
    software::Software,
};
use crate::remote::{GATEWAY_URL, RELATION_URL, USER_URL};

const BUF_CURL: &str = "buf curl --http2-prior-knowledge --protocol grpc";

/// Tells what was started, and where. The archive is a file of the data directory, or none of ours,
/// and then its address may have a password.
pub(super) fn started(
    software: &Software,
    data: &DataDir,
    archive: Option<&Path>,
    redis_port: u16,
    port_base: u16,
) {
    for server in &SERVERS {
        println!("  {:9} {}  {}", server.name, server.url(port_base), server.service);
    }
    println!("  redis     127.0.0.1:{redis_port}, version {}", software.version);
    match archive {
        Some(file) => println!("  archive   {}", file.display()),
        None => println!("  archive   where MICROBLOG_ARCHIVE_URL says"),
    }
    println!("  data      {}", data.path().display());
}

/// Tells that all of it serves, and three commands to try.
pub(super) fn ready(port_base: u16) {
    let [gateway, user, relation, ..] = SERVERS.each_ref().map(|server| server.url(port_base));
    let program = program();
    let import = called(
        format!("{program} import"),
        [("--user-url", &user, USER_URL), ("--relation-url", &relation, RELATION_URL)],
    );
    let demo = called(format!("{program} demo"), [("--gateway-url", &gateway, GATEWAY_URL)]);
    println!(
        "ready

Try next, in another terminal and in this order:

  # bring in a follow graph, `follower following` per line; a file's name in place of -, gzipped or not
  printf 'ada bob\\nbob ada\\ncleo ada\\n' | {import} -

  # who follows ada?
  {BUF_CURL} -d '{{\"user\": {{\"name\": \"ada\"}}}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/ViewFollowers

  # a tour through what there is
  {demo}

Ctrl-C stops everything; the data stay."
    );
}

/// Tells how to look at the demo graph: a home timeline, followers, and a post of the one with the
/// most followers.
pub(super) fn sample(port_base: u16, sample: &Sample, post_id: Option<u64>) {
    let gateway = SERVERS[0].url(port_base);
    let Sample { star, viewer, .. } = sample;
    println!(
        "
The demo graph is there. To see it as {viewer} does, first the home timeline, and then the
followers of {star}:

  token=$({BUF_CURL} -d '{{\"login\": \"{viewer}\", \"password\": \"{PASSWORD}\"}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/Login | sed -n 's/.*\"token\": *\"\\(.*\\)\".*/\\1/p')
  {BUF_CURL} -H \"authorization: Bearer $token\" -d '{{\"page_size\": 5}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/ViewHome
  {BUF_CURL} -H \"authorization: Bearer $token\" -d '{{\"user\": {{\"name\": \"{star}\"}}}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/ViewFollowers"
    );
    let Some(post_id) = post_id else { return };
    println!(
        "
And a post of {star}, with what is said about it:

  {BUF_CURL} -H \"authorization: Bearer $token\" -d '{{\"post_id\": {post_id}}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/ViewPost
  {BUF_CURL} -H \"authorization: Bearer $token\" -d '{{\"post_id\": {post_id}}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/ViewComments"
    );
}

/// Adds those addresses to a command that are not the ones it takes by itself.
fn called<const N: usize>(command: String, addresses: [(&str, &String, &str); N]) -> String {
    let unusual = addresses.into_iter().filter(|(_, address, default)| address != default);
    unusual.fold(command, |command, (flag, address, _)| format!("{command} {flag} {address}"))
}

/// Returns this program as it was called, fit to be pasted into a shell.
fn program() -> String {
    let program = env::args().next().unwrap_or_else(|| "microblog".to_owned());
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if program.chars().all(plain) {
        program
    } else {
        format!("'{}'", program.replace('\'', r"'\''"))
    }
}
