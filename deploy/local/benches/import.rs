//! Duration of an import, compared with the minimum work of Redis: bare pipelined `ZADD`s of the
//! same follows, two per follow, on a server with the same settings.
//!
//! `cargo bench --package microblog --bench import -- "$PWD/FILE"` (an edge list, gzipped or not).

use std::{
    collections::HashMap,
    env,
    fs::File,
    io::{BufRead, BufReader, Read},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use flate2::read::MultiGzDecoder;
use microblog_testkit::{RedisServer, eventually, free_port, redis};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

const MICROBLOG: &str = env!("CARGO_BIN_EXE_microblog");
const PIPELINE: usize = 10_000;
const START: Duration = Duration::from_secs(30);

fn main() -> anyhow::Result<()> {
    // Cargo passes `--bench` to every benchmark.
    let file = env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let file =
        file.context("usage: cargo bench --package microblog --bench import -- \"$PWD/FILE\"")?;
    let edges = read(&file)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bare_before = runtime.block_on(bare(&edges))?;
    let import = runtime.block_on(import(&file))?;
    let bare_after = runtime.block_on(bare(&edges))?;
    let bare = (bare_before + bare_after) / 2;
    let rate = |took: Duration| edges.len() as f64 / took.as_secs_f64();
    println!("{} follows of {file}", edges.len());
    println!("bare ZADD, twice    {:6.2} s  {:9.0} follows/s", bare.as_secs_f64(), rate(bare));
    println!("microblog import    {:6.2} s  {:9.0} follows/s", import.as_secs_f64(), rate(import));
    println!("ratio               {:6.2}", import.as_secs_f64() / bare.as_secs_f64());
    Ok(())
}

/// Reads the follows of an edge list without self-follows, as pairs of numbers.
fn read(file: &str) -> anyhow::Result<Vec<(u64, u64)>> {
    let bytes = File::open(file).with_context(|| format!("cannot read {file}"))?;
    let text: Box<dyn Read> =
        if file.ends_with(".gz") { Box::new(MultiGzDecoder::new(bytes)) } else { Box::new(bytes) };
    let mut ids = HashMap::new();
    let mut edges = Vec::new();
    for line in BufReader::new(text).lines() {
        let line = line?;
        let mut names = line.split_whitespace();
        let (Some(follower), Some(target)) = (names.next(), names.next()) else { continue };
        if follower.starts_with('#') || follower == target {
            continue;
        }
        let mut id = |name: &str| {
            let next = ids.len() as u64 + 1;
            *ids.entry(name.to_owned()).or_insert(next)
        };
        edges.push((id(follower), id(target)));
    }
    Ok(edges)
}

async fn bare(edges: &[(u64, u64)]) -> anyhow::Result<Duration> {
    // As `up` configures it; tests use another setting.
    let server = RedisServer::start_with(&[("appendfsync", "everysec")]).await;
    let mut connection = server.admin().await;
    let began = Instant::now();
    for (n, edges) in edges.chunks(PIPELINE).enumerate() {
        let mut pipeline = redis::pipe();
        for (i, (follower, target)) in edges.iter().enumerate() {
            let version = ((n * PIPELINE + i) as u64) << 12;
            pipeline.cmd("ZADD").arg(format!("following:{follower}")).arg(version).arg(target);
            pipeline.cmd("ZADD").arg(format!("followers:{target}")).arg(version).arg(follower);
        }
        pipeline.query_async::<Vec<u8>>(&mut connection).await?;
    }
    Ok(began.elapsed())
}

/// Times the process `microblog import` on a new, empty system.
async fn import(file: &str) -> anyhow::Result<Duration> {
    let data = tempfile::tempdir()?;
    let port = free_port();
    let up = Command::new(MICROBLOG)
        .args(["up", "--data-dir"])
        .arg(data.path())
        .args(["--port-base", &port.to_string()])
        .spawn()?;
    let url = |offset: u16| format!("http://127.0.0.1:{}", port + offset);
    let [user, relation, post, timeline, notice] = [1, 2, 3, 4, 5].map(url);
    let verify = [
        ["verify", "--user-url", &user, "--relation-url", &relation].as_slice(),
        &["--post-url", &post, "--timeline-url", &timeline, "--notice-url", &notice],
    ]
    .concat();
    let is_up = async || {
        Command::new(MICROBLOG).args(&verify).output().is_ok_and(|output| output.status.success())
    };
    eventually("microblog is up", START, is_up).await;

    let began = Instant::now();
    let import = ["import", file, "--user-url", &url(1), "--relation-url", &url(2)];
    let status = Command::new(MICROBLOG).args(import).status()?;
    let took = began.elapsed();
    ensure!(status.success(), "the import failed");

    let pid = i32::try_from(up.id())?;
    kill(Pid::from_raw(pid), Signal::SIGINT)?;
    let mut up = up;
    ensure!(up.wait()?.success(), "microblog did not stop with success");
    Ok(took)
}
