//! How what several share is locked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value that is whole between any two statements: a panic elsewhere has done it no harm.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
