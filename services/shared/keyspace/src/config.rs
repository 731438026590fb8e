//! Flags and environment of the keyspace, flattened into each service's own. Knows no key and no
//! service.

use std::{path::PathBuf, time::Duration};

// Some 25,000 posts, or 60,000 accounts. `tracking-table-max-keys` in deploy/redis/redis.conf must be
// enough for what all threads remember: beyond, Redis forgets at random.
const RECALL_BYTES: usize = 8 << 20;

// Long enough for what passes by itself: three lost packets in a row (1.4 s until TCP has sent the
// third again), a lost first packet of a connection (1 s, of the half that it is given), a Redis that
// forks, or machines that are busy. Short enough that the three steps that a call may have fit into
// the ten seconds that callers wait unless they say otherwise, so that they hear UNAVAILABLE.
const TIMEOUT_MS: u64 = 3000;

/// Where Redis is and how to talk to it.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Redis")]
// Flattened into other structs named `Config`: the groups of two would clash.
#[group(skip)]
pub struct Config {
    /// Address of Redis: `redis://[user:password@]host:port[/database]`,
    /// `redis+sentinel://[user:password@]host:port,host:port/master-name` or
    /// `redis-cluster://[user:password@]host:port,host:port`; with `rediss` in place of `redis`
    /// over TLS. User and password are percent-encoded and are those of the Redis nodes. Each node
    /// of a cluster must announce its own host (`cluster-announce-ip`, or `-hostname` with
    /// `cluster-preferred-endpoint-type hostname`): one that announces none is never ready.
    #[arg(
        long,
        env = "MICROBLOG_REDIS_URL",
        default_value = "redis://127.0.0.1:6379",
        hide_env_values = true
    )]
    pub redis_url: String,

    /// Shared connections for ordinary commands, per worker thread. What is sent at the same moment
    /// goes out together, on each of them: more connections mean more for Redis to read and write.
    #[arg(long, env = "MICROBLOG_REDIS_LINKS", default_value_t = 1, value_parser = positive)]
    pub redis_links: usize,

    /// Exclusive connections for blocking reads, per worker thread and Redis node.
    #[arg(
        long,
        env = "MICROBLOG_REDIS_EXCLUSIVE_LINKS",
        default_value_t = 32,
        value_parser = positive
    )]
    pub redis_exclusive_links: usize,

    /// Longest wait for an answer of Redis, in milliseconds; a connection is given half of it to
    /// come up, to a node of a cluster a quarter. What is not answered by then is UNAVAILABLE, and is
    /// not sent again: a slow Redis would only have more to do. The default outlasts lost packets, a
    /// fork of Redis and a busy machine, and leaves room for two more steps of a call within the ten
    /// seconds of --default-timeout-ms.
    #[arg(
        long,
        env = "MICROBLOG_REDIS_TIMEOUT_MS",
        default_value_t = TIMEOUT_MS,
        value_parser = clap::value_parser!(u64).range(10..=600_000)
    )]
    pub redis_timeout_ms: u64,

    /// Memory, in bytes, for what each worker thread remembers of what it has read (the user service:
    /// accounts and their sessions; the post service: posts), for as long as Redis says that it has
    /// not changed; 0 for none. Nothing of a cluster is remembered.
    #[arg(long, env = "MICROBLOG_REDIS_RECALL_BYTES", default_value_t = RECALL_BYTES)]
    pub redis_recall_bytes: usize,

    /// File with the certificate authorities (PEM) to trust with `rediss`; the system's without it.
    #[arg(long, env = "MICROBLOG_REDIS_CA_FILE")]
    pub redis_ca_file: Option<PathBuf>,

    /// File with the certificate (PEM) to show to Redis with `rediss`, where that asks for one
    /// (`tls-auth-clients yes`), followed by those that lead to its authority. This and the other
    /// files of TLS are read again when they have changed.
    #[arg(long, env = "MICROBLOG_REDIS_CERT_FILE", requires = "redis_key_file")]
    pub redis_cert_file: Option<PathBuf>,

    /// File with the private key (PEM) of --redis-cert-file.
    #[arg(long, env = "MICROBLOG_REDIS_KEY_FILE", requires = "redis_cert_file")]
    pub redis_key_file: Option<PathBuf>,

    /// User at the Sentinels, where they ask for one.
    #[arg(long, env = "MICROBLOG_REDIS_SENTINEL_USER")]
    pub redis_sentinel_user: Option<String>,

    /// Password at the Sentinels, where they ask for one.
    #[arg(long, env = "MICROBLOG_REDIS_SENTINEL_PASSWORD", hide_env_values = true)]
    pub redis_sentinel_password: Option<String>,
}

impl Config {
    /// Returns the defaults with another address.
    pub fn at(redis_url: impl Into<String>) -> Self {
        Self {
            redis_url: redis_url.into(),
            redis_links: 1,
            redis_exclusive_links: 32,
            redis_timeout_ms: TIMEOUT_MS,
            redis_recall_bytes: RECALL_BYTES,
            redis_ca_file: None,
            redis_cert_file: None,
            redis_key_file: None,
            redis_sentinel_user: None,
            redis_sentinel_password: None,
        }
    }

    /// Returns the longest wait for an answer.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.redis_timeout_ms)
    }
}

// The address may carry a password: it never shows.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("redis_links", &self.redis_links)
            .field("redis_exclusive_links", &self.redis_exclusive_links)
            .field("redis_timeout_ms", &self.redis_timeout_ms)
            .field("redis_recall_bytes", &self.redis_recall_bytes)
            .field("redis_ca_file", &self.redis_ca_file)
            .field("redis_cert_file", &self.redis_cert_file)
            .field("redis_key_file", &self.redis_key_file)
            .finish_non_exhaustive()
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
    fn the_defaults_of_flags_are_those_of_code() {
        let flags = Flags::try_parse_from(["test"]).unwrap().redis;
        let code = Config::at("redis://127.0.0.1:6379");
        assert_eq!(flags.redis_url, code.redis_url);
        assert_eq!(format!("{flags:?}"), format!("{code:?}"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for flag in ["--redis-links=0", "--redis-exclusive-links=x", "--redis-timeout-ms=1"] {
            assert!(Flags::try_parse_from(["test", flag]).is_err(), "{flag}");
        }
    }

    #[test]
    fn the_address_never_shows() {
        let config = Config::at("redis://user:secret@localhost");
        assert!(!format!("{config:?}").contains("secret"));
    }
}
