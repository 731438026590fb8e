//! How the timeline service hears of posts. It may be away, or refuse one: what it did not take
//! stays in the outbox, and the [sweeper](crate::Sweeper) delivers it later.

use std::{sync::Arc, time::Duration};

use microblog_chassis::{Peer, context};
use microblog_domain::PostId;
use microblog_proto::timeline::{self, TimelineServicePeer};
use tokio::{sync::Semaphore, time::timeout};
use tonic::Status;

use crate::{error::Error, post::Content, store::Store};

/// The most posts that one call delivers, and that are read at once to be delivered.
const BATCH_MAX: usize = 100;

/// How long a caller who publishes waits for the delivery. After that the sweeper sees to it.
const ATTEMPT_MAX: Duration = Duration::from_secs(1);

/// How many callers of a worker wait for a delivery. The posts of more are left to the sweeper: a
/// timeline service that hangs must not take the places of those who read.
const ATTEMPTS_MAX: usize = 64;

/// For one call of the sweeper's: a peer that hangs must not stop it for ever.
const CALL_MAX: Duration = Duration::from_secs(5);

/// Delivers posts, and strikes them out of the outbox.
#[derive(Clone)]
pub struct Delivery {
    store: Store,
    timeline: Option<TimelineServicePeer<Peer>>,
    attempts: Arc<Semaphore>,
}

impl Delivery {
    /// Returns the means to deliver to a timeline service. Without one, posts count as delivered.
    pub fn new(store: Store, timeline: Option<Peer>) -> Self {
        let attempts = Arc::new(Semaphore::new(ATTEMPTS_MAX));
        Self { store, timeline: timeline.map(TimelineServicePeer::new), attempts }
    }

    /// Delivers a new post if it can be done at once. The sweeper tells when it cannot be.
    pub(crate) async fn attempt(&self, id: PostId, content: &Content) {
        // Nobody waits for nobody.
        let permit = self.timeline.as_ref().map(|_| self.attempts.try_acquire());
        if matches!(permit, Some(Err(_))) {
            return;
        }
        let delivered = timeout(ATTEMPT_MAX, self.deliver_together(vec![delivery(id, content)]));
        match delivered.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, "a post is left to the sweeper");
            }
            Err(_) => tracing::debug!("a delivery takes long and is left to the sweeper"),
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
            let deliveries: Vec<_> = found.collect();
            let delivered = match self.deliver_together(deliveries.clone()).await {
                Err(error) if !error.is_outage() => self.deliver_singly(deliveries).await,
                delivered => delivered,
            };
            let is_outage = delivered.as_ref().is_err_and(Error::is_outage);
            outcome = outcome.and(delivered);
            if is_outage {
                break;
            }
        }
        outcome
    }

    async fn deliver_singly(&self, deliveries: Vec<timeline::Delivery>) -> Result<(), Error> {
        let mut outcome = Ok(());
        for delivery in deliveries {
            let post = delivery.post_id;
            let delivered = self.deliver_together(vec![delivery]).await;
            if let Err(error) = &delivered {
                if error.is_outage() {
                    return delivered;
                }
                let error = error as &dyn std::error::Error;
                tracing::debug!(post, error, "a post cannot be delivered");
            }
            outcome = outcome.and(delivered);
        }
        outcome
    }

    async fn deliver_together(&self, deliveries: Vec<timeline::Delivery>) -> Result<(), Error> {
        if deliveries.is_empty() {
            return Ok(());
        }
        let delivered = deliveries.iter().filter_map(|delivery| PostId::new(delivery.post_id));
        let delivered: Vec<_> = delivered.collect();
        if let Some(timeline) = &self.timeline {
            // Who posts may not tell timelines of posts: we do, of what we wrote down.
            let call = timeline.deliver(timeline::DeliverRequest { deliveries });
            let answer = timeout(CALL_MAX, context::as_system(call));
            let late = |_| Err(Status::deadline_exceeded("no answer in time"));
            answer.await.unwrap_or_else(late).map_err(Error::Timeline)?;
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
