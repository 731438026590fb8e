//! What `Verify` finds, and that it finds nothing where nothing is wrong.

use microblog_testkit::{eventually, redis::cmd};

use crate::support::{
    Client, PASSWORD, PATIENCE, System, Topology, authenticate, delete, digest, fingerprint, login,
    logout, now_ms, on_each_store, register, resolve, set_bio, unknown_token, verify,
};

on_each_store! {
    rows_that_disagree_are_violations
    an_entry_that_differs_from_the_database_is_a_violation
    a_healthy_system_has_no_violations
}

async fn violations(client: &Client) -> Vec<String> {
    let mut violations = verify(client).await.violations;
    violations.sort_unstable();
    violations
}

async fn rows_that_disagree_are_violations(topology: Topology) {
    let system = System::start(topology).await;
    let client = &system.client;
    let mut ids = Vec::new();
    for name in ["ann", "bob", "carl", "dora", "eve"] {
        ids.push(register(client, name).await.id);
    }
    let [ann, bob, carl, dora, eve] = ids[..] else { unreachable!() };
    assert_eq!(verify(client).await.checked, 5);
    let key = |text: &str| digest(text);
    // What is done, what undoes it, and what is found.
    let name = key("name ann");
    let address = key("email bob@example.org");
    let nobody = key("name nobody");
    let carls = key("name carl");
    let token = fingerprint(&unknown_token(4_096));
    let cases = [
        (
            format!("UPDATE identifiers SET digest = 1 WHERE digest = {name}"),
            format!("UPDATE identifiers SET digest = {name} WHERE digest = 1"),
            format!("nobody has the name of account {ann}"),
        ),
        (
            format!("UPDATE identifiers SET account = {ann} WHERE digest = {address}"),
            format!("UPDATE identifiers SET account = {bob} WHERE digest = {address}"),
            format!("{ann} has the address of account {bob}"),
        ),
        (
            format!("UPDATE identifiers SET account = {dora} WHERE digest = {carls}"),
            format!("UPDATE identifiers SET account = {carl} WHERE digest = {carls}"),
            format!("{dora} has the name of account {carl}"),
        ),
        (
            format!(
                "INSERT INTO identifiers (digest, value, account, held_until, revision) \
                 VALUES ({nobody}, 'name nobody', 4096, 0, 9)"
            ),
            format!("DELETE FROM identifiers WHERE digest = {nobody}"),
            "an identifier is of 4096, which is no account".to_owned(),
        ),
        (
            format!(
                "INSERT INTO sessions (account, token, made, used, expires) \
                 VALUES (4096, '{token}', 1, 1, {})",
                now_ms() + 1_000_000
            ),
            "DELETE FROM sessions WHERE account = 4096".to_owned(),
            "a session is of 4096, which is no account".to_owned(),
        ),
        (
            format!("UPDATE accounts SET name = 'no name' WHERE id = {eve}"),
            format!("UPDATE accounts SET name = 'eve' WHERE id = {eve}"),
            format!("account {eve} has an invalid name"),
        ),
    ];
    for (damage, repair, expected) in cases {
        system.execute(&damage).await;
        system.flush().await;
        assert_eq!(violations(client).await, [expected], "{damage}");
        system.execute(&repair).await;
        system.flush().await;
        assert_eq!(violations(client).await, [""; 0], "{repair}");
    }
    system.assert_valid(5).await;
}

/// Returns the key of an entry, once reads have cached it.
async fn cached(system: &System, pattern: &str, read: impl AsyncFn()) -> String {
    let mut entry = None;
    eventually("the entry is cached", PATIENCE, async || {
        read().await;
        let keys = system.keys(pattern).await;
        entry = keys.into_iter().find(|key| !key.contains(":lease:") && !key.contains(":set:"));
        entry.is_some()
    })
    .await;
    entry.unwrap()
}

