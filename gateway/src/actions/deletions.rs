//! Deletion of an account's data in the other services, and the job that finishes interrupted
//! deletions. The user service stores which deletions are pending, so every gateway can finish
//! them.

use std::time::Duration;

use microblog_chassis::{context, run_periodically};
use microblog_proto::{post, relation, timeline, user};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use crate::state::Peers;

/// The period of the job. It begins at a random time, so that gateways do not run in step.
const PERIOD: Duration = Duration::from_secs(2);
/// The timeout of one deletion, and of the list of deletions: a service that hangs must not block
/// the job.
const STEP_MAX: Duration = Duration::from_secs(5);
/// How many deletions one round finishes.
const BATCH: i32 = 200;

/// Deletes an account's data in the other services, then confirms the deletion. 4 calls:
/// relation.ForgetUser ∥ post.ForgetUser ∥ timeline.ForgetUser, then user.ConfirmDeletion.
/// Idempotent. Runs with the system's identity, since the user's no longer exists.
pub(crate) async fn finish(peers: &Peers, user_id: u64) -> Result<(), Status> {
    context::as_system(forget(peers, user_id)).await
}

async fn forget(peers: &Peers, user_id: u64) -> Result<(), Status> {
    let (relation, post, timeline) = (peers.relation(), peers.post(), peers.timeline());
    // An unavailable service does not keep the others from deleting.
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

/// Periodically finishes interrupted deletions.
pub(crate) async fn run_job(peers: Peers) {
    sleep(PERIOD.mul_f64(rand::random())).await;
    run_periodically("finishing account deletions", PERIOD, async move || finish_all(&peers).await)
        .await;
}

/// Finishes the pending deletions, and returns the first failure. A failed deletion does not keep
/// the others from being finished, unless a service is unavailable: then all would fail.
async fn finish_all(peers: &Peers) -> Result<(), Status> {
    let list = user::ListDeletionsRequest { page_size: BATCH };
    let pending = with_timeout(peers.user().list_deletions(list)).await?.into_inner().user_ids;
    let mut outcome = Ok(());
    for user_id in pending {
        let finished = with_timeout(finish(peers, user_id)).await;
        let is_unavailable =
            |status: &Status| matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
        if finished.as_ref().is_err_and(is_unavailable) {
            return finished;
        }
        outcome = outcome.and(finished);
    }
    outcome
}

async fn with_timeout<T>(step: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let elapsed = |_| Status::deadline_exceeded("a step took too long");
    timeout(STEP_MAX, step).await.map_err(elapsed)?
}
