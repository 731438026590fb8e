//! The password of Redis in a file, which is read for each new connection.

use microblog_keyspace::{Config, Error, Keyspace, redis};
use microblog_testkit::{Files, PATIENCE, eventually, password};

use crate::support::{Any, LIBRARY, USER, cluster, get, key, put, send, sentinels, single};

/// Characters that a URL would need percent-encoded.
const ROTATED: &str = "new%40/p@ss:w#rd";

/// Returns a URL without its password.
fn without_password(url: &str) -> String {
    let (start, hosts) = url.rsplit_once('@').unwrap();
    let (scheme, credentials) = start.split_once("://").unwrap();
    let (user, _) = credentials.split_once(':').unwrap();
    format!("{scheme}://{user}@{hosts}")
}

fn config(store: &Any, files: &Files) -> Config {
    Config {
        redis_password_file: Some(files.path("password")),
        ..Config::at(without_password(&store.url()))
    }
}

async fn open_ready(store: &Any, files: &Files) -> Keyspace {
    let keyspace = Keyspace::open(&config(store, files), LIBRARY).unwrap();
    eventually("redis is ready", PATIENCE, async || keyspace.ready().await.is_ok()).await;
    keyspace
}

/// Sends a command of an administrator to all servers.
async fn administer(store: &Any, words: &[&str]) {
    for server in store.servers() {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).exec_async(&mut server.admin().await).await.unwrap();
    }
}

async fn disconnect(store: &Any) {
    administer(store, &["CLIENT", "KILL", "USER", USER]).await;
}

/// Uses connections of all kinds: dedicated ones, the cluster client of the library, shared ones.
async fn check_connections(keyspace: &Keyspace, value: &str) {
    keyspace.dedicated_connection(&key(1, "a")).await.map(drop).unwrap();
    assert_eq!(keyspace.query::<String>(redis::cmd("PING")).await.unwrap(), "PONG");
    put(keyspace, &key(1, "a"), value).await.unwrap();
    assert_eq!(get(keyspace, &key(1, "a")).await.unwrap().as_deref(), Some(value));
    send(keyspace, 100, value).await.unwrap();
    keyspace.ready().await.unwrap();
}

async fn a_password_is_rotated_without_a_restart(store: Any) {
    let files = Files::new();
    files.write("password", format!("{}\n", password(USER)));
    let keyspace = open_ready(&store, &files).await;
    check_connections(&keyspace, "before").await;

    administer(&store, &["ACL", "SETUSER", USER, "resetpass", &format!(">{ROTATED}")]).await;
    check_connections(&keyspace, "open connections stay").await;
    files.write("password", format!("{ROTATED}\n"));
    disconnect(&store).await;
    check_connections(&keyspace, "after").await;
    // Not only the connections that come first.
    disconnect(&store).await;
    put(&keyspace, &key(1, "a"), "again").await.unwrap();
}

#[tokio::test]
async fn password_of_a_single_server_is_rotated_without_a_restart() {
    a_password_is_rotated_without_a_restart(single().await).await;
}

#[tokio::test]
async fn password_of_a_sentinel_group_is_rotated_without_a_restart() {
    a_password_is_rotated_without_a_restart(sentinels().await).await;
}

#[tokio::test]
async fn password_of_a_cluster_is_rotated_without_a_restart() {
    a_password_is_rotated_without_a_restart(cluster().await).await;
}

#[tokio::test]
async fn shared_connections_use_a_rotated_password_at_once() {
    for store in [single().await, cluster().await] {
        let files = Files::new();
        files.write("password", password(USER));
        let keyspace = open_ready(&store, &files).await;
        put(&keyspace, &key(1, "a"), "before").await.unwrap();
        for number in 0..3 {
            let password = format!("{ROTATED}{number}");
            administer(&store, &["ACL", "SETUSER", USER, "resetpass", &format!(">{password}")])
                .await;
            files.write("password", &password);
            disconnect(&store).await;
            put(&keyspace, &key(1, "a"), &password).await.unwrap();
        }
    }
}

#[tokio::test]
async fn unusable_file_keeps_the_previous_password() {
    let store = single().await;
    let files = Files::new();
    let path = files.write("password", password(USER));
    let keyspace = open_ready(&store, &files).await;
    files.write("password", "\n");
    disconnect(&store).await;
    check_connections(&keyspace, "empty").await;
    std::fs::remove_file(path).unwrap();
    disconnect(&store).await;
    check_connections(&keyspace, "missing").await;
}

#[tokio::test]
async fn wrong_password_in_the_file_is_unavailable_until_it_is_corrected() {
    let store = single().await;
    let files = Files::new();
    files.write("password", "wrong");
    let keyspace = Keyspace::open(&config(&store, &files), LIBRARY).unwrap();
    assert!(keyspace.ready().await.unwrap_err().is_unavailable());
    assert!(keyspace.dedicated_connection(&key(1, "a")).await.is_err());
    files.write("password", password(USER));
    // A failure to connect is repeated to other calls for a moment.
    eventually("redis is ready", PATIENCE, async || keyspace.ready().await.is_ok()).await;
    check_connections(&keyspace, "corrected").await;
}

/// Returns the error of a configuration with its causes.
fn config_error(config: &Config) -> String {
    match Keyspace::open(config, LIBRARY) {
        Err(Error::Config(cause)) => {
            let causes = std::iter::successors(cause.source(), |&cause| cause.source());
            let causes = causes.map(|cause| format!(": {cause}")).collect::<String>();
            format!("{cause}{causes}")
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the configuration is valid"),
    }
}

#[test]
fn unusable_files_and_two_passwords_are_configuration_errors() {
    let files = Files::new();
    let at = |url: &str, name| {
        config_error(&Config { redis_password_file: Some(files.path(name)), ..Config::at(url) })
    };
    let missing = at("redis://user@localhost", "missing");
    assert!(missing.contains("/missing") && missing.contains("No such file"), "{missing}");
    files.write("empty", "");
    let empty = at("redis-cluster://user@localhost", "empty");
    assert!(empty.contains("/empty") && empty.contains("no password"), "{empty}");
    files.write("password", "secret");
    let two = at("redis://user:hidden@localhost", "password");
    assert!(two.contains("--redis-password-file") && !two.contains("hidden"), "{two}");
}
