//! `microblog verify` with violations.

use microblog_proto::post::{CreatePostRequest, post_service_client::PostServiceClient};
use microblog_testkit::redis;
use tonic::transport::Endpoint;

use crate::launcher::Launcher;

const AUTHOR: u64 = 7_000_000_000_000_015;

#[test]
fn a_count_that_differs_from_its_list_is_reported_with_its_post() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&dir.path().join("data"), &[]);
    let post = publish(&launcher);
    let verified = launcher.verified();
    assert!(verified.stdout.contains("posts      1 posts and 0 entries of their lists checked"));

    let mut redis = launcher.admin();
    let keys: Vec<String> =
        redis::cmd("KEYS").arg(format!("post:*:post:{post}")).query(&mut redis).unwrap();
    let [key] = &keys[..] else { panic!("{keys:?}") };
    redis::cmd("HINCRBY").arg(key).arg("l").arg(1).exec(&mut redis).unwrap();

    for user in ["all", &AUTHOR.to_string()] {
        let verified = launcher.verify_of(user);
        assert_eq!(verified.code, Some(1), "{verified:?}");
        assert!(verified.stdout.contains(&format!("violation  {post} counts")), "{verified:?}");
        assert!(verified.stdout.contains("\n1 violations\n"), "{verified:?}");
    }
    let verified = launcher.verify_of("1");
    assert_eq!(verified.code, Some(0), "{verified:?}");

    for (repairs, expected) in [(true, "\n1 repaired\n"), (false, "\n0 repaired\n")] {
        let repaired = launcher.repair();
        assert_eq!(repaired.code, Some(0), "{repaired:?}");
        let line = format!("repaired   {post} counts what its lists have");
        assert_eq!(repaired.stdout.contains(&line), repairs, "{repaired:?}");
        assert!(repaired.stdout.contains(expected), "{repaired:?}");
    }
    assert_eq!(launcher.verify_of("all").code, Some(0));
}

/// Creates a post and returns its id.
fn publish(launcher: &Launcher) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = Endpoint::from_shared(launcher.url(3)).unwrap().connect().await.unwrap();
        let request = CreatePostRequest {
            author_id: AUTHOR,
            request_id: "7c2d9b1e-53a4-4f0e-9a7e-0d5c1b7f2a01".to_owned(),
            text: "hello".to_owned(),
        };
        let answer = PostServiceClient::new(channel).create_post(request).await.unwrap();
        answer.into_inner().post.unwrap().id
    })
}
