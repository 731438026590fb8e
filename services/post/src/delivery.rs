//! Delivery of posts to the timeline service. A post that it does not accept stays in the delivery
//! outbox, and the [sweeper](crate::Sweeper) delivers it later.
//!
//! New posts go through a [queue](Queue), one for each worker. Up to
//! [`CALLS_MAX`](queue::CALLS_MAX) calls are in flight, and each takes up to [`BATCH_MAX`] queued
//! posts. With few callers, each post has its own call at once; with many, a post waits for a call
//! or two.

mod queue;

use std::{sync::Arc, time::Duration};

use microblog_chassis::{Peer, context};
use microblog_domain::PostId;
use microblog_proto::timeline::{self, TimelineServicePeer};
use tokio::{sync::Semaphore, time::timeout};
use tonic::Status;

use crate::{error::Error, post::Content, store::Store};
use queue::{BATCH_MAX, Batch, Queue};

/// How long a caller waits for the delivery of its post, and a call for its answer. The sweeper
/// delivers the post after that.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// The most callers of a worker that wait for a delivery while the timeline service is
/// unresponsive. The sweeper delivers the posts of the others. Waiting callers must not use up the
/// slots of readers.
const WAITING_CALLERS_MAX: usize = 64;

/// The timeout of a call by the sweeper.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Delivers posts, and removes them from the outbox.
#[derive(Clone)]
pub struct Delivery {
    store: Store,
    timeline: Option<TimelineServicePeer<Peer>>,
    queue: Arc<Queue>,
    attempts: Arc<Semaphore>,
}

impl Delivery {
    /// Returns a delivery to a timeline service. Without one, all posts count as delivered.
    pub fn new(store: Store, timeline: Option<Peer>) -> Self {
        let (queue, attempts) = (Arc::default(), Arc::new(Semaphore::new(WAITING_CALLERS_MAX)));
        Self { store, timeline: timeline.map(TimelineServicePeer::new), queue, attempts }
    }

    /// Delivers a new post within [`ATTEMPT_TIMEOUT`]. While the timeline service is unresponsive,
    /// only [`WAITING_CALLERS_MAX`] callers wait for it. The sweeper delivers what is left.
    pub(crate) async fn attempt(&self, id: PostId, content: &Content) {
        let is_waiting = self.timeline.is_some() && self.queue.is_unresponsive();
        let permit = is_waiting.then(|| self.attempts.try_acquire());
        if matches!(permit, Some(Err(_))) {
            return;
        }
        let (done, dispatcher) = self.queue.add(delivery(id, content));
        if let Some(mut dispatcher) = dispatcher {
            let delivery = self.clone();
            tokio::spawn(async move {
                while let Some(batch) = dispatcher.next() {
                    delivery.deliver_batch(batch).await;
                }
            });
        }
        if timeout(ATTEMPT_TIMEOUT, done).await.is_err() {
            tracing::debug!("delivery timed out; the sweeper repeats it");
        }
    }

    // Dropping the batch resumes its callers, whatever the result.
    async fn deliver_batch(&self, batch: Batch) {
        let Some(context) = batch.context() else { return };
        let work = self.deliver_bisecting(batch.deliveries(), ATTEMPT_TIMEOUT);
        if let Err(error) = context.run(work).await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "delivery failed; the sweeper repeats it");
        }
    }

    /// Delivers any number of posts of the outbox. May be repeated.
    ///
    /// A rejected post does not stop the others; an outage does. Returns the first failure.
    pub async fn deliver(&self, ids: &[PostId]) -> Result<(), Error> {
        let mut outcome = Ok(());
        for ids in ids.chunks(BATCH_MAX) {
            let contents = self.store.contents(ids).await?;
            // Deleting a post removes it from the outbox.
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

    // Delivers posts in one call. If it is rejected, bisects the posts until each rejected one is
    // alone.
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
                    tracing::debug!(post, error, "post rejected by the timeline service");
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
            // The principal of a caller who posts may not call Deliver; this service may.
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
