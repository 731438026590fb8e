//! Which notices are marked as seen.

use microblog_proto::notice::{self as pb, NoticeKind};
use microblog_testkit::Topology;

use crate::support::{System, id};

impl System {
    pub(crate) async fn mark_seen(&self, user_id: u64, token: &str) {
        let request = pb::MarkSeenRequest { user_id, token: token.to_owned() };
        self.client.clone().mark_seen(request).await.unwrap();
    }

    async fn unseen(&self, user_id: u64) -> Vec<NoticeKind> {
        let page = self.page(user_id, &[], true).await;
        page.notices.iter().map(pb::Notice::kind).collect()
    }
}

#[tokio::test]
async fn notices_are_seen_up_to_a_token_of_their_kind() {
    let system = System::start(Topology::Cluster).await;
    let [ann, bob, cleo] = [1, 2, 3].map(id);
    let post = system.publish(ann, "post").await;
    system.like(bob, post).await;
    let comment = system.comment(bob, post, 0, "hi").await;
    system.settle(&[ann]).await;
    assert_eq!(system.unseen(ann).await, [NoticeKind::Comment, NoticeKind::Like]);
    let before = system.page(ann, &[], false).await.seen_token;
    let of_likes = system.page(ann, &[NoticeKind::Like], false).await;
    assert_eq!(of_likes.notices.len(), 1);
    system.mark_seen(ann, &of_likes.seen_token).await;
    assert_eq!(system.unseen(ann).await, [NoticeKind::Comment]);
    // A further like is new, although the notice was seen.
    system.like(cleo, post).await;
    system.settle(&[ann]).await;
    assert_eq!(system.unseen(ann).await, [NoticeKind::Like, NoticeKind::Comment]);
    system.mark_seen(ann, &before).await;
    assert_eq!(system.unseen(ann).await, [NoticeKind::Like]);
    system.unlike(cleo, post).await;
    system.settle(&[ann]).await;
    assert_eq!(system.unseen(ann).await, [], "what is left was seen");
    // An earlier token changes nothing.
    system.mark_seen(ann, &of_likes.seen_token).await;
    assert_eq!(system.unseen(ann).await, []);
    assert_eq!(system.notices(ann).await.len(), 2, "{comment}");
    // So does one of an account without notices.
    let empty = system.page(id(77), &[], false).await.seen_token;
    system.mark_seen(id(77), &empty).await;
    assert_eq!(system.unseen(id(77)).await, []);
}
