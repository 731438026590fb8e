//! The kinds of values that the cache holds.

use std::hash::Hash;

use microblog_domain::Partition;
use redis::{Cmd, Value};

use crate::Error;

/// Identifies a value: the cache key.
pub trait Id: Copy + Ord + Hash + Send + 'static {}

impl<I: Copy + Ord + Hash + Send + 'static> Id for I {}

/// How to read and cache values of one kind. Each value has a Redis key of its own.
pub struct Kind<I, T> {
    /// Returns the partition of the key.
    pub partition: fn(I) -> Partition,
    /// Returns the command that reads the key. The command must read no other key. The value of a
    /// key with an expiry must hold the time of expiry, or be right until the key is changed, because
    /// the invalidation of an expired key may be late: it comes once a command finds the key expired.
    pub command: fn(I) -> Cmd,
    /// Returns the id that a Redis key belongs to.
    pub id: fn(&[u8]) -> Option<I>,
    /// Decodes the reply.
    pub decode: fn(I, Value) -> Result<T, Error>,
    /// Returns the approximate heap size of a value in bytes.
    pub heap_bytes: fn(&T) -> usize,
}

impl<I, T> Clone for Kind<I, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, T> Copy for Kind<I, T> {}
