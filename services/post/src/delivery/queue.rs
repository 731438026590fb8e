//! New posts whose callers wait for their delivery. Does no input or output.
//!
//! Each post in it belongs to a caller that waits, and callers are limited by `--max-calls`. Those
//! who left are dropped before they are more than those who wait, so that the queue is bounded.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use microblog_chassis::context::{self, Joint};
use microblog_proto::timeline::Delivery;
use tokio::sync::oneshot;

/// The most posts that one call delivers, and that are read at once to be delivered.
pub(super) const BATCH_MAX: usize = 100;

/// How many calls for new posts a worker has under way. More than one, since one may hang.
pub(super) const CALLS_MAX: usize = 4;

/// At how many posts it is first looked for callers who left.
const CHECK_AT_MIN: usize = 1_024;

/// The queue of a worker.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    is_unresponsive: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    posts: VecDeque<QueuedPost>,
    /// How many take posts out, one batch after the other.
    calls: usize,
    /// At how many posts to look for callers who left.
    check_at: usize,
}

#[derive(Debug)]
struct QueuedPost {
    delivery: Delivery,
    /// Dropped when the caller has nothing to wait for any more.
    done: oneshot::Sender<()>,
    joint: Joint,
}

impl QueuedPost {
    fn is_cancelled(&self) -> bool {
        self.done.is_closed()
    }
}

/// The right to take posts out, until there are none.
#[derive(Debug)]
pub(super) struct Dispatcher {
    queue: Arc<Queue>,
    is_finished: bool,
}

/// Posts for one call. When it is dropped, their callers go on.
#[derive(Debug)]
pub(super) struct Batch {
    posts: Vec<QueuedPost>,
}

impl Queue {
    /// Adds a post. Returns what resolves, either way, when its delivery is over; and the right to
    /// take posts out, unless others have it who will come to this one.
    pub(super) fn add(
        self: &Arc<Self>,
        delivery: Delivery,
    ) -> (oneshot::Receiver<()>, Option<Dispatcher>) {
        let (done, over) = oneshot::channel();
        let mut state = self.state();
        state.posts.push_back(QueuedPost { delivery, done, joint: context::joint() });
        if state.posts.len() > state.check_at.max(CHECK_AT_MIN) {
            state.posts.retain(|post| !post.is_cancelled());
            state.check_at = 2 * state.posts.len();
        }
        let calls = (state.calls < CALLS_MAX).then(|| {
            state.calls += 1;
            Dispatcher { queue: self.clone(), is_finished: false }
        });
        (over, calls)
    }

    /// Notes whether the timeline service left the last call without an answer.
    pub(super) fn record_answer(&self, is_unresponsive: bool) {
        self.is_unresponsive.store(is_unresponsive, Ordering::Relaxed);
    }

    /// Returns whether the timeline service left the last call without an answer.
    pub(super) fn is_unresponsive(&self) -> bool {
        self.is_unresponsive.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dispatcher {
    /// Returns the posts that came first, as many as one call takes. `None` if nobody waits; then
    /// the right is given back.
    pub(super) fn next(&mut self) -> Option<Batch> {
        if self.is_finished {
            return None;
        }
        let mut state = self.queue.state();
        let mut posts = Vec::new();
        while posts.len() < BATCH_MAX
            && let Some(post) = state.posts.pop_front()
        {
            if !post.is_cancelled() {
                posts.push(post);
            }
        }
        if posts.is_empty() {
            // Not later: who adds a post from now on must find that nobody will come to it.
            state.calls -= 1;
            self.is_finished = true;
            return None;
        }
        Some(Batch { posts })
    }
}

impl Drop for Dispatcher {
    // Only a task that is cut off or panics has not given it back.
    fn drop(&mut self) {
        if !self.is_finished {
            self.queue.state().calls -= 1;
        }
    }
}

impl Batch {
    /// Returns what to deliver.
    pub(super) fn deliveries(&self) -> Vec<Delivery> {
        self.posts.iter().map(|post| post.delivery).collect()
    }

    /// Returns in whose trace they are delivered: that of the call that waits longest.
    pub(super) fn joint(&self) -> Option<Joint> {
        self.posts.first().map(|post| post.joint.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(post_id: u64) -> Delivery {
        Delivery { post_id, ..Delivery::default() }
    }

    fn ids(batch: &Batch) -> Vec<u64> {
        batch.deliveries().iter().map(|delivery| delivery.post_id).collect()
    }

    fn queued(queue: &Queue) -> usize {
        queue.state().posts.len()
    }

    #[tokio::test]
    async fn a_call_takes_all_that_came_and_its_callers_go_on_when_it_is_over() {
        let queue = Arc::<Queue>::default();
        let (first, calls) = queue.add(delivery(1));
        let mut calls = calls.unwrap();
        let batch = calls.next().unwrap();
        assert_eq!(ids(&batch), [1]);
        let (mut second, _) = queue.add(delivery(2));
        let (third, _) = queue.add(delivery(3));
        drop(batch);
        assert!(first.await.is_err(), "it is over");
        let batch = calls.next().unwrap();
        assert_eq!(ids(&batch), [2, 3]);
        second.try_recv().unwrap_err();
        drop(batch);
        assert!(third.await.is_err(), "it is over");
        assert!(calls.next().is_none() && calls.next().is_none());
    }

    #[test]
    fn so_many_calls_are_under_way_and_a_batch_is_no_larger_than_a_call() {
        let queue = Arc::<Queue>::default();
        let (callers, calls): (Vec<_>, Vec<_>) =
            (0..250).map(|post| queue.add(delivery(post))).unzip();
        let mut calls: Vec<_> = calls.into_iter().flatten().collect();
        assert_eq!(calls.len(), CALLS_MAX);
        let sizes = [0, 1, 2].map(|call| calls[call].next().unwrap().posts.len());
        assert_eq!(sizes, [BATCH_MAX, BATCH_MAX, 50]);
        assert!(calls[0].next().is_none());
        // One that ended, and one that was cut off.
        drop(calls.pop());
        drop(calls.remove(0));
        drop(callers);
        let more: Vec<_> = (0..5).map(|post| queue.add(delivery(post))).collect();
        assert_eq!(more.iter().filter(|(_, calls)| calls.is_some()).count(), 2);
    }

    #[test]
    fn who_left_is_not_kept_and_not_delivered() {
        let queue = Arc::<Queue>::default();
        let (stays, calls) = queue.add(delivery(1));
        for post in 2..10_000 {
            drop(queue.add(delivery(post)).0);
        }
        assert!(queued(&queue) <= CHECK_AT_MIN + 1, "{}", queued(&queue));
        let batch = calls.unwrap().next().unwrap();
        assert_eq!(ids(&batch), [1]);
        assert_eq!(queued(&queue), 0);
        drop(stays);
    }
}
