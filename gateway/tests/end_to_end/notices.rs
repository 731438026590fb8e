//! Notices: who gets them, what hides them, and what is unread.

use std::{collections::BTreeMap, time::Duration};

use microblog_chassis::{Peer, Worker, status};
use microblog_proto::{
    common::ErrorReason,
    gateway::{
        self, ViewNoticesResponse, ViewedNotice, WatchNoticesResponse,
        gateway_service_client::GatewayServiceClient,
    },
    notice::NoticeKind::{self, Comment, Follow, Like, Mention, Mutual, Reply, Repost},
};
use microblog_testkit::{PATIENCE, at_daytime, eventually};
use tokio::time::{sleep, timeout};
use tonic::{Code, Response, Streaming};

use crate::{
    actions::request_id,
    errors::{Expected, TOKEN_INVALID, TOKEN_MISSING, assert_error, invalid},
    long_texts::{EMOJI, long},
    system::{
        Member, PASSWORD, System, by_id, configured, email, gateway_service, names, with_token,
    },
    timeline_actions::{post_ids, texts},
};

pub(crate) const fn token_error(
    reason: ErrorReason,
    field: &'static [&'static str],
) -> Expected<'static> {
    (Code::InvalidArgument, reason, field)
}

/// Starts a system whose notice service follows the change feeds: it begins at their ends.
async fn followed() -> System {
    at_daytime().await;
    let system = System::of_services().await;
    let [yann, zoe] = [system.join("yann").await, system.join("zoe").await];
    eventually("the feeds are followed", PATIENCE * 3, async || {
        // The services may not be ready yet.
        let user = by_id(zoe.id);
        let unfollow = gateway::UnfollowRequest { user: user.clone() };
        let _ = system.gateway().unfollow(yann.request(unfollow)).await;
        let follow = yann.request(gateway::FollowRequest { user });
        let _ = system.gateway().follow(follow).await;
        let (request_id, text) = (request_id(), "hello @zoe".to_owned());
        let publish = yann.request(gateway::PublishRequest { request_id, text });
        let _ = system.gateway().publish(publish).await;
        sleep(Duration::from_millis(200)).await;
        // Asked for by kind: many mentions would fill the page before the follow.
        for kind in [Follow, Mention] {
            let kinds = vec![kind.into()];
            let request = gateway::ViewNoticesRequest { kinds, ..Default::default() };
            match system.gateway().view_notices(zoe.request(request)).await {
                Ok(notices) if !notices.get_ref().notices.is_empty() => {}
                _ => return false,
            }
        }
        true
    })
    .await;
    system
}

/// Ann, and Bob, by whom she has unread notices: of posts, of a comment, and without either.
pub(crate) async fn with_notices() -> (System, [Member; 2]) {
    let system = followed().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let post = system.publish(&ann, "hello").await.id;
    system.follow(&bob, &ann).await;
    system.publish(&bob, "hello @ann").await;
    system.comment(&bob, post, "nice").await;
    system.like(&bob, post).await;
    system.until_unread(&ann, [(Follow, 1), (Mention, 1), (Comment, 1), (Like, 1)]).await;
    (system, [ann, bob])
}

/// What a notice shows: its kind, accounts, count, post and comment.
type Shown = (NoticeKind, Vec<String>, u64, u64, u64);

fn shown(notice: &ViewedNotice) -> Shown {
    let names = names(&notice.actors).into_iter().map(str::to_owned).collect();
    let post = notice.post.as_ref().and_then(|viewed| viewed.post.as_ref());
    let comment = notice.comment.as_ref().and_then(|viewed| viewed.comment.as_ref());
    let ids = (post.map_or(0, |post| post.id), comment.map_or(0, |comment| comment.id));
    (notice.kind(), names, notice.count, ids.0, ids.1)
}

fn all_shown(notices: &[ViewedNotice]) -> Vec<Shown> {
    let mut shown: Vec<Shown> = notices.iter().map(shown).collect();
    // Notices with causes in different services have no particular order.
    shown.sort_unstable();
    shown
}

type Counts = BTreeMap<i32, u32>;

fn counts_of<const N: usize>(counts: [(NoticeKind, u32); N]) -> Counts {
    counts.map(|(kind, count)| (kind.into(), count)).into()
}

