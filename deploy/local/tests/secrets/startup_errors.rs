//! Errors of servers with invalid URLs or wrong credentials.

use microblog_testkit::{Authority, RedisServer, Sentinels, connect, redis};

use crate::{
    canaries::Canaries,
    outputs::Outputs,
    server::{Server, Variables, private_file},
    stores::Databases,
};

/// A server with a variable that contains a secret.
struct Case {
    service: &'static str,
    variables: Variables,
    /// The expected log text, which shows that the server got this far.
    expected: &'static str,
}

/// The cases of one test.
struct Cases<'a> {
    canaries: &'a Canaries,
    cases: Vec<Case>,
}

impl Cases<'_> {
    /// Adds a case. `SECRET` in the value is replaced by the secret.
    fn add(&mut self, service: &'static str, variable: &str, value: &str, expected: &'static str) {
        let secret = self.canaries.make(&format!("{variable}={value}"));
        let value = value.replace("SECRET", &secret);
        let variables = vec![(variable.to_owned(), value)];
        self.cases.push(Case { service, variables, expected });
    }

    /// Starts all servers, waits for the expected log of each, and stops them.
    async fn watch(self, variables: &[(&str, String)]) {
        let common = variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let common: Variables = common.collect();
        let mut outputs = Outputs::default();
        let start = |case: Case| {
            let variables = [common.clone(), case.variables].concat();
            (Server::spawn(case.service, &variables), case.expected)
        };
        let servers: Vec<_> = self.cases.into_iter().map(start).collect();
        for (mut server, expected) in servers {
            server.wait_for_log(expected).await;
            server.stop().await;
            server.assert_no_panic();
            outputs.add(format!("{} with `{expected}`", server.name), server.output());
        }
        outputs.assert_keeps(self.canaries);
    }
}

#[tokio::test]
async fn invalid_redis_urls_are_not_printed() {
    let canaries = Canaries::new();
    let redis = RedisServer::start().await;
    let there = redis.port();
    let mut cases = Cases { canaries: &canaries, cases: Vec::new() };
    for (value, expected) in [
        ("redis://user:SECRET@127.0.0.1:port", "must name its hosts"),
        ("redis://user:SECRET/x@127.0.0.1:6379", "the database at the end"),
        ("user:SECRET@127.0.0.1:6379", "the address must start with"),
        ("redis://user:%FFSECRET@127.0.0.1:6379", "must be percent-encoded"),
        ("redis+sentinel://user:SECRET@127.0.0.1:6379", "must end with the name"),
        ("redis-cluster://user:SECRET@127.0.0.1:6379/SECRET", "nothing may follow"),
        ("redis://user:SECRET@127.0.0.1:1", "Connection refused"),
        ("redis-cluster://user:SECRET@127.0.0.1:1", "Connection refused"),
        ("redis+sentinel://user:SECRET@127.0.0.1:1/main", "Connection refused"),
        (&format!("redis://user:SECRET@127.0.0.1:{there}"), "WRONGPASS"),
        (&format!("redis-cluster://user:SECRET@127.0.0.1:{there}"), "authentication failed"),
        (&format!("redis+sentinel://user:SECRET@127.0.0.1:{there}/main"), "unknown command"),
        (&format!("rediss://user:SECRET@127.0.0.1:{there}"), "redis is unavailable"),
    ] {
        cases.add("timeline", "MICROBLOG_REDIS_URL", value, expected);
    }
    cases.watch(&[("MICROBLOG_LOG", "trace".to_owned())]).await;
}

#[tokio::test]
async fn invalid_database_urls_are_not_printed() {
    const UNAVAILABLE: &str = "database unavailable";
    let canaries = Canaries::new();
    let redis = RedisServer::start().await;
    let databases = Databases::start("right").await;
    let mut cases = Cases { canaries: &canaries, cases: Vec::new() };
    for (value, expected) in [
        ("postgres://post:SECRET@127.0.0.1:port/microblog", "invalid port number"),
        ("postgres://post:SECRET/x@127.0.0.1/microblog", "invalid port number"),
        ("postgres://post:7/SECRET@127.0.0.1/microblog", "percent-encode"),
        ("postgres://post:7?SECRET@127.0.0.1/microblog", "percent-encode"),
        ("postgres://post:7#SECRET@127.0.0.1/microblog", "percent-encode"),
        ("post:SECRET@127.0.0.1/microblog", "the database's address begins with"),
        ("mysql://post:SECRET@127.0.0.1/microblog", "the database's address begins with"),
        ("SECRET", "the database's address is no URL"),
        ("postgres://post:SECRET@127.0.0.1:1/microblog", UNAVAILABLE),
        ("postgres://post@127.0.0.1:1/microblog?password=SECRET", UNAVAILABLE),
        ("postgres://post:SECRET@127.0.0.1:1/microblog?sslmode=none", UNAVAILABLE),
        ("postgres://post:%FFSECRET@127.0.0.1:1/microblog", UNAVAILABLE),
        // The driver does not support this PostgreSQL parameter.
        ("postgres://post@127.0.0.1:1/microblog?sslpassword=SECRET", "sslpassword"),
        (&databases.url("post", "SECRET"), "password authentication failed"),
    ] {
        cases.add("post", "MICROBLOG_DATABASE_URL", value, expected);
    }
    let redis_url = ("MICROBLOG_REDIS_URL", redis.url("post"));
    // All servers start concurrently, and password authentication is then slow.
    let patient = ("MICROBLOG_DATABASE_TIMEOUT_MS", "20000".to_owned());
    cases.watch(&[("MICROBLOG_LOG", "trace".to_owned()), redis_url, patient]).await;
}

