//! Hot reload of files. Runs no task: each use checks the files, rate-limited.

use std::{
    error::Error,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::looks::Looks;

// Minimum interval between two checks of a few small local files.
const CHECK_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// How to read files, and how to build a value from them.
pub trait Recipe {
    /// A snapshot of the files.
    type Files: PartialEq;
    /// The value.
    type Made;
    /// Names the unusable file; its source is the problem.
    type Error: Error + 'static;

    /// Reads the files.
    fn read(&self) -> Result<Self::Files, Self::Error>;

    /// Builds the value, or returns which file is unusable.
    fn make(&self, files: &Self::Files) -> Result<Self::Made, Self::Error>;
}

/// A value that is rebuilt when its files change.
///
/// Each use checks the files, once a second at most. If they are unusable, as in the middle of a
/// renewal, the previous value stays, and the log has one warning.
pub struct Reloaded<R: Recipe> {
    /// Name for log lines.
    name: &'static str,
    recipe: R,
    state: Mutex<State<R>>,
    /// Number of rebuilds.
    generation: AtomicU64,
    checks: Looks,
}

struct State<R: Recipe> {
    /// The last files read, usable or not.
    files: R::Files,
    made: Arc<R::Made>,
    /// Whether the last check failed to read the files.
    is_unreadable: bool,
}

impl<R: Recipe> Reloaded<R> {
    /// Reads the files and builds the first value.
    pub fn new(name: &'static str, recipe: R) -> Result<Self, R::Error> {
        let files = recipe.read()?;
        let made = Arc::new(recipe.make(&files)?);
        Ok(Self {
            name,
            recipe,
            state: Mutex::new(State { files, made, is_unreadable: false }),
            generation: AtomicU64::new(0),
            checks: Looks::every(CHECK_INTERVAL_MIN),
        })
    }

    /// Returns the recipe.
    pub fn recipe(&self) -> &R {
        &self.recipe
    }

    /// Returns the value of the files, at most a second old; or the previous value if they are
    /// unusable.
    pub fn current(&self) -> Arc<R::Made> {
        self.reload_if_due();
        self.lock().made.clone()
    }

    /// Returns a number that increases with each rebuild. Lock-free between two checks, and so
    /// cheap for every call. A later [`Reloaded::current`] returns a value of this generation, or
    /// of a newer one.
    pub fn generation(&self) -> u64 {
        self.reload_if_due();
        self.generation.load(Relaxed)
    }

    fn reload_if_due(&self) {
        if self.checks.is_due()
            && let Err(error) = self.reload(&mut self.lock())
        {
            let (error, problem) = (&error as &dyn Error, error.source());
            let name = self.name;
            tracing::warn!(error, problem, "{name} goes on with the files as they were before");
        }
    }

    fn reload(&self, state: &mut State<R>) -> Result<(), R::Error> {
        // An unreadable or unusable file is logged once.
        let read = self.recipe.read();
        let was_unreadable = std::mem::replace(&mut state.is_unreadable, read.is_err());
        let files = match read {
            Err(_) if was_unreadable => return Ok(()),
            read => read?,
        };
        if files == state.files {
            return Ok(());
        }
        state.files = files;
        state.made = Arc::new(self.recipe.make(&state.files)?);
        // Incremented under the lock, so that a reader of the new number gets the new value.
        self.generation.fetch_add(1, Relaxed);
        tracing::info!("{} goes on with files that have changed", self.name);
        Ok(())
    }

    // Consistent between any two statements, so that a poisoned mutex is harmless.
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io, path::PathBuf};

    use microblog_testkit::TempFiles;

    use super::*;
    use crate::looks::millis;

    /// Parses a file as a number.
    struct Number(PathBuf);

    impl Recipe for Number {
        type Files = String;
        type Made = u32;
        type Error = io::Error;

        fn read(&self) -> io::Result<String> {
            fs::read_to_string(&self.0)
        }

        fn make(&self, text: &String) -> io::Result<u32> {
            text.parse().map_err(io::Error::other)
        }
    }

    /// Returns the reloaded number of a file with `1`.
    fn number() -> (TempFiles, Reloaded<Number>) {
        let files = TempFiles::new();
        let path = files.write("number", "1");
        (files, Reloaded::new("counting", Number(path)).unwrap())
    }

    /// Returns the value and the generation, after a second has passed.
    fn later(number: &Reloaded<Number>) -> (u32, u64) {
        number.checks.next.store(0, Relaxed);
        (*number.current(), number.generation())
    }

    #[test]
    fn value_is_rebuilt_when_its_files_change() {
        let (files, number) = number();
        assert_eq!(later(&number), (1, 0));
        files.write("number", "2");
        assert_eq!(later(&number), (2, 1));
        files.write("number", "2");
        assert_eq!(later(&number), (2, 1), "the same again");
    }

    #[test]
    fn files_are_checked_once_per_interval_by_each_method() {
        let (files, number) = number();
        files.write("number", "2");
        number.checks.next.store(u64::MAX, Relaxed);
        assert_eq!((*number.current(), number.generation()), (1, 0), "not yet");
        number.checks.next.store(0, Relaxed);
        assert_eq!((number.generation(), *number.current()), (1, 2));
        assert!(
            number.checks.next.load(Relaxed) >= millis(CHECK_INTERVAL_MIN),
            "the next check is a period later"
        );
    }

    #[test]
    fn invalid_files_keep_the_previous_value_and_are_logged_once() {
        let (files, number) = number();
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
            assert_eq!(count("counting goes on with the files as they were before"), warnings);
            assert_eq!(count("counting goes on with files that have changed"), changes);
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