impl System {
    async fn notices_page(
        &self,
        viewer: &Member,
        kinds: &[NoticeKind],
        page_size: i32,
        page_token: &str,
    ) -> ViewNoticesResponse {
        let kinds = kinds.iter().map(|&kind| kind.into()).collect();
        let page_token = page_token.to_owned();
        let request = gateway::ViewNoticesRequest { kinds, page_size, page_token };
        self.gateway().view_notices(viewer.request(request)).await.unwrap().into_inner()
    }

    /// Returns the first page of notices of some kinds.
    pub(crate) async fn notices(
        &self,
        viewer: &Member,
        kinds: &[NoticeKind],
    ) -> ViewNoticesResponse {
        self.notices_page(viewer, kinds, 200, "").await
    }

    /// Waits until an account sees these notices, and no others, in any order.
    async fn until_notices<const N: usize>(&self, viewer: &Member, mut expected: [Shown; N]) {
        expected.sort_unstable();
        let mut found = all_shown(&self.notices(viewer, &[]).await.notices);
        let arrival = async {
            while found != expected {
                sleep(Duration::from_millis(20)).await;
                found = all_shown(&self.notices(viewer, &[]).await.notices);
            }
        };
        if timeout(PATIENCE, arrival).await.is_err() {
            assert_eq!(found, expected);
        }
    }

    pub(crate) async fn unread(&self, viewer: &Member) -> Counts {
        let request = gateway::CountUnreadRequest::default();
        let response = self.gateway().count_unread(viewer.request(request)).await.unwrap();
        let counts = response.into_inner().counts;
        assert!(counts.is_sorted_by_key(|count| count.kind), "{counts:?}");
        counts.into_iter().map(|count| (count.kind, count.count)).collect()
    }

    /// Waits until an account has these unread notices, none of which is marked as seen: ViewNotices
    /// shows as many.
    async fn until_unread<const N: usize>(
        &self,
        viewer: &Member,
        expected: [(NoticeKind, u32); N],
    ) {
        let expected = counts_of(expected);
        eventually("as many notices are unread as are shown", PATIENCE, async || {
            let mut shown = Counts::new();
            for notice in self.notices(viewer, &[]).await.notices {
                *shown.entry(notice.kind).or_default() += 1;
            }
            shown == expected && self.unread(viewer).await == expected
        })
        .await;
    }

    async fn mark_seen(&self, viewer: &Member, token: &str) {
        let request = gateway::MarkSeenRequest { token: token.to_owned() };
        self.gateway().mark_seen(viewer.request(request)).await.unwrap();
    }

    async fn reply(&self, author: &Member, post_id: u64, to: u64, text: &str) -> u64 {
        let (request_id, text) = (request_id(), text.to_owned());
        let request = gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: to };
        let response = self.gateway().comment(author.request(request)).await.unwrap();
        response.into_inner().comment.unwrap().id
    }

    /// Creates posts of an author that mention Ann, and waits for her notices.
    pub(crate) async fn mention_ann(
        &self,
        author: &Member,
        ann: &Member,
        count: usize,
    ) -> Vec<u64> {
        let before = self.notices(ann, &[Mention]).await.notices.len();
        let texts = (0..count).map(|i| format!("{i} @ann")).collect();
        let ids = self.publish_many(author, texts).await;
        eventually("the mentions arrive", PATIENCE, async || {
            self.notices(ann, &[Mention]).await.notices.len() == before + count
        })
        .await;
        ids
    }

    pub(crate) async fn watch_notices(
        &self,
        viewer: &Member,
        since_token: &str,
    ) -> Streaming<WatchNoticesResponse> {
        let request = gateway::WatchNoticesRequest { since_token: since_token.to_owned() };
        self.gateway().watch_notices(viewer.request(request)).await.unwrap().into_inner()
    }
}

pub(crate) async fn next<T>(watch: &mut Streaming<T>) -> T {
    let message = timeout(PATIENCE, watch.message()).await.expect("a message");
    message.unwrap().expect("no end")
}

fn one(
    kind: NoticeKind,
    by: &[&str],
    post_id: impl Into<Option<u64>>,
    comment_id: impl Into<Option<u64>>,
) -> Shown {
    let names = by.iter().map(|&name| name.to_owned()).collect();
    let ids = (post_id.into().unwrap_or_default(), comment_id.into().unwrap_or_default());
    (kind, names, by.len() as u64, ids.0, ids.1)
}

