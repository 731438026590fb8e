//! Processes that are killed (SIGKILL) at any moment: each change is applied once, and what was marked as seen
//! stays so.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use microblog_proto::notice::{self as pb, NoticeKind};
use microblog_testkit::eventually;
use tokio::time::sleep;

use crate::support::{PATIENCE, id, processes::Processes};

/// More than a notice has acts: what is applied twice is counted twice.
const LIKES: u64 = 60;
const POSTS: u64 = 12;

/// The time after a fault in which a read may answer what it answered before.
const STALE: Duration = Duration::from_secs(15);

#[tokio::test]
async fn each_change_is_applied_once() {
    let mut processes = Processes::start(3).await;
    let ann = id(1);
    let mut posts = Vec::new();
    for n in 0..POSTS {
        posts.push(processes.system.publish(ann, &n.to_string()).await);
    }
    let acting = {
        let followed = processes.system.followed.post.clone();
        let likes: Vec<_> = (0..LIKES)
            .flat_map(|n| posts.iter().map(move |&post_id| (id(10 + n), post_id)))
            .collect();
        tokio::spawn(async move {
            let like = |(user_id, post_id)| {
                let mut client = followed.clone();
                async move {
                    let request = microblog_proto::post::LikeRequest { user_id, post_id };
                    client.like(request).await.unwrap();
                    sleep(Duration::from_millis(20)).await;
                }
            };
            stream::iter(likes).for_each_concurrent(4, like).await;
        })
    };
    let mut round = 0;
    while !acting.is_finished() || round < 6 {
        sleep(Duration::from_millis(150 + round as u64 * 37 % 400)).await;
        processes.replace(round % 3).await;
        round += 1;
    }
    acting.await.unwrap();
    processes.system.settle(&[ann]).await;
    let notices = processes.system.notices(ann).await;
    assert_eq!(notices.len() as u64, POSTS);
    for notice in &notices {
        let counted = notice.acts.len() as u64 + notice.earlier;
        assert_eq!((notice.kind(), counted), (NoticeKind::Like, LIKES), "{}", notice.post_id);
    }
    processes.system.verifies().await;
}

/// A page of a feed is several transactions: the next process begins behind the last one.
#[tokio::test]
async fn a_page_that_was_applied_in_part_is_continued() {
    const LIKES: u64 = 3_000;
    const SLOW: &str = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
        $$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$; \
        CREATE TRIGGER slow BEFORE UPDATE ON positions FOR EACH ROW EXECUTE FUNCTION slow()";
    let mut processes = Processes::start(1).await;
    let ann = id(1);
    let post = processes.system.publish(ann, "post").await;
    processes.system.settle(&[ann]).await;
    processes.kill(0).await;
    let likes = stream::iter(0..LIKES);
    likes.for_each_concurrent(16, |n| processes.system.like(id(10 + n), post)).await;
    processes.system.execute(SLOW).await;
    let mut in_parts = 0;
    for _ in 0..4 {
        let before = processes.progress().await;
        processes.replace(0).await;
        eventually("a part is applied", PATIENCE, async || processes.progress().await != before)
            .await;
        processes.kill(0).await;
        let [sequence, applied] = processes.progress().await;
        in_parts += usize::from(sequence == before[0] && applied > before[1]);
    }
    assert!(in_parts > 0, "none was killed within a page");
    processes.system.execute("DROP TRIGGER slow ON positions").await;
    processes.replace(0).await;
    let counted = async || {
        let notices = processes.system.notices(ann).await;
        let likes = notices.iter().find(|notice| notice.post_id == post);
        likes.map_or(0, |notice| notice.acts.len() as u64 + notice.earlier)
    };
    eventually("all are applied", PATIENCE, async || counted().await >= LIKES).await;
    processes.system.settle(&[ann]).await;
    assert_eq!(counted().await, LIKES);
}

#[tokio::test]
async fn what_was_marked_as_seen_stays_so() {
    let mut processes = Processes::start(2).await;
    let [ann, bob] = [1, 2].map(id);
    for round in 0..4 {
        let post = processes.system.publish(ann, "post").await;
        processes.system.like(bob, post).await;
        processes.system.settle(&[ann]).await;
        let page = processes.system.page(ann, &[], true).await;
        assert_eq!(page.notices.len(), 1, "round {round}");
        let request = pb::MarkSeenRequest { user_id: ann, token: page.seen_token };
        let (mut client, marked) = (processes.client(round), request.clone());
        let call = tokio::spawn(async move { client.mark_seen(marked).await.is_ok() });
        processes.replace(round % 2).await;
        if !call.await.unwrap() {
            // A call whose outcome is not known may be repeated.
            processes.client(round + 1).mark_seen(request).await.unwrap();
        }
        for n in 0..2 {
            let mut client = processes.client(n);
            eventually("every process has it", STALE, async || {
                let request =
                    pb::ListNoticesRequest { user_id: ann, unseen: true, ..Default::default() };
                client.list_notices(request).await.unwrap().into_inner().notices.is_empty()
            })
            .await;
        }
    }
}
