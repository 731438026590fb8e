//! What Redis' own benchmark gets out of a server.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

const PROGRAM: &str = "redis-benchmark";

/// Has so many clients of redis-benchmark ask the server at this URL for so many keys, which are not
/// there, and returns for how many they asked in a second. The server must be there: redis-benchmark would wait for it without an end.
pub(super) fn gets_per_second(redis_url: &str, clients: usize, gets: u64) -> anyhow::Result<f64> {
    // The password that others can read so is that of a server which ends with this program.
    let output = Command::new(program())
        .args(["-u", redis_url, "-t", "get", "-q"])
        .args(["-c", &clients.to_string(), "-n", &gets.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("cannot run redis-benchmark, which comes with redis-server")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    match rate(&printed) {
        Some(rate) if output.status.success() => Ok(rate),
        _ => bail!(
            "redis-benchmark does not say how fast it was ({}): {printed}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

/// Returns the one beside the redis-server that was asked for, or that of the PATH.
fn program() -> PathBuf {
    let server = env::var_os("MICROBLOG_REDIS_SERVER").map(PathBuf::from);
    let beside = server.and_then(|server| Some(server.parent()?.join(PROGRAM)));
    beside.filter(|program| program.is_file()).unwrap_or_else(|| PROGRAM.into())
}

/// Reads the last `GET: 98765.43 requests per second, p50=0.3 msec`; progress is before it, on lines
/// that a terminal shows in the same place.
fn rate(printed: &str) -> Option<f64> {
    let mut lines = printed.split(['\r', '\n']).rev();
    lines.find_map(|line| {
        let (rate, _) = line.strip_prefix("GET: ")?.split_once(" requests per second")?;
        rate.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use microblog_testkit::RedisServer;

    use super::*;

    #[test]
    fn the_rate_is_read_behind_the_progress() {
        let printed = "GET: rps=0.0 (overall: -nan) avg_msec=-nan\rGET: rps=9.0 (overall: 8.0)\r\
            GET: 12345.68 requests per second, p50=0.287 msec   \n\n";
        assert_eq!(rate(printed), Some(12345.68));
        assert_eq!(rate("WARNING: Could not fetch server CONFIG\n"), None);
    }

    #[tokio::test]
    async fn a_server_with_a_password_is_measured() {
        let server = RedisServer::start().await;
        assert!(gets_per_second(&server.admin_url(), 8, 1_000).unwrap() > 0.0);
        let url = format!("redis://admin:wrong@127.0.0.1:{}", server.port());
        let error = gets_per_second(&url, 8, 1_000).unwrap_err().to_string();
        assert!(error.contains("WRONGPASS"), "{error}");
    }
}
