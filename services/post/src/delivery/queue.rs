//! The queue of new posts whose callers wait for their delivery. Does no I/O.
//!
//! Each post belongs to a waiting caller, and `--max-calls` limits the callers. Posts of cancelled
//! callers are dropped before they outnumber the others, so the queue is bounded.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use microblog_chassis::context::{self, DetachedContext};
use microblog_proto::timeline::Delivery;
use tokio::sync::oneshot;

/// The most posts of one call, and of one read for it.
pub(super) const BATCH_MAX: usize = 100;

/// The most calls that a worker has in flight for new posts. More than one, since one may hang.
pub(super) const CALLS_MAX: usize = 4;

/// The queue length from which cancelled posts are looked for.
const CHECK_AT_MIN: usize = 1_024;

/// The queue of a worker.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    is_unresponsive: AtomicBool,
}

#[derive(Default)]
struct State {
    posts: VecDeque<QueuedPost>,
    /// The number of dispatchers.
    dispatchers: usize,
    /// The queue length at which cancelled posts are next looked for.
    check_at: usize,
}

struct QueuedPost {
    delivery: Delivery,
    /// Dropped when the delivery is over, which resumes the caller.
    done: oneshot::Sender<()>,
    context: DetachedContext,
}

impl QueuedPost {
    fn is_cancelled(&self) -> bool {
        self.done.is_closed()
    }
}

/// A dispatcher: takes batches out of the queue until it is empty.
pub(super) struct Dispatcher {
    queue: Arc<Queue>,
    is_finished: bool,
}

/// The posts of one call. Dropping it resumes their callers.
pub(super) struct Batch {
    posts: Vec<QueuedPost>,
}

impl Queue {
    /// Adds a post. Returns a receiver that resolves when its delivery is over, whatever the
    /// result; and a dispatcher, unless there are enough.
    pub(super) fn add(
        self: &Arc<Self>,
        delivery: Delivery,
    ) -> (oneshot::Receiver<()>, Option<Dispatcher>) {
        let (done, over) = oneshot::channel();
        let mut state = self.state();
        state.posts.push_back(QueuedPost { delivery, done, context: context::detach() });
        if state.posts.len() > state.check_at.max(CHECK_AT_MIN) {
            state.posts.retain(|post| !post.is_cancelled());
            state.check_at = 2 * state.posts.len();
        }
        let dispatcher = (state.dispatchers < CALLS_MAX).then(|| {
            state.dispatchers += 1;
            Dispatcher { queue: self.clone(), is_finished: false }
        });
        (over, dispatcher)
    }

    /// Records whether the last call to the timeline service had no answer.
    pub(super) fn record_answer(&self, is_unresponsive: bool) {
        self.is_unresponsive.store(is_unresponsive, Ordering::Relaxed);
    }

    /// Returns whether the last call to the timeline service had no answer.
    pub(super) fn is_unresponsive(&self) -> bool {
        self.is_unresponsive.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dispatcher {
    /// Returns the oldest posts, as many as one call takes. Returns `None` if the queue is empty,
    /// which ends the dispatcher.
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
            // Under the lock: a post added later must get a new dispatcher.
            state.dispatchers -= 1;
            self.is_finished = true;
            return None;
        }
        Some(Batch { posts })
    }
}

impl Drop for Dispatcher {
    // Only a dispatcher of a cancelled or panicked task is not finished.
    fn drop(&mut self) {
        if !self.is_finished {
            self.queue.state().dispatchers -= 1;
        }
    }
}

impl Batch {
    /// Returns the deliveries of the batch.
    pub(super) fn deliveries(&self) -> Vec<Delivery> {
        self.posts.iter().map(|post| post.delivery).collect()
    }

    /// Returns the trace context of the oldest call in the batch.
    pub(super) fn context(&self) -> Option<DetachedContext> {
        self.posts.first().map(|post| post.context.clone())
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
    async fn a_call_takes_all_queued_posts_and_resumes_their_callers() {
        let queue = Arc::<Queue>::default();
        let (first, dispatcher) = queue.add(delivery(1));
        let mut dispatcher = dispatcher.unwrap();
        let batch = dispatcher.next().unwrap();
        assert_eq!(ids(&batch), [1]);
        let (mut second, _) = queue.add(delivery(2));
        let (third, _) = queue.add(delivery(3));
        drop(batch);
        assert!(first.await.is_err(), "it is over");
        let batch = dispatcher.next().unwrap();
        assert_eq!(ids(&batch), [2, 3]);
        second.try_recv().unwrap_err();
        drop(batch);
        assert!(third.await.is_err(), "it is over");
        assert!(dispatcher.next().is_none() && dispatcher.next().is_none());
    }

    #[test]
    fn calls_in_flight_and_batches_are_bounded() {
        let queue = Arc::<Queue>::default();
        let (callers, dispatchers): (Vec<_>, Vec<_>) =
            (0..250).map(|post| queue.add(delivery(post))).unzip();
        let mut dispatchers: Vec<_> = dispatchers.into_iter().flatten().collect();
        assert_eq!(dispatchers.len(), CALLS_MAX);
        let sizes = [0, 1, 2].map(|call| dispatchers[call].next().unwrap().posts.len());
        assert_eq!(sizes, [BATCH_MAX, BATCH_MAX, 50]);
        assert!(dispatchers[0].next().is_none());
        // One finished dispatcher and one that was cancelled.
        drop(dispatchers.pop());
        drop(dispatchers.remove(0));
        drop(callers);
        let more: Vec<_> = (0..5).map(|post| queue.add(delivery(post))).collect();
        assert_eq!(more.iter().filter(|(_, dispatcher)| dispatcher.is_some()).count(), 2);
    }

    #[test]
    fn posts_of_cancelled_callers_are_dropped() {
        let queue = Arc::<Queue>::default();
        let (stays, dispatcher) = queue.add(delivery(1));
        for post in 2..10_000 {
            drop(queue.add(delivery(post)).0);
        }
        assert!(queued(&queue) <= CHECK_AT_MIN + 1, "{}", queued(&queue));
        let batch = dispatcher.unwrap().next().unwrap();
        assert_eq!(ids(&batch), [1]);
        assert_eq!(queued(&queue), 0);
        drop(stays);
    }
}
