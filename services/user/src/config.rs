//! Configuration of the user service: flags and environment variables.

use std::{net::SocketAddr, time::Duration};

use clap::Parser;

/// Accounts, unique names and e-mail addresses, sessions.
#[derive(Clone, Parser)]
#[command(name = "microblog-user", version = microblog_chassis::VERSION)]
pub struct Config {
    /// Address and port to serve gRPC on; port 0 picks a free one
    #[arg(
        long,
        env = "MICROBLOG_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:50051"
    )]
    pub listen: SocketAddr,

    /// Concurrent password hashes of the process; each takes 20 to 45 ms of a core and 19 MiB.
    /// Sixteen times as many calls may queue, further ones are rejected. Raise --max-streams with
    /// it, so that queued calls do not use up the streams of a connection
    #[arg(long, env = "MICROBLOG_HASHING_THREADS", value_name = "COUNT", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub hashing_threads: u16,

    /// Lifetime of a session in seconds, from the log-in (default: 30 days)
    #[arg(long, env = "MICROBLOG_SESSION_TTL_S", value_name = "SECONDS", default_value_t = 2_592_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub session_ttl_s: u32,

    /// How long the name of a deleted account stays reserved, in seconds (default: 30 days); 0
    /// frees it at once. Applies to accounts deleted from now on
    #[arg(
        long,
        env = "MICROBLOG_FREED_NAME_HOLD_S",
        value_name = "SECONDS",
        default_value_t = 2_592_000
    )]
    pub freed_name_hold_s: u32,

    #[command(flatten)]
    #[allow(missing_docs, reason = "a comment here would replace the heading of its flags")]
    pub chassis: microblog_chassis::Config,

    #[command(flatten)]
    #[allow(missing_docs, reason = "a comment here would replace the heading of its flags")]
    pub redis: microblog_keyspace::Config,

    #[command(flatten)]
    #[allow(missing_docs, reason = "a comment here would replace the heading of its flags")]
    pub database: microblog_record::Config,
}

impl Config {
    pub(crate) fn session_ttl(&self) -> Duration {
        Duration::from_secs(self.session_ttl_s.into())
    }

    pub(crate) fn freed_name_hold(&self) -> Duration {
        Duration::from_secs(self.freed_name_hold_s.into())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn each_flag_has_a_help_text() {
        let mut command = Config::command();
        command.build();
        for flag in command.get_arguments() {
            assert!(flag.get_help().is_some(), "--{} is not explained", flag.get_id());
        }
        command.debug_assert();
    }
}