#[tokio::test]
async fn each_kind_has_notices_for_the_account_that_it_concerns() {
    let system = followed().await;
    let [ann, bob, cleo] =
        [system.join("ann").await, system.join("bob").await, system.join("cleo").await];
    // What an account does to itself concerns nobody.
    let post = system.publish(&ann, "me, @ann").await.id;
    system.like(&ann, post).await;
    system.repost(&ann, post, "again, @ann").await;
    let own = system.comment(&ann, post, "hm, @ann").await.id;
    system.reply(&ann, post, own, "@ann!").await;

    system.follow(&bob, &ann).await;
    system.follow(&ann, &cleo).await;
    system.follow(&cleo, &ann).await;
    let mention = system.publish(&bob, "hello @ann").await.id;
    let comment = system.comment(&bob, post, "nice, @ann and @cleo").await.id;
    let reply = system.reply(&cleo, post, own, "yes").await;
    let answer = system.reply(&cleo, post, comment, "thanks").await;
    system.repost(&bob, post, "").await;
    system.like(&cleo, post).await;
    system.like(&bob, post).await;
    let others = system.publish(&cleo, "ask me").await.id;
    let aside = system.comment(&bob, others, "like @ann").await.id;

    let expected = [
        one(Follow, &["bob"], None, None),
        one(Mutual, &["cleo"], None, None),
        one(Mention, &["bob"], mention, None),
        one(Mention, &["bob"], others, aside),
        one(Comment, &["bob"], post, comment),
        one(Comment, &["cleo"], post, answer),
        one(Reply, &["cleo"], post, reply),
        one(Repost, &["bob"], post, None),
        one(Like, &["bob", "cleo"], post, None),
    ];
    system.until_notices(&ann, expected).await;
    system.until_notices(&bob, [one(Reply, &["cleo"], post, answer)]).await;
    let expected = [
        one(Follow, &["ann"], None, None),
        one(Mention, &["bob"], post, comment),
        one(Comment, &["bob"], others, aside),
    ];
    system.until_notices(&cleo, expected).await;

    // As other views show them.
    let notices = system.notices(&ann, &[Comment, Like]).await.notices;
    assert!(notices.iter().all(|notice| [Comment, Like].contains(&notice.kind())));
    let viewed = notices.iter().find(|notice| notice.comment.is_some()).unwrap();
    assert_eq!(viewed.post, Some(system.view(Some(&ann), post).await));
    let all = system.comments(Some(&ann), post, 200, "").await.comments;
    for notice in &notices {
        assert!(notice.comment.as_ref().is_none_or(|comment| all.contains(comment)));
        assert!(notice.since.is_some());
    }
    let likes = notices.iter().find(|notice| notice.kind() == Like).unwrap();
    let likers = system.likers(Some(&ann), post, 2, "").await.users;
    let without_times = likers.into_iter().map(|user| gateway::ListedUser { since: None, ..user });
    assert_eq!(likes.actors, without_times.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_like_that_ends_vanishes_and_is_not_new_when_it_is_repeated() {
    let system = followed().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let post = system.publish(&ann, "hello").await.id;
    system.like(&bob, post).await;
    system.until_unread(&ann, [(Like, 1)]).await;
    let token = system.notices(&ann, &[]).await.seen_token;
    system.mark_seen(&ann, &token).await;
    assert_eq!(system.unread(&ann).await, Counts::new());
    system.unlike(&bob, post).await;
    system.until_notices(&ann, []).await;
    system.like(&bob, post).await;
    system.until_notices(&ann, [one(Like, &["bob"], post, None)]).await;
    assert_eq!(system.unread(&ann).await, Counts::new());
}

#[tokio::test]
async fn as_many_notices_are_unread_as_are_shown() {
    let system = followed().await;
    let ann = system.join("ann").await;
    let post = system.publish(&ann, "hello").await.id;
    let (mut members, mut mentions, mut comments) = (Vec::new(), Vec::new(), Vec::new());
    for name in ["bob", "cleo", "dan", "eve"] {
        let member = system.join(name).await;
        system.follow(&member, &ann).await;
        mentions.push(system.publish(&member, "hello @ann").await.id);
        comments.push(system.comment(&member, post, "nice").await.id);
        system.repost(&member, post, "").await;
        system.like(&member, post).await;
        members.push(member);
    }
    let [bob, cleo, dan, eve] = &members[..] else { unreachable!() };
    let likers = async |expected: &[&str]| {
        let notices = system.notices(&ann, &[Like]).await.notices;
        assert_eq!(notices.len(), 1);
        (notices[0].count, names(&notices[0].actors) == expected)
    };
    let four = [(Follow, 1), (Mention, 4), (Comment, 4), (Repost, 1), (Like, 1)];
    system.until_unread(&ann, four).await;
    eventually("all have liked it", PATIENCE, async || {
        likers(&["eve", "dan", "cleo"]).await == (4, true)
    })
    .await;

    system.mute(&ann, bob).await;
    system.until_unread(&ann, four.map(|(kind, count)| (kind, count.min(3)))).await;
    assert_eq!(likers(&["eve", "dan", "cleo"]).await, (3, true));
    system.block(cleo, &ann).await;
    system.until_unread(&ann, four.map(|(kind, count)| (kind, count.min(2)))).await;
    assert_eq!(likers(&["eve", "dan"]).await, (2, true));

    system.unfollow(dan, &ann).await;
    eventually("only Eve follows", PATIENCE, async || {
        let notices = system.notices(&ann, &[Follow]).await.notices;
        notices.iter().map(shown).eq([one(Follow, &["eve"], None, None)])
    })
    .await;
    system.delete_post(dan, mentions[2]).await;
    let request = gateway::DeleteCommentRequest { post_id: post, comment_id: comments[2] };
    system.gateway().delete_comment(dan.request(request)).await.unwrap();
    let one_each = [(Follow, 1), (Mention, 1), (Comment, 1), (Repost, 1), (Like, 1)];
    system.until_unread(&ann, one_each).await;

    let request = gateway::DeleteAccountRequest { password: PASSWORD.to_owned() };
    system.gateway().delete_account(eve.request(request)).await.unwrap();
    system.until_unread(&ann, [(Repost, 1), (Like, 1)]).await;
    assert_eq!(likers(&["dan"]).await, (1, true));
    system.delete_post(&ann, post).await;
    system.until_unread(&ann, []).await;
}

#[tokio::test]
async fn all_comments_of_notices_are_read_in_one_call() {
    let system = followed().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let posts = [system.publish(&ann, "one").await.id, system.publish(&ann, "two").await.id];
    for i in 0..60 {
        system.comment(&bob, posts[i % 2], "nice").await;
    }
    eventually("the comments arrive", PATIENCE, async || {
        system.unread(&ann).await == counts_of([(Comment, 60)])
    })
    .await;
    let hydration = [
        "post.BatchGetComments",
        "post.BatchGetPosts",
        "relation.BatchGetRelations",
        "user.BatchGetUsers",
    ];
    let called = |what: &str, hydrations: usize, skeleton: &'static str| {
        let mut expected = [vec![skeleton], hydration.repeat(hydrations)].concat();
        expected.sort_unstable();
        assert_eq!(system.recorder.calls(), expected, "{what}");
    };
    system.recorder.calls();
    assert_eq!(system.unread(&ann).await, counts_of([(Comment, 60)]));
    called("a count reads 50 notices at once", 2, "notice.ListNotices");
    let page = system.notices_page(&ann, &[], 20, "").await;
    assert_eq!(page.notices.len(), 20);
    called("a page reads its notices at once", 1, "notice.ListNotices");
}

#[tokio::test]
async fn unread_notices_of_hidden_accounts_do_not_count_whichever_accounts_are_hidden() {
    let system = followed().await;
    let ann = system.join("ann").await;
    let post = system.publish(&ann, "hello").await.id;
    let mut fans = Vec::new();
    for i in 0..5 {
        let fan = system.join(&format!("fan{i}")).await;
        system.like(&fan, post).await;
        fans.push(fan);
    }
    let count = async || system.notices(&ann, &[]).await.notices.first().map_or(0, |it| it.count);
    eventually("the likes arrive", PATIENCE, async || count().await == 5).await;
    for (left, fan) in fans.iter().rev().enumerate() {
        assert_eq!(count().await, 5 - left as u64);
        assert_eq!(system.unread(&ann).await, counts_of([(Like, 1)]));
        system.mute(&ann, fan).await;
    }
    system.until_unread(&ann, []).await;
}

#[tokio::test]
async fn marking_some_kinds_as_seen_leaves_the_others_unread_in_every_session() {
    let system = followed().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let login = gateway::LoginRequest { login: email("ann"), password: PASSWORD.to_owned() };
    let session = system.gateway().login(login).await.unwrap().into_inner();
    let elsewhere = Member { id: ann.id, token: session.token };
    let post = system.publish(&ann, "hello").await.id;
    system.follow(&bob, &ann).await;
    system.comment(&bob, post, "nice").await;
    system.like(&bob, post).await;
    let all = [(Follow, 1), (Comment, 1), (Like, 1)];
    system.until_unread(&ann, all).await;
    let token = system.notices(&ann, &[Comment, Like]).await.seen_token;
    system.mark_seen(&ann, &token).await;
    for member in [&ann, &elsewhere] {
        assert_eq!(system.unread(member).await, counts_of([(Follow, 1)]));
        assert_eq!(system.notices(member, &[]).await.notices.len(), 3, "seen, but there");
    }
    let kinds = vec![Comment.into(), Like.into()];
    let request = ann.request(gateway::CountUnreadRequest { kinds });
    assert_eq!(system.gateway().count_unread(request).await.unwrap().into_inner().counts, []);
    // Once more, and all others.
    system.mark_seen(&ann, &token).await;
    assert_eq!(system.unread(&ann).await, counts_of([(Follow, 1)]));
    let token = system.notices(&elsewhere, &[]).await.seen_token;
    system.mark_seen(&elsewhere, &token).await;
    assert_eq!(system.unread(&ann).await, Counts::new());
}

#[tokio::test]
async fn acts_of_hidden_accounts_make_no_notice_unread() {
    let system = followed().await;
    let [ann, bob, cleo] =
        [system.join("ann").await, system.join("bob").await, system.join("cleo").await];
    let [post, other] =
        [system.publish(&ann, "one").await.id, system.publish(&ann, "two").await.id];
    system.mute(&ann, &bob).await;
    system.like(&cleo, post).await;
    system.until_unread(&ann, [(Like, 1)]).await;
    let seen = system.notices(&ann, &[]).await;
    assert!(seen.notices[0].unread);
    system.mark_seen(&ann, &seen.seen_token).await;
    let before = system.notices(&ann, &[]).await.notices;
    assert!(!before[0].unread);
    system.like(&bob, post).await;
    // It is applied when a later one is.
    system.like(&cleo, other).await;
    eventually("the later like is unread", PATIENCE, async || {
        system.unread(&ann).await == counts_of([(Like, 1)])
    })
    .await;
    let after = system.notices(&ann, &[]).await.notices;
    let of_post = after.iter().find(|notice| shown(notice).3 == shown(&before[0]).3).unwrap();
    // All but the post, which counts the like.
    let without_post = |notice: &ViewedNotice| ViewedNotice { post: None, ..notice.clone() };
    assert_eq!(without_post(of_post), without_post(&before[0]));
    // With the mute, the difference ends.
    let request = gateway::UnmuteRequest { user: by_id(bob.id) };
    system.gateway().unmute(ann.request(request)).await.unwrap();
    assert_eq!(system.unread(&ann).await, counts_of([(Like, 2)]));
}

#[tokio::test]
async fn a_notice_that_arrives_after_the_token_stays_unread() {
    let system = followed().await;
    let [ann, bob, cleo] =
        [system.join("ann").await, system.join("bob").await, system.join("cleo").await];
    let post = system.publish(&ann, "hello").await.id;
    system.like(&bob, post).await;
    system.until_unread(&ann, [(Like, 1)]).await;
    let first = system.notices(&ann, &[]).await.seen_token;
    system.comment(&bob, post, "nice").await;
    system.until_unread(&ann, [(Comment, 1), (Like, 1)]).await;
    system.mark_seen(&ann, &first).await;
    assert_eq!(system.unread(&ann).await, counts_of([(Comment, 1)]));
    // One more act makes a notice unread again.
    let second = system.notices(&ann, &[]).await.seen_token;
    system.like(&cleo, post).await;
    eventually("the like arrives", PATIENCE, async || {
        system.notices(&ann, &[Like]).await.notices[0].count == 2
    })
    .await;
    system.mark_seen(&ann, &second).await;
    assert_eq!(system.unread(&ann).await, counts_of([(Like, 1)]));
}

#[tokio::test]
async fn a_stream_sends_new_notices_and_resumes_without_a_gap() {
    let system = followed().await;
    let [ann, bob, muted] =
        [system.join("ann").await, system.join("bob").await, system.join("muted").await];
    system.mute(&ann, &muted).await;
    let post = system.publish(&ann, "hello").await.id;
    system.comment(&bob, post, "before").await;
    system.until_unread(&ann, [(Comment, 1)]).await;
    let mut updates = system.watch_notices(&ann, "").await;
    let begun = next(&mut updates).await;
    assert!(begun.notices.is_empty() && !begun.since_token.is_empty());

    system.like(&bob, post).await;
    let update = next(&mut updates).await;
    assert_eq!(update.notices, system.notices(&ann, &[Like]).await.notices);
    // What a hidden account does makes no message.
    system.comment(&muted, post, "not for ann").await;
    system.like(&muted, post).await;
    let ids = system.mention_ann(&bob, &ann, 2).await;
    let mut all = Vec::new();
    while all.len() < 2 {
        let notices = next(&mut updates).await.notices;
        assert!(!notices.is_empty());
        all.extend(notices);
    }
    assert!(all.iter().all(|notice| notice.kind() == Mention && notice.unread));
    drop(updates);

    let mut resumed = system.watch_notices(&ann, &update.since_token).await;
    let update = next(&mut resumed).await;
    let found: Vec<u64> = update.notices.iter().map(|notice| shown(notice).3).collect();
    assert_eq!(found, [ids[1], ids[0]], "newest first");
    let since = &update.since_token;
    assert!(next(&mut system.watch_notices(&ann, since).await).await.notices.is_empty());
    system.mark_seen(&ann, since).await;
    assert_eq!(system.unread(&ann).await, Counts::new(), "the token is for all kinds");
    // The token of a list without kinds continues it, too.
    let since = system.notices(&ann, &[]).await.seen_token;
    let ids = system.mention_ann(&bob, &ann, 1).await;
    let update = next(&mut system.watch_notices(&ann, &since).await).await;
    assert_eq!(all_shown(&update.notices), [one(Mention, &["bob"], ids[0], None)]);
}

#[tokio::test]
async fn a_large_update_is_split_into_messages() {
    let system = followed().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let since = next(&mut system.watch_notices(&ann, "").await).await.since_token;
    let mut expected = system.mention_ann(&bob, &ann, 40).await;
    expected.reverse();
    let mut updates = system.watch_notices(&ann, &since).await;
    let (mut seen, mut tokens) = (Vec::new(), Vec::new());
    for size in [7, 7, 7, 7, 7, 5] {
        let update = next(&mut updates).await;
        assert_eq!(update.notices.len(), size);
        seen.extend(update.notices.iter().map(|notice| shown(notice).3));
        tokens.push(update.since_token);
    }
    assert_eq!(seen, expected);
    assert!(tokens[..5].iter().all(|token| *token == since));
    assert!(next(&mut system.watch_notices(&ann, &tokens[5]).await).await.notices.is_empty());
}

#[tokio::test]
async fn streams_of_notices_end_with_their_session_and_share_a_limit() {
    let system = followed().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let post = system.publish(&ann, "hello").await.id;
    let config = configured(&["--max-watches-per-viewer=2", "--session-check-ms=50"]);
    let service = gateway_service(&config, system.peers.clone(), Worker::ONLY);
    let mut gateway = GatewayServiceClient::new(Peer::local(&service, &config.chassis));
    let home = || ann.request(gateway::WatchHomeRequest::default());
    let notices = || ann.request(gateway::WatchNoticesRequest::default());
    let mut first = gateway.watch_home(home()).await.unwrap().into_inner();
    let mut second = gateway.watch_notices(notices()).await.unwrap().into_inner();
    let limit: Expected = (Code::ResourceExhausted, ErrorReason::WatchLimit, &[]);
    assert_error("a third", gateway.watch_home(home()).await, limit);
    assert_error("a third", gateway.watch_notices(notices()).await, limit);
    next(&mut first).await;
    next(&mut second).await;
    let mut busy = system.watch_notices(&ann, "").await;
    next(&mut busy).await;

    system.gateway().logout(ann.request(gateway::LogoutRequest {})).await.unwrap();
    system.like(&bob, post).await;
    for updates in [&mut second, &mut busy] {
        let ended = timeout(PATIENCE, updates.message()).await.unwrap().expect_err("an end");
        assert_eq!(status::reason_of(&ended), Some(ErrorReason::TokenInvalid));
    }
}

#[tokio::test]
async fn mentions_are_posts_that_the_viewer_may_see() {
    let system = followed().await;
    let [ann, bob, muted] =
        [system.join("ann").await, system.join("bob").await, system.join("muted").await];
    let post = system.publish(&ann, "hello, @ann").await.id;
    let (mut expected, mut notices) = (Vec::new(), 0);
    for i in 0..30 {
        let author = if i % 3 == 0 { &muted } else { &bob };
        let id = system.publish(author, &format!("{i} @ann")).await.id;
        notices += 1;
        if i % 3 != 0 {
            expected.push(id);
        }
    }
    let comment = system.publish(&bob, "to comment on").await.id;
    system.comment(&bob, comment, "@ann").await;
    expected.push(system.repost(&bob, post, "@ann").await.id);
    eventually("all arrive", PATIENCE, async || {
        system.notices(&ann, &[Mention]).await.notices.len() == notices + 2
    })
    .await;
    system.mute(&ann, &muted).await;
    system.delete_post(&bob, expected.remove(0)).await;
    expected.reverse();

    let (mut found, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = gateway::ViewMentionsRequest { page_size: 7, page_token };
        let page = system.gateway().view_mentions(ann.request(request)).await.unwrap();
        let page = page.into_inner();
        assert!(page.posts.len() == 7 || page.next_page_token.is_empty(), "pages are filled");
        found.extend(page.posts);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(post_ids(&found), expected);
    assert!(texts(&found).iter().all(|text| text.contains("@ann")));
    assert_eq!(found[0], system.view(Some(&ann), expected[0]).await);
}

#[tokio::test]
async fn pages_show_each_notice_once() {
    let system = followed().await;
    let [ann, bob, muted] =
        [system.join("ann").await, system.join("bob").await, system.join("muted").await];
    let mut expected = system.mention_ann(&bob, &ann, 20).await;
    system.mention_ann(&muted, &ann, 30).await;
    expected.extend(system.mention_ann(&bob, &ann, 25).await);
    system.mute(&ann, &muted).await;
    expected.reverse();
    for (size, sizes) in [(20, &[20, 20, 5][..]), (0, &[20, 20, 5]), (200, &[45]), (45, &[45])] {
        let (mut found, mut pages, mut token) = (Vec::new(), Vec::new(), String::new());
        loop {
            let page = system.notices_page(&ann, &[], size, &token).await;
            assert_eq!(page.seen_token.is_empty(), !token.is_empty(), "on the first page only");
            found.extend(page.notices.iter().map(|notice| shown(notice).3));
            // At the end of the list, a page may be empty: what follows was hidden.
            pages.push(page.notices.len());
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        pages.retain(|&size| size > 0);
        assert_eq!((found, &pages[..]), (expected.clone(), sizes));
    }
    let token = system.notices_page(&ann, &[Mention], 20, "").await.next_page_token;
    let rest = system.notices_page(&ann, &[Mention], 200, &token).await;
    assert_eq!(rest.notices.len(), 25);
    let request = |kinds: &[NoticeKind], page_token: &str| gateway::ViewNoticesRequest {
        kinds: kinds.iter().map(|&kind| kind.into()).collect(),
        page_token: page_token.to_owned(),
        ..Default::default()
    };
    let mismatch = token_error(ErrorReason::PageTokenMismatch, &["page_token"]);
    for kinds in [&[Like][..], &[Mention, Like], &[]] {
        let page = system.gateway().view_notices(ann.request(request(kinds, &token))).await;
        assert_error("of other kinds", page, mismatch);
    }
    let page = system.gateway().view_notices(bob.request(request(&[Mention], &token))).await;
    assert_error("of another account", page, mismatch);
    let damaged = token_error(ErrorReason::PageTokenInvalid, &["page_token"]);
    let page = system.gateway().view_notices(ann.request(request(&[Mention], "?"))).await;
    assert_error("damaged", page, damaged);
}

#[tokio::test]
async fn pages_of_the_longest_texts_end_early_and_show_each_notice_once() {
    let system = followed().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let root = system.publish(&ann, &long(0)).await.id;
    let comment = system.comment(&ann, root, "first").await.id;
    for i in 0..100 {
        system.reply(&bob, root, comment, &long(i)).await;
    }
    eventually("the replies arrive", PATIENCE, async || {
        system.unread(&ann).await == counts_of([(Reply, 100)])
    })
    .await;
    let (mut found, mut pages, mut token) = (Vec::new(), 0, String::new());
    loop {
        let page = system.notices_page(&ann, &[], 200, &token).await;
        found.extend(page.notices.iter().map(|notice| shown(notice).4));
        (pages, token) = (pages + 1, page.next_page_token);
        if token.is_empty() {
            break;
        }
    }
    assert!(found.is_sorted_by(|a, b| a > b) && found.len() == 100, "{found:?}");
    assert_eq!(pages, 4, "of 140 kB each");
}

#[tokio::test]
async fn pages_of_mentions_with_the_longest_texts_go_on() {
    let system = followed().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    // A hashtag is there twice: in the text, and as an entity.
    let tags = format!("#{}# ", EMOJI.repeat(98)).repeat(19);
    let root = system.publish(&bob, &tags).await.id;
    let text = format!("@ann {tags}");
    let mut expected = Vec::new();
    for _ in 0..60 {
        expected.push(system.repost(&bob, root, &text).await.id);
    }
    expected.reverse();
    eventually("the mentions arrive", PATIENCE, async || {
        system.unread(&ann).await == counts_of([(Mention, 60)])
    })
    .await;
    let (mut found, mut sizes, mut token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let request = gateway::ViewMentionsRequest { page_size: 50, page_token: token };
        let page = system.gateway().view_mentions(ann.request(request)).await.unwrap().into_inner();
        sizes.push(page.posts.len());
        found.extend(page.posts.iter().map(|shown| shown.post.as_ref().unwrap().id));
        token = page.next_page_token;
        if token.is_empty() || sizes.len() > 30 {
            break;
        }
    }
    assert_eq!(found, expected);
    // A later page is cut as well.
    assert!(sizes.len() > 2 && sizes[1] < 50, "{sizes:?}");
}

#[tokio::test]
async fn invalid_calls_are_rejected() {
    let system = System::start().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    for (kinds, expected) in [
        (vec![0], invalid(&["kinds[0]"])),
        (vec![99], invalid(&["kinds[0]"])),
        (vec![Like.into(), -1], invalid(&["kinds[1]"])),
    ] {
        let request = gateway::ViewNoticesRequest { kinds: kinds.clone(), ..Default::default() };
        let page = system.gateway().view_notices(ann.request(request)).await;
        assert_error("ViewNotices", page, expected);
        let request = ann.request(gateway::CountUnreadRequest { kinds });
        assert_error("CountUnread", system.gateway().count_unread(request).await, expected);
    }
    let request = gateway::ViewNoticesRequest { page_size: -1, ..Default::default() };
    let page = system.gateway().view_notices(ann.request(request)).await;
    assert_error("ViewNotices", page, invalid(&["page_size"]));
    let request = gateway::ViewMentionsRequest { page_size: -1, ..Default::default() };
    let page = system.gateway().view_mentions(ann.request(request)).await;
    assert_error("ViewMentions", page, invalid(&["page_size"]));
    let request = gateway::ViewMentionsRequest { page_token: "?".to_owned(), page_size: 0 };
    let page = system.gateway().view_mentions(ann.request(request)).await;
    let damaged = token_error(ErrorReason::PageTokenInvalid, &["page_token"]);
    assert_error("ViewMentions", page, damaged);

    let seen = |token: &str| gateway::MarkSeenRequest { token: token.to_owned() };
    let watch = |token: &str| gateway::WatchNoticesRequest { since_token: token.to_owned() };
    let mut gateway = system.gateway();
    let others = system.notices(&bob, &[]).await.seen_token;
    for (token, reason) in
        [("?", ErrorReason::PageTokenInvalid), (others.as_str(), ErrorReason::PageTokenMismatch)]
    {
        let marked = gateway.mark_seen(ann.request(seen(token))).await;
        assert_error("MarkSeen", marked, token_error(reason, &["token"]));
        let watched = gateway.watch_notices(ann.request(watch(token))).await;
        assert_error("WatchNotices", watched, token_error(reason, &["since_token"]));
    }

    macro_rules! check {
        ($method:ident, $request:ident) => {
            let request = gateway::$request::default();
            let answer = gateway.$method(request.clone()).await.map(|_| Response::new(()));
            assert_error(stringify!($method), answer, TOKEN_MISSING);
            let stranger = with_token("not one", request);
            let answer = gateway.$method(stranger).await.map(|_| Response::new(()));
            assert_error(stringify!($method), answer, TOKEN_INVALID);
        };
    }
    check!(view_notices, ViewNoticesRequest);
    check!(count_unread, CountUnreadRequest);
    check!(mark_seen, MarkSeenRequest);
    check!(watch_notices, WatchNoticesRequest);
    check!(view_mentions, ViewMentionsRequest);
}
