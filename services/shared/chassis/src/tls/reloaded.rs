//! What is made of files that somebody changes while the process runs. There is no task for it: who
//! uses it has the files looked at.

use std::{
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::files::TlsError;

// A few small files of this machine, read that often at most, however many connections come.
const PAUSE: Duration = Duration::from_secs(1);

/// What is read, and what is made of it.
pub(super) trait Recipe {
    type Files: PartialEq;
    type Made;

    /// Reads the files as they are.
    fn read(&self) -> Result<Self::Files, TlsError>;

    /// Makes something of them, or says which of them cannot be used.
    fn make(files: &Self::Files) -> Result<Self::Made, TlsError>;
}

/// Something that is made again when its files have changed.
pub(super) struct Reloaded<R: Recipe> {
    recipe: R,
    state: Mutex<State<R>>,
}

struct State<R: Recipe> {
    /// Of which something was made, or of which it is known that nothing can be.
    files: R::Files,
    made: Arc<R::Made>,
    checked: Instant,
    /// Whether the files could not be read when they were last looked at.
    is_unreadable: bool,
}

impl<R: Recipe> Reloaded<R> {
    /// Makes it for the first time.
    pub(super) fn new(recipe: R) -> Result<Self, TlsError> {
        let files = recipe.read()?;
        let made = Arc::new(R::make(&files)?);
        let state = State { files, made, checked: Instant::now(), is_unreadable: false };
        Ok(Self { recipe, state: Mutex::new(state) })
    }

    /// Returns what is made of the files as they were within the last second. Where nothing can be
    /// made of them, as while somebody is changing one after the other, what was made before.
    pub(super) fn current(&self) -> Arc<R::Made> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked.elapsed() >= PAUSE {
            state.checked = Instant::now();
            if let Err(error) = self.update(&mut state) {
                let (error, problem) = (&error as &dyn Error, error.source());
                tracing::warn!(error, problem, "TLS goes on with the files as they were before");
            }
        }
        state.made.clone()
    }

    fn update(&self, state: &mut State<R>) -> Result<(), TlsError> {
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
        state.made = Arc::new(R::make(&state.files)?);
        tracing::info!("TLS goes on with files that have changed");
        Ok(())
    }
}
