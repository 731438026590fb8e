//! Pages of comments, reposts and likers: filled again if entries are hidden, and complete to the
//! end.

use microblog_proto::user;
use microblog_testkit::Topology;

use crate::{
    actions::{comment_texts, post_texts},
    system::{Flags, Jobs, Member, PASSWORD, System, ids},
};

/// Commenters of a post: one visible to the viewer, and four hidden.
struct Crowd {
    viewer: Member,
    shown: Member,
    hidden: [Member; 4],
    post_id: u64,
}

impl Crowd {
    /// Creates the accounts. The relation and post services are not notified of the deleted one.
    async fn create(system: &System) -> Self {
        let viewer = system.join("viewer").await;
        let [muted, blocked] = [system.join("muted").await, system.join("blocked").await];
        let [blocker, deleted] = [system.join("blocker").await, system.join("deleted").await];
        let host = system.join("host").await;
        let post_id = system.publish(&host, "say something").await.id;
        let shown = system.join("shown").await;
        Self { viewer, shown, hidden: [muted, blocked, blocker, deleted], post_id }
    }

    /// Hides the four from the viewer, after they have written.
    async fn hide(&self, system: &System) {
        let [muted, blocked, blocker, deleted] = &self.hidden;
        system.mute(&self.viewer, muted).await;
        system.block(&self.viewer, blocked).await;
        system.block(blocker, &self.viewer).await;
        delete_account_only(system, deleted).await;
    }
}

async fn delete_account_only(system: &System, user: &Member) {
    let request = user::DeleteUserRequest { user_id: user.id, password: PASSWORD.to_owned() };
    system.user().delete_user(request).await.unwrap();
}

async fn without_jobs() -> System {
    System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await
}

#[tokio::test]
async fn hidden_comments_leave_no_gaps() {
    let system = without_jobs().await;
    let crowd = Crowd::create(&system).await;
    let mut expected = Vec::new();
    for (round, hidden) in crowd.hidden.iter().enumerate() {
        system.comment(hidden, crowd.post_id, &format!("unseen {round}")).await;
        for part in 0..3 {
            let text = format!("seen {round} {part}");
            system.comment(&crowd.shown, crowd.post_id, &text).await;
            expected.push(text);
        }
    }
    crowd.hide(&system).await;

    let mut token = String::new();
    for expected in [&expected[..5], &expected[5..10], &expected[10..]] {
        let page = system.comments(Some(&crowd.viewer), crowd.post_id, 5, &token).await;
        assert_eq!(comment_texts(&page), expected);
        token = page.next_page_token;
    }
    assert_eq!(token, "");
    // Other viewers see all, except those of the deleted account.
    let all = system.comments(None, crowd.post_id, 100, "").await;
    assert_eq!((all.comments.len(), all.next_page_token.as_str()), (15, ""));
    let left = system.comments(Some(&crowd.hidden[0]), crowd.post_id, 100, "").await;
    assert_eq!(left.comments.len(), 15);
}

#[tokio::test]
async fn hidden_reposts_leave_no_gaps() {
    let system = without_jobs().await;
    let crowd = Crowd::create(&system).await;
    let mut expected = Vec::new();
    for (round, hidden) in crowd.hidden.iter().enumerate() {
        system.repost(hidden, crowd.post_id, &format!("unseen {round}")).await;
        let text = format!("seen {round}");
        system.repost(&crowd.shown, crowd.post_id, &text).await;
        expected.push(text);
    }
    expected.reverse();
    crowd.hide(&system).await;

    let first = system.reposts(Some(&crowd.viewer), crowd.post_id, 3, "").await;
    assert_eq!(post_texts(&first), expected[..3]);
    let token = first.next_page_token;
    let second = system.reposts(Some(&crowd.viewer), crowd.post_id, 3, &token).await;
    assert_eq!((post_texts(&second), second.next_page_token.as_str()), (vec!["seen 0"], ""));
    let all = system.reposts(None, crowd.post_id, 100, "").await;
    assert_eq!(all.posts.len(), 7);
}

#[tokio::test]
async fn deleted_likers_leave_no_gaps() {
    let system = without_jobs().await;
    let host = system.join("host").await;
    let post_id = system.publish(&host, "like me").await.id;
    let mut fans = Vec::new();
    for i in 0..12 {
        let fan = system.join(&format!("fan{i}")).await;
        system.like(&fan, post_id).await;
        fans.push(fan);
    }
    let (mut left, mut expected) = (Vec::new(), Vec::new());
    for (i, fan) in fans.into_iter().enumerate().rev() {
        if i % 4 == 2 {
            left.push(fan);
        } else {
            expected.push(fan.id);
        }
    }
    for fan in &left {
        delete_account_only(&system, fan).await;
    }
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let page = system.likers(Some(&host), post_id, 4, &token).await;
        seen.extend(ids(&page.users));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
        assert_eq!(page.users.len(), 4, "a page is short only at the end");
    }
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_long_run_of_hidden_entries_ends_the_page_but_not_the_list() {
    let system = without_jobs().await;
    let crowd = Crowd::create(&system).await;
    let muted = &crowd.hidden[0];
    for i in 0..24 {
        system.comment(muted, crowd.post_id, &format!("unseen {i}")).await;
    }
    system.comment(&crowd.shown, crowd.post_id, "at last").await;
    system.mute(&crowd.viewer, muted).await;

    let mut seen = Vec::new();
    let mut pages = 0;
    let mut token = String::new();
    loop {
        let page = system.comments(Some(&crowd.viewer), crowd.post_id, 2, &token).await;
        seen.extend(comment_texts(&page).into_iter().map(str::to_owned));
        token = page.next_page_token;
        pages += 1;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ["at last"]);
    assert!((2..=4).contains(&pages), "five rounds of two a page: {pages}");
}

#[tokio::test]
async fn a_new_post_has_empty_lists() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "unknown listens").await.id;
    for viewer in [Some(&ann), None] {
        let comments = system.comments(viewer, post_id, 0, "").await;
        let reposts = system.reposts(viewer, post_id, 0, "").await;
        let likers = system.likers(viewer, post_id, 0, "").await;
        assert!(comments.comments.is_empty() && comments.next_page_token.is_empty());
        assert!(reposts.posts.is_empty() && reposts.next_page_token.is_empty());
        assert!(likers.users.is_empty() && likers.next_page_token.is_empty());
    }
}
