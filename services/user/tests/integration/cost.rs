//! The cost of calls: the statements and the Redis commands that a service sends.

use std::cell::Cell;

use microblog_chassis::Worker;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{ADMIN, PATIENCE, PostgresServer, RedisServer, Sent, SentMeter, Store};

use crate::support::{
    Client, Database, PASSWORD, System, WITHOUT_JOBS, assert_rejected, authenticate,
    change_password, delete, is_free, login, login_as, logout, register, registration, retried,
    serve, set_bio, try_register, unknown_token,
};

/// Notes what one service sends. Another one has the background jobs, and another Redis user.
struct Meter {
    system: System,
    client: Client,
    sent: SentMeter,
}

impl Meter {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let database = PostgresServer::start_with(&SentMeter::SETTINGS).await;
        let url = SentMeter::database_url(&database);
        let other = serve(&redis.url(ADMIN), &database.url(), Worker::ONLY, &[]).await;
        let client = serve(&redis.url("user"), &url, WITHOUT_JOBS, &[]).await;
        let sent = SentMeter::start(&redis, "user").await;
        let (redis, database) = (Store::Single(redis), Database::Postgres(database));
        let system = System { redis, database, client: other };
        system.caches().await;
        Self { system, client, sent }
    }

    /// Returns what a call costs.
    async fn cost(&mut self, call: impl AsyncFnOnce(&Client)) -> Sent {
        let Database::Postgres(database) = &self.system.database else { unreachable!() };
        let call = call(&self.client);
        self.sent.sent(&self.system.redis.nodes()[0], database, call).await
    }

    /// Asserts what a call costs, as soon as nothing of before adds to it. The other service prepares each
    /// call.
    async fn costs<T>(
        &mut self,
        what: &str,
        [statements, commands]: [&[&str]; 2],
        prepare: impl AsyncFn(&System) -> T,
        call: impl AsyncFn(&Client, T),
    ) {
        let expected = Sent::new(statements, commands);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let prepared = prepare(&self.system).await;
            let cost = self.cost(async |client| call(client, prepared).await).await;
            if cost == expected {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{what}: {cost:#?}, not {expected:#?}");
        }
    }
}

/// What a transaction begins with.
const HISTORY: &str = "SELECT history";

/// What a transaction ends with, in one message.
const APPEND: &str = "append to the feed and COMMIT";

/// A guess is counted before the password is compared.
const GUESS: [&str; 5] = [HISTORY, "INSERT guesses", "SELECT guesses", "UPDATE guesses", "COMMIT"];

fn names() -> impl Fn() -> String {
    let number = Cell::new(0);
    move || {
        number.set(number.get() + 1);
        format!("user{}", number.get())
    }
}

/// Finds the account of an external id, or makes it.
async fn ensure(client: &Client, name: &str) {
    let request = pb::EnsureUserRequest {
        issuer: "sso".to_owned(),
        external_id: name.to_owned(),
        name: name.to_owned(),
        display_name: String::new(),
    };
    retried!(client, ensure_user, request).unwrap();
}

