//! Invalid requests: each invalid field is named, nothing is written, nothing crashes.

use microblog_proto::{common::ErrorReason, timeline as pb};
use microblog_testkit::Topology::Single;
use tonic::{Code, Status};

use crate::support::{
    System, assert_invalid_fields, assert_rejected, delivery, id, pages::Timeline, post_id, posts,
};

const WRONG_IDS: [u64; 4] = [0, 1 << 53, 1 << 63, u64::MAX];

async fn deliver(system: &System, deliveries: Vec<pb::Delivery>) -> Result<(), Status> {
    system.client.clone().deliver(pb::DeliverRequest { deliveries }).await.map(|_| ())
}

#[tokio::test]
async fn invalid_delivery_fields_are_named_and_nothing_is_delivered() {
    let system = System::start(Single).await;
    let alice = id(1);
    let good = delivery(post_id(alice), alice, 0);
    for wrong in WRONG_IDS {
        let bad = [
            pb::Delivery { post_id: wrong, ..good },
            pb::Delivery { author_id: wrong, ..good },
            // The root of a post is 0.
            pb::Delivery { root_id: wrong.max(1 << 53), ..good },
            // A post must be in its author's partition.
            pb::Delivery { author_id: id(2), ..good },
        ];
        let answer = deliver(&system, [&[good], &bad[..]].concat()).await;
        let fields = [
            "deliveries[1].post_id",
            "deliveries[2].author_id",
            "deliveries[3].root_id",
            "deliveries[4].author_id",
        ];
        assert_invalid_fields(answer, &fields);
    }
    assert_invalid_fields(deliver(&system, vec![good; 501]).await, &["deliveries"]);
    assert_eq!(system.home(alice).await, [0; 0]);
    deliver(&system, Vec::new()).await.unwrap();
    deliver(&system, vec![good; 500]).await.unwrap();
    assert_eq!(system.home(alice).await, [good.post_id]);
}

#[tokio::test]
async fn invalid_read_fields_are_named() {
    let system = System::start(Single).await;
    let mut client = system.client.clone();
    for user_id in WRONG_IDS {
        for timeline in Timeline::ALL {
            let page = timeline.page(&client, user_id, 20, "", "").await;
            assert_invalid_fields(page, &["user_id"]);
            assert_invalid_fields(timeline.authors(&client, user_id).await, &["user_id"]);
        }
        let since_token = String::new();
        let count = pb::CountNewRequest { user_id, since_token: since_token.clone() };
        assert_invalid_fields(client.count_new(count).await, &["user_id"]);
        let watch = pb::WatchHomeTimelineRequest { user_id, since_token };
        assert_invalid_fields(client.watch_home_timeline(watch).await.map(|_| ()), &["user_id"]);
        assert_invalid_fields(
            client.forget_user(pb::ForgetUserRequest { user_id }).await,
            &["user_id"],
        );
    }
    for timeline in Timeline::ALL {
        for page_size in [-1, i32::MIN] {
            assert_invalid_fields(
                timeline.page(&client, id(1), page_size, "", "").await,
                &["page_size"],
            );
        }
    }
    for kind in [pb::TimelineKind::Unspecified.into(), 3, -1] {
        let request = pb::ListAuthorsRequest { user_id: id(1), kind };
        assert_invalid_fields(client.list_authors(request).await, &["kind"]);
        let request = pb::ListAuthorsRequest { user_id: 0, kind };
        assert_invalid_fields(client.list_authors(request).await, &["user_id", "kind"]);
        let page = pb::GetTimelineRequest { kind, page_size: -1, ..Default::default() };
        let fields = ["user_id", "kind", "page_size"];
        assert_invalid_fields(client.get_timeline(page).await, &fields);
    }
}

#[tokio::test]
async fn the_default_page_size_is_20_and_the_maximum_200() {
    let system = System::start(Single).await;
    let alice = id(1);
    let all: Vec<_> = (0..230).map(|_| delivery(post_id(alice), alice, 0)).collect();
    deliver(&system, all).await.unwrap();
    let bob = id(2);
    system.follow(alice, bob).await;
    system.follow(bob, alice).await;
    for (timeline, reader) in [(Timeline::Friends, bob), (Timeline::Home, alice)] {
        for (page_size, expected) in [(0, 20), (1, 1), (200, 200), (201, 200), (i32::MAX, 200)] {
            let page = timeline.page(&system.client, reader, page_size, "", "").await.unwrap();
            assert_eq!(page.0.len(), expected);
        }
    }
}

