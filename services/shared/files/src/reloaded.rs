//! What is made of files that somebody changes while the process runs. There is no task for it: who
//! uses it has the files looked at.

use std::{
    error::Error,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::looks::Looks;

// A few small files of this machine, read that often at most, however much they are used.
const PAUSE: Duration = Duration::from_secs(1);

/// What is read, and what is made of it.
pub trait Recipe {
    /// The files as they were at one moment.
    type Files: PartialEq;
    /// What is made of them.
    type Made;
    /// Which of them cannot be read or used, with what is wrong as its source.
    type Error: Error + 'static;

    /// Reads the files as they are.
    fn read(&self) -> Result<Self::Files, Self::Error>;

    /// Makes something of them, or says which of them cannot be used.
    fn make(&self, files: &Self::Files) -> Result<Self::Made, Self::Error>;
}

/// Something that is made again when its files have changed.
///
/// They are looked at when it is used, once a second at most. Where nothing can be made of them, as
/// while somebody is changing one after the other, what was made before stays, and the log says so
/// once.
pub struct Reloaded<R: Recipe> {
    /// What it is for, as the log has it.
    name: &'static str,
    recipe: R,
    state: Mutex<State<R>>,
    /// How often it was made again.
    generation: AtomicU64,
    looks: Looks,
}

struct State<R: Recipe> {
    /// Of which something was made, or of which it is known that nothing can be.
    files: R::Files,
    made: Arc<R::Made>,
    /// Whether the files could not be read when they were last looked at.
    is_unreadable: bool,
}

impl<R: Recipe> Reloaded<R> {
    /// Makes it for the first time.
    pub fn new(name: &'static str, recipe: R) -> Result<Self, R::Error> {
        let files = recipe.read()?;
        let made = Arc::new(recipe.make(&files)?);
        Ok(Self {
            name,
            recipe,
            state: Mutex::new(State { files, made, is_unreadable: false }),
            generation: AtomicU64::new(0),
            looks: Looks::every(PAUSE),
        })
    }

    /// Returns what it is made by.
    pub fn recipe(&self) -> &R {
        &self.recipe
    }

    /// Returns what is made of the files as they were within the last second, or what was made
    /// before if these cannot be used.
    pub fn current(&self) -> Arc<R::Made> {
        self.look_if_time();
        self.lock().made.clone()
    }

    /// Returns a number that grows when something else was made. Locks nothing between two looks,
    /// so that it may be asked for every time. What [`Reloaded::current`] returns afterwards is of
    /// this generation, or of a later one.
    pub fn generation(&self) -> u64 {
        self.look_if_time();
        self.generation.load(Relaxed)
    }

    fn look_if_time(&self) {
        if self.looks.is_due()
            && let Err(error) = self.update(&mut self.lock())
        {
            let (error, problem) = (&error as &dyn Error, error.source());
            let name = self.name;
            tracing::warn!(error, problem, "{name} goes on with the files as they were before");
        }
    }

    fn update(&self, state: &mut State<R>) -> Result<(), R::Error> {
        // What cannot be read, or used, is said once.
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
        // Still locked: whoever knows the number waits for what belongs to it.
        self.generation.fetch_add(1, Relaxed);
        tracing::info!("{} goes on with files that have changed", self.name);
        Ok(())
    }

    // Whole between any two statements: a panic elsewhere has done it no harm.
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io, path::PathBuf};

    use microblog_testkit::Files;

    use super::*;
    use crate::looks::millis;

    /// Makes a number of a file with its digits.
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

    /// Makes it of a file with `1`.
    fn number() -> (Files, Reloaded<Number>) {
        let files = Files::new();
        let path = files.write("number", "1");
        (files, Reloaded::new("counting", Number(path)).unwrap())
    }

    /// Returns it, and its generation, as if a second had passed.
    fn later(number: &Reloaded<Number>) -> (u32, u64) {
        number.looks.next.store(0, Relaxed);
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
        number.looks.next.store(u64::MAX, Relaxed);
        assert_eq!((*number.current(), number.generation()), (1, 0), "not yet");
        number.looks.next.store(0, Relaxed);
        assert_eq!((number.generation(), *number.current()), (1, 2));
        assert!(number.looks.next.load(Relaxed) >= millis(PAUSE), "then there is a pause");
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
        // Each is found twice, and everything that was said so far counted.
        let expect = |made: (u32, u64), warnings: usize, changes: usize| {
            assert_eq!([later(&number), later(&number)], [made, made]);
            let log = fs::read_to_string(&log).unwrap();
            let said = |text| log.lines().filter(|line| line.contains(text)).count();
            assert_eq!(said("counting goes on with the files as they were before"), warnings);
            assert_eq!(said("counting goes on with files that have changed"), changes);
        };
        files.write("number", "rubbish");
        expect((1, 0), 1, 0);
        fs::remove_file(files.path("number")).unwrap();
        expect((1, 0), 2, 0);
        // Known already.
        files.write("number", "rubbish");
        expect((1, 0), 2, 0);
        files.write("number", "3");
        expect((3, 1), 2, 1);
    }
}