/// Replaces the bytes of an entry, at the server that has it.
async fn replace(system: &System, key: &str, change: impl Fn(&mut Vec<u8>)) {
    for node in system.redis.nodes() {
        let mut admin = node.admin().await;
        let entry: Result<Option<Vec<u8>>, _> = cmd("GET").arg(key).query_async(&mut admin).await;
        if let Ok(Some(mut entry)) = entry {
            change(&mut entry);
            cmd("SET").arg(key).arg(entry).exec_async(&mut admin).await.unwrap();
        }
    }
}

async fn an_entry_that_differs_from_the_database_is_a_violation(topology: Topology) {
    let system = System::start(topology).await;
    let client = &system.client;
    let ann = register(client, "ann").await.id;
    set_bio(client, ann, "here").await.unwrap();
    let token = login(client, "ann", PASSWORD).await.unwrap();
    let name = digest("name ann");
    for (kind, id) in [("profile", ann), ("sessions", ann), ("name", name)] {
        let read = async || match kind {
            "profile" => _ = client.clone().get_user(get(ann)).await.unwrap(),
            "sessions" => _ = authenticate(client, &token).await.unwrap(),
            _ => _ = resolve(client, &["ann"]).await,
        };
        let key = cached(&system, &format!("usr:*:{kind}:*:{id}"), read).await;
        system.assert_valid(1).await;
        // The last byte: of the biography, of the time of the session's end, of the account of the name.
        replace(&system, &key, |entry| *entry.last_mut().unwrap() ^= 1).await;
        let expected = format!("{kind} of {ann}: the cache differs from the database");
        // Before a primary is trusted again, nothing is read from it.
        eventually("the difference is found", PATIENCE, async || {
            violations(client).await == [expected.clone()]
        })
        .await;
        replace(&system, &key, |entry| *entry.last_mut().unwrap() ^= 1).await;
        assert_eq!(violations(client).await, [""; 0], "{kind}");
    }
}

fn get(user_id: u64) -> microblog_proto::user::GetUserRequest {
    microblog_proto::user::GetUserRequest { user_id }
}

/// Everything is cached, also sessions that have expired, and names of accounts that are gone.
async fn a_healthy_system_has_no_violations(topology: Topology) {
    let flags = ["--session-ttl-s", "2", "--freed-name-hold-s", "1"];
    let system = System::start_with(topology, &flags).await;
    let client = &system.client;
    let lasting = system.another(&["--freed-name-hold-s", "1"]).await;
    let mut tokens = Vec::new();
    for n in 0..10 {
        let name = format!("user{n}");
        let id = register(client, &name).await.id;
        let short = login(client, &name, PASSWORD).await.unwrap();
        tokens.push((id, login(&lasting, &name, PASSWORD).await.unwrap(), short));
    }
    let deleted = register(client, "gone").await.id;
    delete(client, deleted, PASSWORD).await.unwrap();
    let names: Vec<String> = (0..10).map(|n| format!("user{n}")).chain(["gone".into()]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    eventually("the short sessions have expired, and all is cached", PATIENCE, async || {
        let mut are_over = true;
        for (id, lasting, short) in &tokens {
            assert_eq!(authenticate(client, lasting).await.unwrap(), *id);
            are_over &= authenticate(client, short).await.is_err();
            client.clone().get_user(get(*id)).await.unwrap();
        }
        assert_eq!(resolve(client, &names).await.len(), 10);
        let mut cached = 0;
        for pattern in ["usr:*:sessions:*", "usr:*:name:*", "usr:*:profile:*"] {
            cached += system.keys(pattern).await.len();
        }
        are_over && cached >= 31
    })
    .await;
    assert_eq!(violations(client).await, [""; 0]);
    // The rows go, and the entries stay.
    system.execute(&format!("DELETE FROM sessions WHERE expires < {}", now_ms())).await;
    system.execute("DELETE FROM identifiers WHERE account = 0").await;
    assert_eq!(violations(client).await, [""; 0]);
    for (_, lasting, _) in &tokens[..5] {
        logout(client, lasting).await;
    }
    assert_eq!(verify(client).await.pending.len(), 1);
    system.assert_valid(10).await;
}
