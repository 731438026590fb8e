//! How the timeline service hears of posts. It may be away, or refuse one: what it did not take
//! stays in the outbox, and the [sweeper](crate::Sweeper) delivers it later.
//!
//! New posts go through a [queue](Queue) of their worker: up to [`CALLS_MAX`](queue::CALLS_MAX) calls are under way at
//! a time, and each takes all posts that came while it had to wait, up to [`BATCH_MAX`]. With few
//! callers each post has a call of its own, at once; with many, none has to wait for more than a
//! call or two.

mod queue;

use std::{sync::Arc, time::Duration};

use microblog_chassis::{Peer, context};
use microblog_domain::PostId;
use microblog_proto::timeline::{self, TimelineServicePeer};
use tokio::{sync::Semaphore, time::timeout};
use tonic::Status;

use crate::{error::Error, post::Content, store::Store};
use queue::{BATCH_MAX, Batch, Queue};

/// How long a caller who publishes waits for the delivery, and a call for new posts for its answer.
/// After that the sweeper sees to it.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// How many callers of a worker wait for a delivery while the timeline service does not answer. The
/// posts of more are left to the sweeper: a timeline service that hangs must not take the places of
/// those who read.
const WAITING_CALLERS_MAX: usize = 64;

/// For one call of the sweeper's: a peer that hangs must not stop it for ever.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Delivers posts, and strikes them out of the outbox.
#[derive(Clone)]
pub struct Delivery {
    store: Store,
    timeline: Option<TimelineServicePeer<Peer>>,
    queue: Arc<Queue>,
    attempts: Arc<Semaphore>,
}

impl Delivery {
    /// Returns the means to deliver to a timeline service. Without one, posts count as delivered.
    pub fn new(store: Store, timeline: Option<Peer>) -> Self {
        let (queue, attempts) = (Arc::default(), Arc::new(Semaphore::new(WAITING_CALLERS_MAX)));
        Self { store, timeline: timeline.map(TimelineServicePeer::new), queue, attempts }
    }

    /// Delivers a new post if that takes no longer than [`ATTEMPT_MAX`]. While the timeline service
    /// does not answer, only [`ATTEMPTS_MAX`] callers wait for it. The sweeper does what is left.
    pub(crate) async fn attempt(&self, id: PostId, content: &Content) {
        let is_waiting = self.timeline.is_some() && self.queue.is_unresponsive();
        let permit = is_waiting.then(|| self.attempts.try_acquire());
        if matches!(permit, Some(Err(_))) {
            return;
        }
        let (done, calls) = self.queue.add(delivery(id, content));
        if let Some(mut calls) = calls {
            let delivery = self.clone();
            tokio::spawn(async move {
                while let Some(batch) = calls.next() {
                    delivery.deliver_batch(batch).await;
                }
            });
        }
        if timeout(ATTEMPT_TIMEOUT, done).await.is_err() {
            tracing::debug!("a delivery takes long and is left to the sweeper");
        }
    }

    // Its callers go on when the batch is dropped, whatever became of it.
    async fn deliver_batch(&self, batch: Batch) {
        let Some(joint) = batch.joint() else { return };
        let work = self.deliver_bisecting(batch.deliveries(), ATTEMPT_TIMEOUT);
        if let Err(error) = joint.run(work).await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "posts are left to the sweeper");
        }
    }

    /// Delivers posts that are in the outbox, any number of them. May be repeated.
    ///
    /// A post that is refused keeps no other from being delivered, unless the service is away: then
    /// all would be. The first failure is returned.
    pub async fn deliver(&self, ids: &[PostId]) -> Result<(), Error> {
        let mut outcome = Ok(());
        for ids in ids.chunks(BATCH_MAX) {
            let contents = self.store.contents(ids).await?;
            // What was deleted meanwhile left the outbox with it.
            let posts = ids.iter().zip(&contents);
            let found = posts.filter_map(|(&id, content)| Some(delivery(id, content.as_ref()?)));
            let delivered = self.deliver_bisecting(found.collect(), CALL_TIMEOUT).await;
            let is_outage = delivered.as_ref().is_err_and(Error::is_outage);
            outcome = outcome.and(delivered);
            if is_outage {
                break;
            }
        }
        outcome
    }

    // Delivers posts together. Where that is refused, each half of them for itself, and so on: one
    // that is refused keeps no other from being delivered.
    async fn deliver_bisecting(
        &self,
        deliveries: Vec<timeline::Delivery>,
        call_timeout: Duration,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        let mut parts = vec![deliveries];
        while let Some(mut part) = parts.pop() {
            let delivered = self.deliver_call(&part, call_timeout).await;
            match &delivered {
                Err(error) if error.is_outage() => return delivered,
                Err(_) if part.len() > 1 => {
                    let half = part.split_off(part.len() / 2);
                    parts.extend([half, part]);
                    continue;
                }
                Err(error) => {
                    let error = error as &dyn std::error::Error;
                    let post = part.first().map(|delivery| delivery.post_id);
                    tracing::debug!(post, error, "a post cannot be delivered");
                }
                Ok(()) => {}
            }
            outcome = outcome.and(delivered);
        }
        outcome
    }

    async fn deliver_call(
        &self,
        deliveries: &[timeline::Delivery],
        call_timeout: Duration,
    ) -> Result<(), Error> {
        if deliveries.is_empty() {
            return Ok(());
        }
        let delivered = deliveries.iter().filter_map(|delivery| PostId::new(delivery.post_id));
        let delivered: Vec<_> = delivered.collect();
        if let Some(timeline) = &self.timeline {
            // Who posts may not tell timelines of posts: we do, of what we wrote down.
            let request = timeline::DeliverRequest { deliveries: deliveries.to_vec() };
            let answer = timeout(call_timeout, context::as_system(timeline.deliver(request)));
            let late = |_| Err(Status::deadline_exceeded("no answer in time"));
            let answer = answer.await.unwrap_or_else(late).map_err(Error::Timeline);
            self.queue.record_answer(answer.as_ref().is_err_and(Error::is_outage));
            answer?;
        }
        self.store.delivered(&delivered).await?;
        Ok(())
    }
}

fn delivery(id: PostId, content: &Content) -> timeline::Delivery {
    let (post_id, author_id) = (id.get(), content.author.get());
    let root_id = content.origin.map_or(0, |origin| origin.root.get());
    let has_text = !content.text.is_empty();
    timeline::Delivery { post_id, author_id, root_id, has_text }
}
