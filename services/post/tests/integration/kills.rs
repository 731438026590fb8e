//! Processes that are killed (SIGKILL) at any moment: what was acknowledged stays, a call whose outcome is
//! not known may be repeated, and all is delivered.

use std::time::{Duration, Instant};

use futures::future::join_all;
use microblog_proto::post as pb;
use microblog_testkit::eventually;

use crate::support::{Client, PATIENCE, id, numbers, processes::Processes, request_id, settles};

/// The time after a fault in which a read may answer what it answered before.
const STALE: Duration = Duration::from_secs(15);

/// Requests to publish, like and comment, which may be repeated.
#[derive(Clone, Debug)]
enum Act {
    Publish(pb::CreatePostRequest),
    Repost(pb::RepostRequest),
    Like(pb::LikeRequest),
    Comment(pb::AddCommentRequest),
}

impl Act {
    fn new(n: u64, root: u64) -> Self {
        let (author_id, request_id, text) = (id(10 + n), request_id(), format!("text {n}"));
        match n % 4 {
            0 => Self::Publish(pb::CreatePostRequest { author_id, request_id, text }),
            1 => Self::Repost(pb::RepostRequest { author_id, request_id, post_id: root, text }),
            2 => Self::Like(pb::LikeRequest { user_id: author_id, post_id: root }),
            _ => Self::Comment(pb::AddCommentRequest {
                author_id,
                request_id,
                post_id: root,
                text,
                in_reply_to_id: 0,
            }),
        }
    }

    /// Returns the id of what it has made: of a like, the account.
    async fn call(self, mut client: Client) -> Result<u64, tonic::Status> {
        Ok(match self {
            Self::Publish(request) => {
                client.create_post(request).await?.into_inner().post.unwrap().id
            }
            Self::Repost(request) => client.repost(request).await?.into_inner().post.unwrap().id,
            Self::Like(request) => client.like(request).await?.into_inner().like.unwrap().user_id,
            Self::Comment(request) => {
                client.add_comment(request).await?.into_inner().comment.unwrap().id
            }
        })
    }
}

/// A call to publish that nobody repeats: the author, and the post, if it was answered.
type Unrepeated = (u64, Option<u64>);

/// Checks that posts stay and are delivered although nobody repeats their calls: those that were acknowledged, and
/// those of which the process was killed after it had committed them.
async fn are_delivered_without_repetition(processes: &Processes, calls: &[Unrepeated]) {
    let authors: Vec<_> = calls.iter().map(|(author, _)| author.to_string()).collect();
    let sql = format!("SELECT id FROM texts WHERE author IN ({})", authors.join(", "));
    let stored = numbers(&processes.database, &sql).await.into_iter().map(i64::cast_unsigned);
    let stored: Vec<u64> = stored.collect();
    for acknowledged in calls.iter().filter_map(|(_, post)| *post) {
        assert!(stored.contains(&acknowledged), "{acknowledged} is lost");
    }
    for post in stored {
        assert!(processes.timelines.times(post) > 0, "{post} is not delivered");
    }
}

