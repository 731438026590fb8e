//! The service's Redis user may do what the service does, and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod support;

use microblog_testkit::{
    RedisServer,
    redis::{self, Client, Cmd, RedisError, Value},
};

async fn run(connection: &mut redis::aio::MultiplexedConnection, command: Cmd) -> RedisError {
    command.query_async::<Value>(connection).await.expect_err("a refusal")
}

#[tokio::test]
async fn other_services_keys_and_unused_commands_are_refused() {
    let server = RedisServer::start().await;
    let client = Client::open(server.url("relation")).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();

    for key in ["user:{1}:profile:4", "post:{1}:post:4", "tl:{1}:home:4", "anything"] {
        for command in ["GET", "ZCARD", "UNLINK"] {
            let error = run(&mut connection, redis::cmd(command).arg(key).take()).await;
            assert_eq!(error.code(), Some("NOPERM"), "{command} {key}");
        }
    }
    let unused: [&[&str]; 13] = [
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["RANDOMKEY"],
        &["FLUSHALL"],
        &["FUNCTION", "FLUSH"],
        &["FUNCTION", "DELETE", "relation"],
        &["CONFIG", "GET", "*"],
        &["EVAL", "return 1", "0"],
        &["SMEMBERS", "rel:{1}:following_ids:4"],
        &["HGETALL", "rel:{1}:following:4"],
        &["DEL", "rel:{1}:following:4"],
        &["ZCOUNT", "rel:{1}:following:4", "-inf", "+inf"],
        &["ZREMRANGEBYSCORE", "rel:{1}:following:4", "-inf", "+inf"],
    ];
    for words in unused {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let error = run(&mut connection, command).await;
        assert_eq!(error.code(), Some("NOPERM"), "{words:?}");
    }
}
