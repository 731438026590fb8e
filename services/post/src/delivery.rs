//! How the timeline service hears of posts. It may be away: then they stay in the outbox, and the
//! [sweeper](crate::Sweeper) delivers them later.

use std::time::Duration;

use microblog_chassis::Peer;
use microblog_domain::PostId;
use microblog_proto::timeline::{self, timeline_service_client::TimelineServiceClient};
use tokio::time::timeout;
use tonic::Status;

use crate::{error::Error, post::Content, store::Store};

/// The most posts that one call delivers.
const BATCH_MAX: usize = 500;

/// How long a caller who publishes waits for the delivery. After that the sweeper sees to it.
const ATTEMPT_MAX: Duration = Duration::from_secs(1);

/// For one call of the sweeper's: a peer that hangs must not stop it for ever.
const CALL_MAX: Duration = Duration::from_secs(5);

/// Delivers posts, and strikes them out of the outbox.
#[derive(Clone)]
pub struct Delivery {
    store: Store,
    timeline: Option<TimelineServiceClient<Peer>>,
}

impl Delivery {
    /// Returns the means to deliver to a timeline service. Without one, posts count as delivered.
    pub fn new(store: Store, timeline: Option<Peer>) -> Self {
        Self { store, timeline: timeline.map(TimelineServiceClient::new) }
    }

    /// Delivers a new post if it can be done at once.
    pub(crate) async fn attempt(&self, id: PostId, content: &Content) {
        let post = [(id, content.clone())];
        match timeout(ATTEMPT_MAX, self.deliver(&post)).await {
            Ok(Ok(())) => {}
            // The sweeper tells when it cannot deliver, once.
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, "a post is left to the sweeper");
            }
            Err(_) => tracing::debug!("a delivery takes long and is left to the sweeper"),
        }
    }

    /// Delivers posts, any number of them. May be repeated.
    pub async fn deliver(&self, posts: &[(PostId, Content)]) -> Result<(), Error> {
        for posts in posts.chunks(BATCH_MAX) {
            if let Some(timeline) = &self.timeline {
                let deliveries = posts.iter().map(|(id, content)| delivery(*id, content)).collect();
                let request = timeline::DeliverRequest { deliveries };
                let mut timeline = timeline.clone();
                let late = |_| Err(Status::deadline_exceeded("no answer in time"));
                let delivered = timeout(CALL_MAX, timeline.deliver(request)).await;
                delivered.unwrap_or_else(late).map_err(Error::Timeline)?;
            }
            let ids: Vec<_> = posts.iter().map(|(id, _)| *id).collect();
            self.store.delivered(&ids).await?;
        }
        Ok(())
    }
}

fn delivery(id: PostId, content: &Content) -> timeline::Delivery {
    let (post_id, author_id) = (id.get(), content.author.get());
    let root_id = content.origin.map_or(0, |origin| origin.root.get());
    timeline::Delivery { post_id, author_id, root_id }
}
