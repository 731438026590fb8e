//! The supervisor of the private redis-server: start, restart after a crash, and stop after all its
//! clients.

use std::{
    fs::OpenOptions,
    os::unix::{fs::OpenOptionsExt as _, process::CommandExt as _},
    path::PathBuf,
    process::{Child, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use microblog_keyspace::redis;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use opentelemetry::global;

use super::{access::Access, data_dir::DataDir, software::Software};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
const WATCH_INTERVAL: Duration = Duration::from_millis(200);
// Timeout of one command, which is repeated.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const MEMORY_INTERVAL: Duration = Duration::from_secs(2);
const RESTART_DELAY: Duration = Duration::from_secs(1);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(16);
// redis-server writes at most a second of buffered data, not the whole data set.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A running redis-server. Dropping the value stops it.
pub struct Redis {
    stop: Sender<()>,
    supervisor: Option<JoinHandle<()>>,
}

/// How to start redis-server.
struct Setup {
    software: Software,
    conf: PathBuf,
    log: PathBuf,
    access: Access,
}

impl Redis {
    /// Starts redis-server and waits until it has loaded its data.
    pub fn start(software: Software, data: &DataDir, access: Access) -> anyhow::Result<Self> {
        data.rotate_redis_log().context("cannot rename redis-server's old log")?;
        let setup = Setup { software, conf: data.redis_conf(), log: data.redis_log(), access };
        let (stop, stopped) = mpsc::channel();
        let (tell_start, started) = mpsc::channel();
        // The supervisor thread also starts it: `PR_SET_PDEATHSIG` fires when the thread that
        // started the child ends.
        let supervisor =
            thread::Builder::new().name("redis".to_owned()).spawn(move || {
                match setup.first_start() {
                    Ok(child) => {
                        let _ = tell_start.send(Ok(()));
                        setup.supervise(child, &stopped);
                    }
                    Err(error) => {
                        let _ = tell_start.send(Err(error));
                    }
                }
            })?;
        started.recv().context("the supervisor thread ended")??;
        Ok(Self { stop, supervisor: Some(supervisor) })
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Both fail only if the supervisor panicked, which it has reported.
        let _ = self.stop.send(());
        let _ = self.supervisor.take().map(JoinHandle::join);
    }
}

impl Setup {
    fn first_start(&self) -> anyhow::Result<Child> {
        let mut child = self.spawn()?;
        match self.wait_until_loaded(&mut child) {
            Ok(()) => Ok(child),
            Err(error) => {
                stop(child);
                Err(error)
            }
        }
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.log)?;
        self.software
            .redis_command()
            .arg(&self.conf)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C in a terminal signals the whole process group. redis-server must outlive calls
            // in flight.
            .process_group(0)
            .spawn()
            .context("cannot start redis-server")
    }

    fn wait_until_loaded(&self, child: &mut Child) -> anyhow::Result<()> {
        let client = redis::Client::open(self.access.admin_url()?)?;
        let mut is_reported = false;
        loop {
            if let Some(status) = child.try_wait()? {
                bail!("redis-server exited at startup ({status}):\n{}", self.end_of_log());
            }
            match ping(&client) {
                Ok(()) => return Ok(()),
                Err(error) if error.code() == Some("LOADING") => {
                    if !is_reported {
                        println!("redis-server is loading its data");
                    }
                    is_reported = true;
                }
                Err(error) if error.is_io_error() => {}
                Err(error) => {
                    return Err(anyhow!(error).context("redis-server rejects the connection"));
                }
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Supervises redis-server until the launcher stops, and then stops it.
    fn supervise(&self, child: Child, stopped: &Receiver<()>) {
        let mut running = Some(child);
        let mut started_at = Instant::now();
        let mut delay = RESTART_DELAY;
        loop {
            let wait = if running.is_some() { WATCH_INTERVAL } else { delay };
            if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                break;
            }
            match running.as_mut().map(Child::try_wait) {
                // It is running, or its status is unknown.
                Some(Ok(None) | Err(_)) => {}
                Some(Ok(Some(status))) => {
                    running = None;
                    let lasted = started_at.elapsed() > RESTART_DELAY_MAX;
                    delay = if lasted { RESTART_DELAY } else { delay };
                    self.log_exit(status, delay);
                }
                None => {
                    delay = RESTART_DELAY_MAX.min(delay * 2);
                    started_at = Instant::now();
                    match self.spawn() {
                        Ok(child) => running = Some(child),
                        Err(error) => eprintln!("{error:#}; retrying in {delay:?}"),
                    }
                }
            }
        }
        if let Some(child) = running {
            stop(child);
        }
    }

    fn log_exit(&self, status: ExitStatus, delay: Duration) {
        eprintln!(
            "redis-server exited ({status}); restarting in {delay:?}, log: {}",
            self.log.display()
        );
    }

    fn end_of_log(&self) -> String {
        const LINES: usize = 8;
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

fn ping(client: &redis::Client) -> redis::RedisResult<()> {
    redis::cmd("PING").query(&mut connect(client)?)
}

fn connect(client: &redis::Client) -> redis::RedisResult<redis::Connection> {
    let connection = client.get_connection_with_timeout(ANSWER_TIMEOUT)?;
    connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(connection)
}

/// Registers the metric of the memory that redis-server uses. Must be called after the start of
/// telemetry. A thread asks redis-server: a scrape must not wait for one that hangs.
pub(super) fn observe_memory(access: &Access) -> anyhow::Result<()> {
    let client = redis::Client::open(access.admin_url()?)?;
    // Zero while it is unknown.
    let used = Arc::new(AtomicU64::new(0));
    let observed = used.clone();
    global::meter("microblog-local")
        .u64_observable_gauge("microblog.redis.memory")
        .with_unit("By")
        .with_description("Memory that the launcher's redis-server uses for data and buffers")
        .with_callback(move |observer| match observed.load(Ordering::Relaxed) {
            0 => {}
            bytes => observer.observe(bytes, &[]),
        })
        .build();
    thread::Builder::new().name("redis-memory".to_owned()).spawn(move || {
        loop {
            used.store(memory(&client).unwrap_or_default(), Ordering::Relaxed);
            thread::sleep(MEMORY_INTERVAL);
        }
    })?;
    Ok(())
}

fn memory(client: &redis::Client) -> redis::RedisResult<u64> {
    // A new connection: redis-server may have been restarted.
    let mut connection = connect(client)?;
    let info: redis::InfoDict = redis::cmd("INFO").arg("memory").query(&mut connection)?;
    Ok(info.get("used_memory").unwrap_or_default())
}

/// Stops redis-server: SIGTERM, and SIGKILL after a timeout.
fn stop(mut child: Child) {
    // The PID is not reused before the wait.
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    let started_at = Instant::now();
    while let Ok(None) = child.try_wait() {
        if started_at.elapsed() > STOP_TIMEOUT {
            eprintln!("redis-server does not exit within {STOP_TIMEOUT:?}: sending SIGKILL");
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        thread::sleep(POLL_INTERVAL);
    }
}