/// Malformed tokens.
const MALFORMED: [&str; 6] =
    ["x", "!!", "AAAA", "no-token", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "微"];

#[tokio::test]
async fn malformed_tokens_are_rejected() {
    let system = System::start(Single).await;
    let mut client = system.client.clone();
    let alice = id(1);
    let long = "A".repeat(100_000);
    for token in MALFORMED.into_iter().chain([long.as_str()]) {
        for timeline in Timeline::ALL {
            let page = timeline.page(&client, alice, 2, token, "").await;
            assert_names(page, "page_token", ErrorReason::PageTokenInvalid);
            let page = timeline.page(&client, alice, 2, "", token).await;
            assert_names(page, "since_token", ErrorReason::PageTokenInvalid);
        }
        let (user_id, since_token) = (alice, token.to_owned());
        let count = pb::CountNewRequest { user_id, since_token: since_token.clone() };
        assert_names(client.count_new(count).await, "since_token", ErrorReason::PageTokenInvalid);
        let watch = pb::WatchHomeTimelineRequest { user_id, since_token };
        let watch = client.watch_home_timeline(watch).await.map(|_| ());
        assert_names(watch, "since_token", ErrorReason::PageTokenInvalid);
    }
}

#[tokio::test]
async fn tokens_of_other_timelines_are_rejected() {
    let system = System::start(Single).await;
    let mut client = system.client.clone();
    let (alice, bob) = (id(1), id(2));
    system.follow(alice, bob).await;
    system.follow(bob, alice).await;
    let post = async || (system.post(alice).await, system.post(bob).await);
    for _ in 0..4 {
        post().await;
    }
    let mut tokens = Vec::new();
    for timeline in Timeline::ALL {
        let (_, next, since) = timeline.page(&client, alice, 2, "", "").await.unwrap();
        for _ in 0..3 {
            post().await;
        }
        // The page token of a query for new posts is valid with its `since_token` only.
        let (_, next_new, _) = timeline.page(&client, alice, 2, "", &since).await.unwrap();
        assert!(!next.is_empty() && !next_new.is_empty(), "{timeline:?}");
        tokens.push((timeline, next, since, next_new));
    }
    for (of, next, since, next_new) in &tokens {
        let mismatch = ErrorReason::PageTokenMismatch;
        for timeline in Timeline::ALL {
            for user in [alice, bob] {
                let page = async |page_token: &str, since_token: &str| {
                    timeline.page(&client, user, 2, page_token, since_token).await
                };
                if timeline == *of && user == alice {
                    page(next, "").await.unwrap();
                    page(next_new, since).await.unwrap();
                    assert_names(page(next, since).await, "page_token", mismatch);
                    assert_names(page(next_new, "").await, "page_token", mismatch);
                    // A page token as a since token.
                    assert_names(page(since, "").await, "page_token", mismatch);
                    assert_names(page("", next).await, "since_token", mismatch);
                } else {
                    assert_names(page(next, "").await, "page_token", mismatch);
                    assert_names(page("", since).await, "since_token", mismatch);
                }
            }
        }
        for user_id in [alice, bob] {
            let count = pb::CountNewRequest { user_id, since_token: since.clone() };
            let count = client.count_new(count).await;
            if (*of, user_id) == (Timeline::Home, alice) {
                assert!(count.unwrap().into_inner().count >= 6);
            } else {
                assert_names(count, "since_token", mismatch);
            }
        }
    }
}

#[tokio::test]
async fn the_page_size_may_change_between_pages() {
    let system = System::start(Single).await;
    let alice = id(1);
    let mut all = Vec::new();
    for _ in 0..6 {
        all.insert(0, system.post(alice).await);
    }
    let (first, next, _) = system.home_page(alice, 1, "", "").await.unwrap();
    let (second, next, _) = system.home_page(alice, 3, &next, "").await.unwrap();
    let (third, next, _) = system.home_page(alice, 200, &next, "").await.unwrap();
    assert_eq!([posts(&first), posts(&second), posts(&third)].concat(), all);
    assert_eq!(next, "");
}

#[track_caller]
fn assert_names<T: std::fmt::Debug>(answer: Result<T, Status>, field: &str, reason: ErrorReason) {
    let status = answer.expect_err("a rejection");
    assert_invalid_fields(Err::<(), _>(status.clone()), &[field]);
    assert_rejected(Err::<(), _>(status), Code::InvalidArgument, reason);
}
