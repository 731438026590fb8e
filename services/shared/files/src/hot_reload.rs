//! Hot reload of files. Runs no task: each use checks the files, rate-limited.

use std::{
    error::Error,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

// Minimum interval between two checks of a few small local files.
const CHECK_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// How to read files, and how to build a value from them.
pub trait Loader {
    /// A snapshot of the files.
    type Snapshot: PartialEq;
    /// The value.
    type Value;
    /// Names the unusable file; its source is the problem.
    type Error: Error + 'static;

    /// Reads the files.
    fn read(&self) -> Result<Self::Snapshot, Self::Error>;

    /// Builds the value, or returns which file is unusable.
    fn build(&self, files: &Self::Snapshot) -> Result<Self::Value, Self::Error>;
}

/// A value that is rebuilt when its files change.
///
/// Each use checks the files, once a second at most, unless [`HotReload::check_every`] sets another
/// interval. [`HotReload::check_now`] checks them at once. If they are unusable, as in the middle of a
/// renewal, the previous value stays, and the log has one warning.
pub struct HotReload<L: Loader> {
    /// Name for log lines.
    name: &'static str,
    loader: L,
    // A lock of its own: uses in all threads only read it, and never wait for a check.
    value: RwLock<Arc<L::Value>>,
    /// Number of rebuilds.
    generation: AtomicU64,
    timer: CheckTimer,
    last_check: Mutex<Check<L::Snapshot>>,
}

/// Result of a check.
struct Check<F> {
    /// The last files read, usable or not.
    files: F,
    is_unreadable: bool,
}

impl<L: Loader> HotReload<L> {
    /// Reads the files and builds the first value.
    pub fn new(name: &'static str, loader: L) -> Result<Self, L::Error> {
        let files = loader.read()?;
        let value = Arc::new(loader.build(&files)?);
        Ok(Self {
            name,
            loader,
            value: RwLock::new(value),
            generation: AtomicU64::new(0),
            timer: CheckTimer::new(CHECK_INTERVAL_MIN),
            last_check: Mutex::new(Check { files, is_unreadable: false }),
        })
    }

    /// Sets the minimum interval between two checks.
    #[must_use]
    pub fn check_every(self, interval: Duration) -> Self {
        Self { timer: CheckTimer::new(interval), ..self }
    }

    /// Returns the loader.
    pub fn loader(&self) -> &L {
        &self.loader
    }

    /// Returns the value of the files, at most an interval old; or the previous value if they are
    /// unusable.
    pub fn current(&self) -> Arc<L::Value> {
        self.reload_if_due();
        self.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a number that increases with each rebuild. Lock-free between two checks, and so
    /// cheap for every call. A later [`HotReload::current`] returns a value of this generation, or
    /// of a newer one.
    pub fn generation(&self) -> u64 {
        self.reload_if_due();
        self.generation.load(Relaxed)
    }

    /// Checks the files now, whatever the interval: for rare uses that need the newest value, such
    /// as a new connection.
    pub fn check_now(&self) {
        if let Err(error) = self.reload(&mut self.lock()) {
            let (error, problem) = (&error as &dyn Error, error.source());
            tracing::warn!(
                files = self.name,
                error,
                problem,
                "cannot reload files, keeping the previous ones"
            );
        }
    }

    fn reload_if_due(&self) {
        if self.timer.is_due() {
            self.check_now();
        }
    }

    fn reload(&self, last: &mut Check<L::Snapshot>) -> Result<(), L::Error> {
        // An unreadable or unusable file is logged once.
        let read = self.loader.read();
        let was_unreadable = std::mem::replace(&mut last.is_unreadable, read.is_err());
        let files = match read {
            Err(_) if was_unreadable => return Ok(()),
            read => read?,
        };
        if files == last.files {
            return Ok(());
        }
        last.files = files;
        let value = Arc::new(self.loader.build(&last.files)?);
        let mut current = self.value.write().unwrap_or_else(PoisonError::into_inner);
        *current = value;
        // Incremented under the lock, so that a reader of the new number gets the new value.
        self.generation.fetch_add(1, Relaxed);
        drop(current);
        tracing::info!(files = self.name, "files reloaded");
        Ok(())
    }

    // Consistent between any two statements, so that a poisoned mutex is harmless.
    fn lock(&self) -> MutexGuard<'_, Check<L::Snapshot>> {
        self.last_check.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rate limiter for a shared check: due once per interval, for the first caller.
struct CheckTimer {
    interval: Duration,
    created: Instant,
    /// When the next check is due, in milliseconds after `created`.
    next: AtomicU64,
}

impl CheckTimer {
    /// Returns a timer whose first check is due after one interval.
    fn new(interval: Duration) -> Self {
        Self { interval, created: Instant::now(), next: AtomicU64::new(millis(interval)) }
    }

    /// Returns whether the caller must check now. Of concurrent callers only one gets `true`.
    /// Lock-free.
    fn is_due(&self) -> bool {
        let (now, next) = (millis(self.created.elapsed()), self.next.load(Relaxed));
        let later = now.saturating_add(millis(self.interval));
        now >= next && self.next.compare_exchange(next, later, Relaxed, Relaxed).is_ok()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{fs, io, path::PathBuf};

    use microblog_testkit::Files;

    use super::*;

    /// Parses a file as a number.
    struct Number(PathBuf);

    impl Loader for Number {
        type Snapshot = String;
        type Value = u32;
        type Error = io::Error;

        fn read(&self) -> io::Result<String> {
            fs::read_to_string(&self.0)
        }

        fn build(&self, text: &String) -> io::Result<u32> {
            text.parse().map_err(io::Error::other)
        }
    }

    // One test at a time: a thread without a subscriber that registers a log statement while another
    // thread sets one may disable the statement.
    static LOGGING: Mutex<()> = Mutex::new(());

    /// Returns the reloaded number of a file with `1`.
    fn number() -> (MutexGuard<'static, ()>, Files, HotReload<Number>) {
        let alone = LOGGING.lock().unwrap_or_else(PoisonError::into_inner);
        let files = Files::new();
        let path = files.write("number", "1");
        (alone, files, HotReload::new("counting", Number(path)).unwrap())
    }

    /// Returns the value and the generation, after a second has passed.
    fn later(number: &HotReload<Number>) -> (u32, u64) {
        number.timer.next.store(0, Relaxed);
        (*number.current(), number.generation())
    }

    #[test]
    fn value_is_rebuilt_when_its_files_change() {
        let (_alone, files, number) = number();
        assert_eq!(later(&number), (1, 0));
        files.write("number", "2");
        assert_eq!(later(&number), (2, 1));
        files.write("number", "2");
        assert_eq!(later(&number), (2, 1), "the same again");
    }

    #[test]
    fn files_are_checked_once_per_interval_by_each_method() {
        let (_alone, files, number) = number();
        files.write("number", "2");
        number.timer.next.store(u64::MAX, Relaxed);
        assert_eq!((*number.current(), number.generation()), (1, 0), "not yet");
        number.timer.next.store(0, Relaxed);
        assert_eq!((number.generation(), *number.current()), (1, 2));
        assert!(
            number.timer.next.load(Relaxed) >= millis(CHECK_INTERVAL_MIN),
            "the next check is a period later"
        );
    }

    #[test]
    fn files_are_checked_on_demand_within_the_interval() {
        let (_alone, files, number) = number();
        number.timer.next.store(u64::MAX, Relaxed);
        files.write("number", "2");
        number.check_now();
        assert_eq!((*number.current(), number.generation()), (2, 1));
    }

    #[test]
    fn invalid_files_keep_the_previous_value_and_are_logged_once() {
        let (_alone, files, number) = number();
        let log = files.path("log");
        let lines = tracing_subscriber::fmt()
            .with_writer(Arc::new(fs::File::create(&log).unwrap()))
            .with_ansi(false)
            .finish();
        let _guard = tracing::subscriber::set_default(lines);
        // Checks twice. Log lines are counted from the start.
        let expect = |made: (u32, u64), warnings: usize, changes: usize| {
            assert_eq!([later(&number), later(&number)], [made, made]);
            let log = fs::read_to_string(&log).unwrap();
            let count = |text| log.lines().filter(|line| line.contains(text)).count();
            assert_eq!(
                count("cannot reload files, keeping the previous ones files=\"counting\""),
                warnings
            );
            assert_eq!(count("files reloaded files=\"counting\""), changes);
        };
        files.write("number", "rubbish");
        expect((1, 0), 1, 0);
        fs::remove_file(files.path("number")).unwrap();
        expect((1, 0), 2, 0);
        // Already logged.
        files.write("number", "rubbish");
        expect((1, 0), 2, 0);
        files.write("number", "3");
        expect((3, 1), 2, 1);
    }
}
