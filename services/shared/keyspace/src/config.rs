//! Flags and environment variables of the keyspace, flattened into the configuration of a service.

use std::{path::PathBuf, time::Duration};

use crate::Primaries;

// About 60,000 accounts. `tracking-table-max-keys` in deploy/redis/redis.conf must
// exceed the cached keys of all threads: beyond it, Redis evicts tracked keys at random.
const CACHE_BYTES: usize = 8 << 20;

// Outlasts three lost packets in a row (1.4 s until TCP sends the third again), a lost SYN (1 s, of
// the half for connecting), a fork of Redis, and a busy machine. Three steps of a call fit into the
// default timeout of ten seconds, so that callers get UNAVAILABLE.
const TIMEOUT_MS: u64 = 3000;

/// The address of Redis, and the settings of connections and of the client-side cache.
#[derive(Clone, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Redis")]
// Without `Debug`, since the URL may contain a password.
// Flattened into other structs named `Config`, whose group would clash with this one.
#[group(skip)]
pub struct Config {
    /// Address of Redis: `redis://[user:password@]host:port[/database]`,
    /// `redis+sentinel://[user:password@]host:port,host:port/master-name` or
    /// `redis-cluster://[user:password@]host:port,host:port`; with `rediss` in place of `redis`
    /// over TLS. User and password are percent-encoded and are those of the Redis nodes; the password
    /// may come from --redis-password-file instead. Each node of a cluster must announce its own host
    /// (`cluster-announce-ip`, or `-hostname` with `cluster-preferred-endpoint-type hostname`): one
    /// that announces none is never ready.
    #[arg(
        long,
        env = "MICROBLOG_REDIS_URL",
        default_value = "redis://127.0.0.1:6379",
        hide_env_values = true
    )]
    pub redis_url: String,

    /// File with the password of the user in --redis-url, in place of a password there: plain text,
    /// not percent-encoded, without a newline at its end. It is read for each new connection, so that a
    /// changed password needs no restart.
    #[arg(long, env = "MICROBLOG_REDIS_PASSWORD_FILE")]
    pub redis_password_file: Option<PathBuf>,

    /// Connections of the shared pool, for ordinary commands, per worker thread (and per primary of a
    /// cluster). Concurrent commands are pipelined on each of them: more connections mean more reads
    /// and writes for Redis.
    #[arg(long, env = "MICROBLOG_REDIS_CONNECTIONS", default_value_t = 1, value_parser = positive)]
    pub redis_connections: usize,

    /// Connections of the dedicated pool, for blocking reads, per worker thread and Redis node.
    #[arg(
        long,
        env = "MICROBLOG_REDIS_DEDICATED_CONNECTIONS",
        default_value_t = 32,
        value_parser = positive
    )]
    pub redis_dedicated_connections: usize,

    /// Timeout of a reply of Redis, in milliseconds, and of connecting. A timeout is UNAVAILABLE and
    /// is not retried: the command may still run. A connection on which Redis sends nothing for this
    /// time, while commands are in flight, is closed. The default outlasts lost packets, a fork of
    /// Redis and a busy machine, and leaves room for two more steps of a call within the ten seconds
    /// of --default-timeout-ms.
    #[arg(
        long,
        env = "MICROBLOG_REDIS_TIMEOUT_MS",
        default_value_t = TIMEOUT_MS,
        value_parser = clap::value_parser!(u64).range(10..=600_000)
    )]
    pub redis_timeout_ms: u64,

    /// Size, in bytes, of the client-side cache of each worker thread (the user service:
    /// profiles, names and sessions; the post service: posts with their counts); 0 disables it. On a cluster, the primaries
    /// share it equally.
    #[arg(long, env = "MICROBLOG_REDIS_CACHE_BYTES", default_value_t = CACHE_BYTES)]
    pub redis_cache_bytes: usize,

    /// File with the certificate authorities (PEM) to trust with `rediss`; default: those of the
    /// system.
    #[arg(long, env = "MICROBLOG_REDIS_CA_FILE")]
    pub redis_ca_file: Option<PathBuf>,

    /// File with the client certificate (PEM) for `rediss`, followed by its chain, if Redis requires
    /// one (`tls-auth-clients yes`). This and the other TLS files are reloaded when they change.
    #[arg(long, env = "MICROBLOG_REDIS_CERT_FILE", requires = "redis_key_file")]
    pub redis_cert_file: Option<PathBuf>,

    /// File with the private key (PEM) of --redis-cert-file.
    #[arg(long, env = "MICROBLOG_REDIS_KEY_FILE", requires = "redis_cert_file")]
    pub redis_key_file: Option<PathBuf>,

    /// User at the Sentinels, if they require one.
    #[arg(long, env = "MICROBLOG_REDIS_SENTINEL_USER")]
    pub redis_sentinel_user: Option<String>,

    /// Password at the Sentinels, if they require one.
    #[arg(long, env = "MICROBLOG_REDIS_SENTINEL_PASSWORD", hide_env_values = true)]
    pub redis_sentinel_password: Option<String>,

    /// What is known of the primaries, shared by all keyspaces of copies of this configuration: those
    /// of the worker threads.
    #[arg(skip)]
    pub primaries: Primaries,
}

impl Config {
    /// Returns the defaults with this address.
    pub fn at(redis_url: impl Into<String>) -> Self {
        Self {
            redis_url: redis_url.into(),
            redis_password_file: None,
            redis_connections: 1,
            redis_dedicated_connections: 32,
            redis_timeout_ms: TIMEOUT_MS,
            redis_cache_bytes: CACHE_BYTES,
            redis_ca_file: None,
            redis_cert_file: None,
            redis_key_file: None,
            redis_sentinel_user: None,
            redis_sentinel_password: None,
            primaries: Primaries::default(),
        }
    }

    /// Returns the timeout of a reply.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.redis_timeout_ms)
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        redis: Config,
    }

    #[test]
    fn defaults_of_flags_and_code_are_equal() {
        let flags = Flags::try_parse_from(["test"]).unwrap().redis;
        let code = Config::at("redis://127.0.0.1:6379");
        assert!(flags == code);
    }

    #[test]
    fn invalid_values_are_rejected() {
        for flag in
            ["--redis-connections=0", "--redis-dedicated-connections=x", "--redis-timeout-ms=1"]
        {
            assert!(Flags::try_parse_from(["test", flag]).is_err(), "{flag}");
        }
    }
}
