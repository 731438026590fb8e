//! The private redis-server: started, watched, started again when it dies, and stopped after
//! everything that uses it.

use std::{
    fs::OpenOptions,
    os::unix::{fs::OpenOptionsExt as _, process::CommandExt as _},
    path::PathBuf,
    process::{Child, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use microblog_keyspace::redis;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{access::Access, data::DataDir, software::Software};

const POLL: Duration = Duration::from_millis(50);
const WATCH: Duration = Duration::from_millis(200);
// Asked again after that, for as long as redis-server runs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const RESTART_PAUSE: Duration = Duration::from_secs(1);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(16);
// It has to write what it holds back for up to a second, not its whole data.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A running redis-server, stopped when the value is dropped.
pub struct Redis {
    stop: Sender<()>,
    keeper: Option<JoinHandle<()>>,
}

/// How to start redis-server.
struct Setup {
    software: Software,
    conf: PathBuf,
    log: PathBuf,
    access: Access,
}

impl Redis {
    /// Starts it and waits until it has read its data.
    pub fn start(software: Software, data: &DataDir, access: Access) -> anyhow::Result<Self> {
        data.rotate_redis_log().context("cannot put redis-server's old log aside")?;
        let setup = Setup { software, conf: data.redis_conf(), log: data.redis_log(), access };
        let (stop, stopped) = mpsc::channel();
        let (tell_start, started) = mpsc::channel();
        // The keeper starts it, too: redis-server is told to end when the thread that started it
        // does.
        let keeper = thread::Builder::new().name("redis-keeper".to_owned()).spawn(move || {
            match setup.first_start() {
                Ok(child) => {
                    let _ = tell_start.send(Ok(()));
                    setup.keep(child, &stopped);
                }
                Err(error) => {
                    let _ = tell_start.send(Err(error));
                }
            }
        })?;
        started.recv().context("the thread that starts redis-server ended")??;
        Ok(Self { stop, keeper: Some(keeper) })
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Neither fails but after a panic of the keeper, which has been told by then.
        let _ = self.stop.send(());
        let _ = self.keeper.take().map(JoinHandle::join);
    }
}

impl Setup {
    fn first_start(&self) -> anyhow::Result<Child> {
        let mut child = self.spawn()?;
        match self.wait_until_loaded(&mut child) {
            Ok(()) => Ok(child),
            Err(error) => {
                end(child);
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
            // Ctrl-C in a terminal goes to the whole process group: redis-server must outlive the
            // calls that are under way.
            .process_group(0)
            .spawn()
            .context("cannot start redis-server")
    }

    fn wait_until_loaded(&self, child: &mut Child) -> anyhow::Result<()> {
        let client = redis::Client::open(self.access.admin_url()?)?;
        let mut said = false;
        loop {
            if let Some(status) = child.try_wait()? {
                bail!("redis-server ended at its start ({status}):\n{}", self.end_of_log());
            }
            match ping(&client) {
                Ok(()) => return Ok(()),
                Err(error) if error.code() == Some("LOADING") => {
                    if !said {
                        println!("redis-server is reading its data");
                    }
                    said = true;
                }
                Err(error) if error.is_io_error() => {}
                Err(error) => return Err(anyhow!(error).context("redis-server does not let us in")),
            }
            thread::sleep(POLL);
        }
    }

    /// Watches redis-server until it is to stop, and stops it.
    fn keep(&self, child: Child, stopped: &Receiver<()>) {
        let mut running = Some(child);
        let mut begun = Instant::now();
        let mut pause = RESTART_PAUSE;
        loop {
            let wait = if running.is_some() { WATCH } else { pause };
            if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                break;
            }
            match running.as_mut().map(Child::try_wait) {
                // It runs, or the system does not say.
                Some(Ok(None) | Err(_)) => {}
                Some(Ok(Some(status))) => {
                    running = None;
                    let lasted = begun.elapsed() > RESTART_PAUSE_MAX;
                    pause = if lasted { RESTART_PAUSE } else { pause };
                    self.tell_death(status, pause);
                }
                None => {
                    pause = RESTART_PAUSE_MAX.min(pause * 2);
                    begun = Instant::now();
                    match self.spawn() {
                        Ok(child) => running = Some(child),
                        Err(error) => eprintln!("{error:#}; trying again in {pause:?}"),
                    }
                }
            }
        }
        if let Some(child) = running {
            end(child);
        }
    }

    fn tell_death(&self, status: ExitStatus, pause: Duration) {
        eprintln!(
            "redis-server ended ({status}); starting it again in {pause:?}. Its log is {}",
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
    let mut connection = client.get_connection_with_timeout(ANSWER_TIMEOUT)?;
    connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    redis::cmd("PING").query(&mut connection)
}

/// Ends redis-server: it writes what it holds back and goes, or is killed after a while.
fn end(mut child: Child) {
    // Until it has been waited for, the process id is its own.
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    let begun = Instant::now();
    while let Ok(None) = child.try_wait() {
        if begun.elapsed() > STOP_TIMEOUT {
            eprintln!("redis-server does not end within {STOP_TIMEOUT:?}: killing it");
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        thread::sleep(POLL);
    }
}