#[tokio::test]
async fn calls_that_write_cost_so_many_statements() {
    let mut meter = Meter::start().await;
    let name = names();
    let nothing = async |_: &System| {};
    let registered = async |system: &System| {
        let name = name();
        (register(&system.client, &name).await.id, name)
    };

    let statements = [
        "SELECT identifiers",
        HISTORY,
        "INSERT identifiers",
        "SELECT identifiers",
        "INSERT accounts",
        "UPDATE identifiers",
        APPEND,
    ];
    // The profile and the name. The address is not cached.
    let commands = ["apply", "apply"];
    meter
        .costs("registration", [&statements, &commands], nothing, async |client, ()| {
            _ = register(client, &name()).await;
        })
        .await;

    // Rejected before the password is hashed.
    let held = async |system: &System| {
        let (id, name) = registered(system).await;
        delete(&system.client, id, PASSWORD).await.unwrap();
        name
    };
    meter
        .costs("a name that is held", [&["SELECT identifiers"], &[]], held, async |client, name| {
            let again = pb::RegisterRequest { email: "new@a.org".into(), ..registration(&name) };
            assert_rejected(try_register(client, again).await, Reason::NameTaken);
        })
        .await;

    let ensured = async |system: &System| {
        let name = name();
        ensure(&system.client, &name).await;
        name
    };
    meter
        .costs(
            "known external id",
            [&["SELECT identifiers"], &[]],
            ensured,
            async |client, name| {
                ensure(client, &name).await;
            },
        )
        .await;

    let open = [
        HISTORY,
        "SELECT accounts",
        "SELECT sessions",
        "SELECT guesses",
        "UPDATE accounts",
        "INSERT sessions",
        "DELETE guesses",
        APPEND,
    ];
    let statements = [&["SELECT identifiers"][..], &GUESS, &open].concat();
    for is_by_name in [true, false] {
        meter
            .costs("log-in", [&statements, &["apply"]], registered, async |client, (_, name)| {
                let address = format!("{name}@example.org");
                let login = if is_by_name { name } else { address };
                _ = login_as(client, &login, PASSWORD).await.unwrap();
            })
            .await;
    }
    // Known or unknown, a wrong password costs the same.
    let statements = [&["SELECT identifiers"][..], &GUESS].concat();
    for (is_known, domain) in [(true, ""), (true, "@example.org"), (false, ""), (false, "@a.org")] {
        let some_name = async |system: &System| match is_known {
            true => registered(system).await.1,
            false => name(),
        };
        meter
            .costs("wrong password", [&statements, &[]], some_name, async |client, name| {
                let login = format!("{name}{domain}");
                assert_rejected(login_as(client, &login, "wrong").await, Reason::BadCredentials);
            })
            .await;
    }

    let statements = [HISTORY, "SELECT accounts", "UPDATE accounts", APPEND];
    meter
        .costs("profile change", [&statements, &["apply"]], registered, async |client, (id, _)| {
            _ = set_bio(client, id, "here").await.unwrap();
        })
        .await;
    let statements = [HISTORY, "SELECT accounts"];
    meter
        .costs("no change", [&statements, &["apply"]], registered, async |client, (id, _)| {
            _ = set_bio(client, id, "").await.unwrap();
        })
        .await;

    let logged_in = async |system: &System| {
        let (id, name) = registered(system).await;
        (id, login(&system.client, &name, PASSWORD).await.unwrap())
    };
    let statements = [
        HISTORY,
        "SELECT accounts",
        "SELECT sessions",
        "UPDATE accounts",
        "DELETE sessions",
        APPEND,
    ];
    let used = async |system: &System| {
        let (id, token) = logged_in(system).await;
        assert_eq!(authenticate(&system.client, &token).await.unwrap(), id);
        (id, token)
    };
    let commands = ["HMGET", "GET", "apply"];
    meter
        .costs("log-out", [&statements, &commands], used, async |client, (_, token)| {
            logout(client, &token).await;
        })
        .await;
    // It is not of the cache, which may be behind after a failover. It locks nothing.
    let made_up = async |system: &System| {
        let (id, _) = used(system).await;
        unknown_token(id)
    };
    let cost = [&["load accounts"][..], &["HMGET", "GET"]];
    meter
        .costs("log-out with a made-up token", cost, made_up, async |client, token| {
            logout(client, &token).await;
        })
        .await;

    let change = [
        HISTORY,
        "SELECT accounts",
        "SELECT sessions",
        "SELECT guesses",
        "UPDATE accounts",
        "DELETE sessions",
        "DELETE guesses",
        APPEND,
    ];
    let statements = [&["SELECT accounts"][..], &GUESS, &change].concat();
    meter
        .costs("new password", [&statements, &["apply"]], logged_in, async |client, (id, _)| {
            change_password(client, id, PASSWORD, "battery staple").await;
        })
        .await;

    let delete_account = [
        HISTORY,
        "SELECT accounts",
        "SELECT sessions",
        "SELECT identifiers",
        "SELECT guesses",
        "DELETE accounts",
        "DELETE identifiers",
        "UPDATE identifiers",
        "DELETE sessions",
        "DELETE guesses",
        "INSERT deletions",
        APPEND,
    ];
    let statements = [&["SELECT accounts"][..], &GUESS, &delete_account].concat();
    let commands = ["apply", "apply", "apply"];
    meter
        .costs("deletion", [&statements, &commands], logged_in, async |client, (id, _)| {
            delete(client, id, PASSWORD).await.unwrap();
        })
        .await;
}

#[tokio::test]
async fn reads_of_what_is_cached_cost_no_statement() {
    let mut meter = Meter::start().await;
    let client = meter.system.client.clone();
    let ids = [register(&client, "ann").await.id, register(&client, "bob").await.id];
    let token = login(&client, "ann", PASSWORD).await.unwrap();
    let nothing = async |_: &System| {};
    let check = async |client: &Client, ()| {
        assert_eq!(authenticate(client, &token).await.unwrap(), ids[0]);
    };

    // A change removes the entry. The next read loads it.
    let changed = async |system: &System| {
        let other = login(&system.client, "ann", PASSWORD).await.unwrap();
        logout(&system.client, &other).await;
    };
    let commands = ["HMGET", "GET", "lease", "install"];
    meter
        .costs("a session check that loads", [&["load accounts"], &commands], changed, check)
        .await;
    // Over a shared connection, together with the mark, and then over one that is tracked.
    meter.costs("session check", [&[], &["PING"]], nothing, check).await;

    let read = async |client: &Client, ()| {
        let request = pb::BatchGetUsersRequest {
            user_ids: ids.into(),
            names: ["ann", "bob", "nobody"].map(str::to_owned).into(),
            session_token: token.clone(),
        };
        let found = client.clone().batch_get_users(request).await.unwrap().into_inner();
        assert_eq!((found.users.len(), found.named.len()), (2, 2));
        assert_eq!(found.session_user_id, ids[0]);
    };
    // Three reads side by side.
    meter.costs("users, names and a session", [&[], &["PING"]], nothing, read).await;
    meter
        .costs("availability", [&[], &["PING"]], nothing, async |client, ()| {
            assert!(!is_free(client, "ann").await);
        })
        .await;
    // What only the owner sees.
    meter
        .costs("account", [&["SELECT accounts"], &[]], nothing, async |client, ()| {
            let request = pb::GetAccountRequest { user_id: ids[0] };
            client.clone().get_account(request).await.unwrap();
        })
        .await;
}