/// Makes calls, kills a process after some time, and repeats the calls, but for each third post. Returns the posts
/// that were made, and adds the calls that were not repeated.
async fn kill_and_repeat(
    processes: &mut Processes,
    acts: Vec<Act>,
    killed: usize,
    after: Duration,
    unrepeated: &mut Vec<Unrepeated>,
) -> Vec<u64> {
    // The kinds of acts take turns, and so do the processes of each kind.
    let calls = acts.iter().enumerate().map(|(n, act)| {
        let (client, act) = (processes.client(n / 4), act.clone());
        tokio::spawn(async move { act.call(client).await })
    });
    let calls: Vec<_> = calls.collect();
    tokio::time::sleep(after).await;
    processes.running[killed].0.kill9();
    let answers = join_all(calls).await.into_iter().map(Result::unwrap);
    let all = acts.into_iter().zip(answers).enumerate();
    let (once, twice): (Vec<_>, Vec<_>) = all.partition(|(n, _)| n.is_multiple_of(12));
    for (_, (act, answer)) in once {
        let Act::Publish(request) = act else { panic!("{act:?}") };
        unrepeated.push((request.author_id, answer.ok()));
    }
    processes.replace(killed).await;
    let repeated = twice.iter().map(|(n, (act, _))| act.clone().call(processes.client(n / 4 + 1)));
    let mut posts = Vec::new();
    for ((_, (act, answer)), again) in twice.iter().zip(join_all(repeated).await) {
        let again = again.unwrap();
        if let Ok(first) = answer {
            assert_eq!(*first, again, "{act:?}");
        }
        if let Act::Publish(_) | Act::Repost(_) = act {
            posts.push(again);
        }
    }
    posts
}

#[tokio::test]
async fn acknowledged_changes_stay_and_requests_may_be_repeated() {
    const CALLS: u64 = 120;
    let mut processes = Processes::start(4).await;
    let create = pb::CreatePostRequest {
        author_id: id(1),
        request_id: request_id(),
        text: "root".to_owned(),
    };
    let root = Act::Publish(create).call(processes.client(0)).await.unwrap();
    let (mut delivered, mut unrepeated) = (vec![root], Vec::new());
    for round in 0..6 {
        let acts = (0..CALLS).map(|n| Act::new(round * CALLS + n, root)).collect();
        let (killed, after) = (round as usize % 4, Duration::from_millis(round * 7));
        let posts = kill_and_repeat(&mut processes, acts, killed, after, &mut unrepeated).await;
        delivered.extend(posts);
    }
    let each = (CALLS * 6 / 4) as usize;
    let fault_ended = Instant::now();
    for n in 0..4 {
        let mut client = processes.client(n);
        eventually("every process has the counts", STALE, async || {
            let request = pb::GetPostRequest { post_id: root, viewer_id: 0 };
            let post = client.get_post(request).await.unwrap().into_inner().post.unwrap();
            [post.likes, post.comments, post.reposts] == [each as u64; 3]
        })
        .await;
    }
    assert!(fault_ended.elapsed() < STALE);
    settles(&processes.client(0)).await;
    eventually("all are delivered", PATIENCE, async || {
        delivered.iter().all(|post| processes.timelines.times(*post) > 0)
    })
    .await;
    are_delivered_without_repetition(&processes, &unrepeated).await;
}

#[tokio::test]
async fn a_deletion_goes_on_though_processes_are_killed() {
    let mut processes = Processes::start(2).await;
    let publish = |author_id, n: u64| {
        let (request_id, text) = (request_id(), format!("text {n}"));
        Act::Publish(pb::CreatePostRequest { author_id, request_id, text })
    };
    let calls = (0..600).map(|n| publish(id(1), n).call(processes.client(n as usize)));
    let own: Vec<u64> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
    let theirs = publish(id(2), 0).call(processes.client(0)).await.unwrap();
    for &post_id in &own[..50] {
        let like = pb::LikeRequest { user_id: id(2), post_id };
        processes.client(0).like(like).await.unwrap();
    }
    let like = pb::LikeRequest { user_id: id(1), post_id: theirs };
    processes.client(0).like(like).await.unwrap();
    let forget = pb::ForgetUserRequest { user_id: id(1) };
    processes.client(0).forget_user(forget).await.unwrap();
    for n in 0..4 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        processes.replace(n % 2).await;
    }
    settles(&processes.client(0)).await;
    let request = pb::BatchGetPostCountsRequest { user_ids: vec![id(1), id(2)] };
    let counts = processes.client(1).batch_get_post_counts(request).await.unwrap().into_inner();
    let counts: Vec<_> = counts.counts.iter().map(|count| count.posts).collect();
    assert_eq!(counts, [0, 1]);
}