#[tokio::test]
async fn invalid_collector_urls_are_not_printed() {
    let canaries = Canaries::new();
    let mut cases = Cases { canaries: &canaries, cases: Vec::new() };
    let endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT";
    for (variable, value, expected) in [
        (endpoint, "http://sender:SECRET@127.0.0.1:port", "listening"),
        (endpoint, "http://sender:SECRET@not an address", "cannot start"),
        (endpoint, "https://sender:SECRET@127.0.0.1:1", "cannot start"),
        (endpoint, "http://sender:SECRET@127.0.0.1:1", "listening"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://s:SECRET@ not an address", "cannot start"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=SECRET", "listening"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "not a header=SECRET", "listening"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "SECRET", "listening"),
    ] {
        cases.add("gateway", variable, value, expected);
    }
    let often = ("OTEL_METRIC_EXPORT_INTERVAL", "50".to_owned());
    let unreachable = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1".to_owned());
    cases.watch(&[unreachable, often, ("MICROBLOG_LOG", "trace".to_owned())]).await;
}

#[tokio::test]
async fn invalid_key_files_are_not_printed() {
    let canaries = Canaries::new();
    let mut cases = Cases { canaries: &canaries, cases: Vec::new() };
    let directory = tempfile::tempdir().unwrap();
    let secret = canaries.make("what is in a file of keys");
    let files = [
        ("identity", format!("not a key: {secret}")),
        ("short", format!("{secret}{secret}")),
        ("key", format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n")),
    ];
    let files = files.map(|(name, text)| private_file(directory.path(), name, &text));
    let [identity, short, key] = files;
    for (file, expected) in [(identity, "neither base64 nor"), (short, "must have at least")] {
        cases.add("gateway", "MICROBLOG_IDENTITY_KEY_FILE", &file, expected);
    }
    let certificate = Authority::new().issue(&["localhost"]).certificate;
    let certificate = private_file(directory.path(), "certificate", &certificate);
    let variables = [("MICROBLOG_TLS_CERT_FILE", certificate), ("MICROBLOG_TLS_KEY_FILE", key)];
    let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
    cases.cases.push(Case { service: "gateway", variables, expected: "cannot be used" });
    cases.watch(&[]).await;
}

#[tokio::test]
async fn redis_password_files_are_not_printed() {
    let canaries = Canaries::new();
    let redis = RedisServer::start().await;
    let directory = tempfile::tempdir().unwrap();
    let url = format!("redis://timeline@127.0.0.1:{}", redis.port());
    let two = format!("redis://timeline:{}@127.0.0.1:1", canaries.make("the password of the URL"));
    let mut cases = Cases { canaries: &canaries, cases: Vec::new() };
    let secret = canaries.make("the password in a file");
    for (name, text, url, expected) in [
        ("wrong", secret.clone(), &url, "WRONGPASS"),
        ("second", secret.clone(), &two, "--redis-password-file must not name another"),
        ("long", secret.repeat(10_000), &url, "long cannot be used: cannot read the file: larger"),
        ("empty", "\n".to_owned(), &url, "empty cannot be used: it has no password"),
    ] {
        let file = private_file(directory.path(), name, &text);
        let variables =
            [("MICROBLOG_REDIS_URL", url.clone()), ("MICROBLOG_REDIS_PASSWORD_FILE", file)];
        let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
        cases.cases.push(Case { service: "timeline", variables, expected });
    }
    cases.watch(&[("MICROBLOG_LOG", "trace".to_owned())]).await;
}

#[tokio::test]
async fn sentinel_passwords_are_not_printed() {
    let canaries = Canaries::new();
    let sentinels = Sentinels::start().await;
    let url = sentinels.url("timeline");
    let right = canaries.make("the password of the sentinels");
    for place in places(&url) {
        let mut connection = connect(&format!("redis://{place}")).await.unwrap();
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg("watcher").arg("on").arg(format!(">{right}")).arg("+@all");
        command.exec_async(&mut connection).await.unwrap();
    }
    let mut cases = Cases { canaries: &canaries, cases: Vec::new() };
    let variable = "MICROBLOG_REDIS_SENTINEL_PASSWORD";
    cases.add("timeline", variable, "SECRET", "authentication failed");
    let variables = vec![(variable.to_owned(), right)];
    cases.cases.push(Case { service: "timeline", variables, expected: "serving=true" });
    cases
        .watch(&[
            ("MICROBLOG_REDIS_URL", url),
            ("MICROBLOG_REDIS_SENTINEL_USER", "watcher".to_owned()),
            ("MICROBLOG_LOG", "trace".to_owned()),
        ])
        .await;
}

/// Returns the hosts and ports of a URL.
fn places(url: &str) -> impl Iterator<Item = &str> {
    let (_, hosts) = url.rsplit_once('@').unwrap();
    hosts.split('/').next().unwrap().split(',')
}
