//! `microblog verify` with violations.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use microblog_proto::post::{CreatePostRequest, post_service_client::PostServiceClient};
use microblog_testkit::redis;
use tonic::transport::Endpoint;

use crate::launcher::{Launcher, PROGRAM};

const AUTHOR: u64 = 7_000_000_000_000_015;

#[test]
fn a_count_that_differs_from_its_list_is_reported_with_its_post() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&dir.path().join("data"), &[]);
    let post = publish(&launcher);
    let verified = launcher.verified();
    assert!(verified.stdout.contains("posts      1 posts and 0 entries of their lists checked"));

    launcher.execute("post", &format!("UPDATE posts SET likes = 1 WHERE id = {post}"));
    // What the cache has differs then, too.
    let () = redis::cmd("FLUSHALL").query(&mut launcher.admin()).unwrap();
    for user in ["all", &AUTHOR.to_string()] {
        let verified = launcher.verify_of(user);
        assert_eq!(verified.code, Some(1), "{verified:?}");
        let violation = format!("violation  likes of post {post}: it has 1, there are 0");
        assert!(verified.stdout.contains(&violation), "{verified:?}");
        assert!(verified.stdout.contains("\n1 violations\n"), "{verified:?}");
    }
    let verified = launcher.verify_of("1");
    assert_eq!(verified.code, Some(0), "{verified:?}");
    launcher.execute("post", &format!("UPDATE posts SET likes = 0 WHERE id = {post}"));
    assert_eq!(launcher.verify_of("all").code, Some(0));
}

#[test]
fn work_under_way_is_waited_for_and_is_no_violation() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&dir.path().join("data"), &[]);
    // A post that does not exist is never delivered. It is of 2040, so the job does not remove it.
    let post = 1_u64 << 52;
    launcher.execute("post", &format!("INSERT INTO undelivered VALUES ({post})"));
    let pending = launcher.verify_with(&["--wait-s", "1"]);
    assert_eq!(pending.code, Some(3), "{pending:?}");
    for line in [
        &format!("\npending    {post}: the post is not delivered\n"),
        "\n1 pending after 1 s\nno violations\n",
    ] {
        assert!(pending.stdout.contains(line), "{line}: {pending:?}");
    }
    assert!(!pending.stdout.contains("violation "), "{pending:?}");

    let mut command = Command::new(PROGRAM);
    command.arg("verify").args(launcher.service_urls());
    let mut waits = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(waits.stderr.take().unwrap()).lines();
    let waiting = format!("posts: waiting: {post}: the post is not delivered");
    assert!(lines.any(|line| line.unwrap() == waiting));
    launcher.execute("post", "DELETE FROM undelivered");
    let ended = waits.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
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
