//! Deletions of accounts, carried to the services that must forget them. The user service keeps
//! what is left to do, so any gateway can go on where another one died.

use std::time::Duration;

use microblog_chassis::context;
use microblog_proto::{post, relation, timeline, user};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use crate::Peers;

/// Between two looks at what is left to do. Each gateway waits between a half more and a half less,
/// so that many do not look all at once.
const PAUSE: Duration = Duration::from_secs(2);
/// For one deletion, or for the list of them: a peer that hangs must not stop the relay for ever.
const STEP_MAX: Duration = Duration::from_secs(5);
/// How many are looked at in one go.
const BATCH: i32 = 200;

/// Makes the other services forget a deleted account, then takes it off the list of what is left
/// to do. Four calls: relation.ForgetUser ∥ post.ForgetUser ∥ timeline.ForgetUser, then
/// user.ConfirmDeletion. Repeating it changes nothing. The system does it, not the user: there is
/// none any more.
pub(crate) async fn finish(peers: &Peers, user_id: u64) -> Result<(), Status> {
    context::as_system(forget(peers, user_id)).await
}

async fn forget(peers: &Peers, user_id: u64) -> Result<(), Status> {
    let (relation, post, timeline) = (peers.relation(), peers.post(), peers.timeline());
    // All to their end: one that is away does not keep the others from forgetting.
    let (follows, posts, timelines) = tokio::join!(
        relation.forget_user(relation::ForgetUserRequest { user_id }),
        post.forget_user(post::ForgetUserRequest { user_id }),
        timeline.forget_user(timeline::ForgetUserRequest { user_id }),
    );
    follows?;
    posts?;
    timelines?;
    peers.user().confirm_deletion(user::ConfirmDeletionRequest { user_id }).await?;
    Ok(())
}

/// Finishes, for ever, the deletions that somebody began and could not finish. Logs an outage of a
/// peer once when it begins and once when it is over.
pub(crate) async fn relay(peers: Peers) {
    let mut failing = false;
    loop {
        sleep(PAUSE.mul_f64(rand::random_range(0.5..1.5))).await;
        match finish_all(&peers).await {
            Ok(()) if failing => {
                tracing::info!("account deletions are finished again");
                failing = false;
            }
            Err(status) if !failing => {
                let (code, message) = (status.code(), status.message());
                tracing::warn!(?code, message, "account deletions cannot be finished for now");
                failing = true;
            }
            _ => {}
        }
    }
}

/// Goes once through what is left to do. One deletion that fails does not keep the others from
/// being finished, unless a service is away: then all would. The first failure is returned.
async fn finish_all(peers: &Peers) -> Result<(), Status> {
    let list = user::ListDeletionsRequest { page_size: BATCH };
    let left = in_time(peers.user().list_deletions(list)).await?.into_inner().user_ids;
    let mut outcome = Ok(());
    for user_id in left {
        let finished = in_time(finish(peers, user_id)).await;
        let is_away =
            |status: &Status| matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
        if finished.as_ref().is_err_and(is_away) {
            return finished;
        }
        outcome = outcome.and(finished);
    }
    outcome
}

async fn in_time<T>(step: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded("a step took too long");
    timeout(STEP_MAX, step).await.map_err(late)?
}
