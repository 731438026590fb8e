//! Messages of `microblog up` on standard output: servers, addresses, and commands to try.

use std::env;

use super::{
    Args,
    data_dir::DataDir,
    demo_data::{DemoGraph, PASSWORD},
    software::Software,
};
use crate::{
    remote::{GATEWAY_URL, RELATION_URL, USER_URL},
    services::{SERVERS, Server},
};

const CURL: &str = "curl -s -H 'content-type: application/json'";

/// Prints the servers and their addresses. The URLs of other databases are not printed, since they
/// may contain passwords.
pub(super) fn started(
    software: &Software,
    data: &DataDir,
    args: &Args,
    chassis: &microblog_chassis::Config,
    redis_port: u16,
) {
    for server in SERVERS {
        println!("  {:9} {}  {}", server.name(), server.url(args.port_base), server.service());
    }
    if let Some(metrics) = chassis.metrics_listen {
        println!("  metrics   http://{metrics}/metrics");
    }
    println!("  redis     127.0.0.1:{redis_port}, version {}", software.version);
    for (server, url) in args.databases.urls() {
        let service = server.name();
        match url {
            Some(_) => println!("  database  of {service}: --{service}-database-url"),
            None => println!("  database  of {service}: {}", data.database(service).display()),
        }
    }
    println!("  data      {}", data.path().display());
}

/// Prints that all servers are ready, and commands to try.
pub(super) fn ready(port_base: u16) {
    let [gateway, user, relation, ..] = SERVERS.map(|server| server.url(port_base));
    let program = program();
    let import = with_flags(
        format!("{program} import"),
        [("--user-url", &user, USER_URL), ("--relation-url", &relation, RELATION_URL)],
    );
    let demo = with_flags(format!("{program} demo"), [("--gateway-url", &gateway, GATEWAY_URL)]);
    println!(
        "ready

Open {gateway}/ in a browser.

Try next, in another terminal and in this order:

  # import a follow graph, `follower following` per line; replace - by a file name, gzipped or not
  printf 'ada bob\\nbob ada\\ncleo ada\\n' | {import} -

  # who follows ada?
  {CURL} -d '{{\"user\": {{\"name\": \"ada\"}}}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/ViewFollowers

  # run a tour through the API
  {demo}

Ctrl-C stops all servers; the data persist."
    );
}

/// Prints how to explore the demo graph: a home timeline, followers, and a post of the most
/// followed account.
pub(super) fn demo_graph(port_base: u16, graph: &DemoGraph, post_id: Option<u64>) {
    let gateway = Server::Gateway.url(port_base);
    let DemoGraph { most_followed: star, viewer, .. } = graph;
    println!(
        "
The demo graph is ready. To view the home timeline of {viewer}, and then the
followers of {star}:

  token=$({CURL} -d '{{\"login\": \"{viewer}\", \"password\": \"{PASSWORD}\"}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/Login | sed 's/.*\"token\":\"\\([^\"]*\\)\".*/\\1/')
  {CURL} -H \"authorization: Bearer $token\" -d '{{\"page_size\": 5}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/ViewHome
  {CURL} -H \"authorization: Bearer $token\" -d '{{\"user\": {{\"name\": \"{star}\"}}}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/ViewFollowers"
    );
    let Some(post_id) = post_id else { return };
    println!(
        "
And a post of {star}, with its comments:

  {CURL} -H \"authorization: Bearer $token\" -d '{{\"post_id\": {post_id}}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/ViewPost
  {CURL} -H \"authorization: Bearer $token\" -d '{{\"post_id\": {post_id}}}' \\
    {gateway}/microblog.gateway.v1.GatewayService/ViewComments"
    );
}

/// Adds the flags of URLs that differ from the defaults.
fn with_flags<const N: usize>(command: String, addresses: [(&str, &String, &str); N]) -> String {
    let changed = addresses.into_iter().filter(|(_, address, default)| address != default);
    changed.fold(command, |command, (flag, address, _)| format!("{command} {flag} {address}"))
}

/// Returns this program's name as it was called, quoted for a shell.
fn program() -> String {
    let program = env::args().next().unwrap_or_else(|| "microblog".to_owned());
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if program.chars().all(is_safe) {
        program
    } else {
        format!("'{}'", program.replace('\'', r"'\''"))
    }
}
