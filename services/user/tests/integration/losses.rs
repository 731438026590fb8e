//! Redis may vanish at any moment: nothing is lost, nothing is wrong, nobody is logged out, and no call
//! fails.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use futures::future::{join, join_all};
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{Store, eventually, redis::cmd};

use crate::support::{
    Client, Database, Guesses, PASSWORD, PATIENCE, STRICT, System, Topology, assert_rejected,
    authenticate, change_password, delete, is_free, login, login_as, logout, on_each_store,
    register, registration, resolve, set_bio, try_register, verify,
};

on_each_store! {
    nothing_is_lost_and_no_call_fails_while_redis_is_emptied
    a_loss_of_redis_logs_nobody_out_and_forgets_no_guess
}

/// What a lane of calls has left.
#[derive(Default)]
struct Lane {
    rounds: usize,
    names: Vec<(String, u64)>,
    alive: Vec<(String, u64)>,
    ended: Vec<String>,
}

async fn bio(client: &Client, user_id: u64) -> String {
    let request = pb::GetUserRequest { user_id };
    client.clone().get_user(request).await.unwrap().into_inner().user.unwrap().bio
}

/// Takes steps with accounts of its own, whose state it knows, through two processes.
async fn run(lane: usize, clients: &[Client; 2], until: Instant) -> Lane {
    let mut left = Lane::default();
    let [here, there] = clients;
    while Instant::now() < until || left.rounds == 0 {
        let name = format!("lane{lane}_{}", left.rounds);
        assert!(is_free(there, &name).await);
        // Both at once.
        let own = registration(&name);
        let other = pb::RegisterRequest { email: format!("{name}@a.org"), ..registration(&name) };
        let (own, other) = join(try_register(here, own), try_register(there, other)).await;
        let (won, lost) = if own.is_ok() { (own, other) } else { (other, own) };
        assert_rejected(lost, Reason::NameTaken);
        let id = won.unwrap().id;
        assert!(!is_free(there, &name).await);
        assert_eq!(resolve(there, &[&name]).await, [(name.clone(), id)]);
        let [first, second] = [
            login_as(here, &name, PASSWORD).await.unwrap(),
            login_as(there, &name, PASSWORD).await.unwrap(),
        ];
        for n in 0..10 {
            for client in clients {
                assert_eq!(authenticate(client, &first).await.unwrap(), id);
                assert_eq!(authenticate(client, &second).await.unwrap(), id);
            }
            let text = format!("bio {n}");
            set_bio(&clients[n % 2], id, &text).await.unwrap();
            for client in clients {
                assert_eq!(bio(client, id).await, text);
            }
            for (token, id) in left.alive.iter().rev().take(3) {
                assert_eq!(authenticate(&clients[n % 2], token).await.unwrap(), *id);
            }
            for token in left.ended.iter().rev().take(3) {
                assert_rejected(authenticate(&clients[n % 2], token).await, Reason::TokenInvalid);
            }
        }
        if left.rounds % 3 == 2 {
            change_password(there, id, PASSWORD, "battery staple").await;
            assert_rejected(authenticate(here, &second).await, Reason::TokenInvalid);
            let third = login_as(here, &name, "battery staple").await.unwrap();
            left.ended.push(second);
            left.alive.push((third, id));
        } else {
            logout(there, &first).await;
            left.alive.push((second, id));
        }
        for client in clients {
            assert_rejected(authenticate(client, &first).await, Reason::TokenInvalid);
        }
        left.ended.push(first);
        left.names.push((name, id));
        left.rounds += 1;
    }
    left
}

async fn nothing_is_lost_and_no_call_fails_while_redis_is_emptied(topology: Topology) {
    STRICT.scope((), empty_redis_under_load(topology)).await;
}

async fn empty_redis_under_load(topology: Topology) {
    const RUN: Duration = Duration::from_secs(8);
    let system = System::start(topology).await;
    let clients = [system.client.clone(), system.another(&[]).await];
    let read = system.entries_read().await;
    let until = Instant::now() + RUN;
    let (is_over, over) = tokio::sync::oneshot::channel::<()>();
    let emptied = async {
        let mut times = 0;
        let mut over = over;
        while over.try_recv().is_err() {
            system.flush().await;
            // In the longer ones, reads rely on the cache again.
            tokio::time::sleep(Duration::from_millis([200, 500, 900][times % 3])).await;
            times += 1;
        }
        times
    };
    let lanes = async {
        let lanes = join_all((0..6).map(|lane| run(lane, &clients, until))).await;
        is_over.send(()).unwrap();
        lanes
    };
    let (times, lanes) = join(emptied, lanes).await;
    assert!(times > 5, "{times}");
    assert!(system.entries_read().await > read, "no read has asked the cache");

    let names: Vec<_> = lanes.iter().flat_map(|lane| &lane.names).collect();
    let ids: HashSet<u64> = names.iter().map(|(_, id)| *id).collect();
    assert_eq!(ids.len(), names.len());
    for lane in &lanes {
        let texts: Vec<&str> = lane.names.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(resolve(&clients[1], &texts).await, lane.names);
        for (token, id) in &lane.alive {
            assert_eq!(authenticate(&clients[0], token).await.unwrap(), *id);
        }
        for token in &lane.ended {
            assert_rejected(authenticate(&clients[1], token).await, Reason::TokenInvalid);
        }
    }
    system.assert_valid(names.len() as u64).await;
    // The cache fills again.
    system.caches().await;
    for lane in &lanes {
        for (token, id) in &lane.alive {
            assert_eq!(authenticate(&clients[0], token).await.unwrap(), *id);
        }
    }
    system.assert_valid(names.len() as u64).await;
    assert_eq!(verify(&clients[1]).await.pending, [""; 0]);
}

/// The time after a loss in which a read may answer without the last changes.
const STALE: Duration = Duration::from_secs(15);

/// How a Redis is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// It loses its data (FLUSHALL).
    Emptied,
    /// It accepts no further data (`maxmemory`).
    Full,
    /// It does not answer (SIGSTOP).
    Stopped,
    /// It is gone (SIGKILL).
    Killed,
}

impl Loss {
    async fn begin(self, system: &System) {
        for node in system.redis.nodes() {
            match self {
                Self::Emptied => cmd("FLUSHALL").exec_async(&mut node.admin().await).await.unwrap(),
                Self::Full => set_memory(node, "1").await,
                Self::Stopped => node.pause(),
                Self::Killed => node.kill(),
            }
        }
    }

    async fn end(self, system: &System) {
        for node in system.redis.nodes() {
            match self {
                Self::Emptied => {}
                Self::Full => set_memory(node, "0").await,
                Self::Stopped => node.resume(),
                Self::Killed => node.restart().await,
            }
        }
    }
}

async fn set_memory(node: &microblog_testkit::RedisServer, bytes: &str) {
    let mut limit = cmd("CONFIG");
    limit.arg("SET").arg("maxmemory").arg(bytes);
    limit.exec_async(&mut node.admin().await).await.unwrap();
}

async fn a_loss_of_redis_logs_nobody_out_and_forgets_no_guess(topology: Topology) {
    STRICT.scope((), lose_redis(topology)).await;
}

async fn lose_redis(topology: Topology) {
    let system = System::start(topology).await;
    let client = &system.client;
    let mut tokens = Vec::new();
    for n in 0..5 {
        let name = format!("user{n}");
        let id = register(client, &name).await.id;
        tokens.push((login(client, &name, PASSWORD).await.unwrap(), id));
    }
    let others = register(client, "others").await.id;
    let all_in = async |client: &Client, tokens: &[(String, u64)]| {
        for (token, id) in tokens {
            assert_eq!(authenticate(client, token).await.unwrap(), *id);
        }
    };
    for loss in [Loss::Emptied, Loss::Full, Loss::Stopped, Loss::Killed] {
        let name = format!("{loss:?}");
        let guessed = register(client, &name).await.id;
        system.caches().await;
        all_in(client, &tokens).await;
        system.set_failures(Guesses::Account(guessed), 11).await;
        assert_rejected(login(client, &name, "wrong").await, Reason::BadCredentials);

        loss.begin(&system).await;
        all_in(client, &tokens).await;
        assert_rejected(login(client, &name, PASSWORD).await, Reason::LoginThrottled);
        assert_rejected(login_as(client, &name, PASSWORD).await, Reason::LoginThrottled);
        assert_eq!(set_bio(client, others, &name).await.unwrap().bio, name);
        assert_eq!(bio(client, others).await, name);
        let [ended, opened] =
            [(); 2].map(|()| async { login(client, "others", PASSWORD).await.unwrap() });
        let (ended, opened) = (ended.await, opened.await);
        logout(client, &ended).await;
        assert_rejected(authenticate(client, &ended).await, Reason::TokenInvalid);
        assert_eq!(authenticate(client, &opened).await.unwrap(), others);
        // A process that has never seen Redis.
        let later = system.another(&[]).await;
        all_in(&later, &tokens).await;
        assert_rejected(authenticate(&later, &ended).await, Reason::TokenInvalid);

        loss.end(&system).await;
        let ended_at = Instant::now();
        for _ in 0..20 {
            all_in(client, &tokens).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // What was changed meanwhile, an entry may lack until the verifier deletes it.
        let mut right = 0;
        while right < 20 {
            let begun = ended_at.elapsed();
            let is_right = authenticate(client, &ended).await.is_err()
                && authenticate(client, &opened).await.is_ok();
            assert!(is_right || begun < STALE, "{loss:?}: a read is wrong {begun:?} later");
            right = if is_right { right + 1 } else { 0 };
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if matches!(loss, Loss::Stopped) {
            // Its marks may be relied on again before the verifier has passed.
            tokio::time::sleep(STALE.saturating_sub(ended_at.elapsed())).await;
        }
        tokens.push((opened, others));
        assert_rejected(login(client, &name, PASSWORD).await, Reason::LoginThrottled);
    }
    system.caches().await;
    all_in(client, &tokens).await;
    system.assert_valid(10).await;
}

#[tokio::test]
async fn a_redis_that_comes_back_from_an_old_disk_accepts_no_ended_session() {
    let redis = Store::start(Topology::Single).await;
    let system = System::start_on(redis, Database::postgres().await, &[]).await;
    let client = &system.client;
    let ann = register(client, "ann").await.id;
    let bob = register(client, "bob").await.id;
    let ended = login(client, "ann", PASSWORD).await.unwrap();
    eventually("the sessions and the name are cached", PATIENCE, async || {
        assert_eq!(authenticate(client, &ended).await.unwrap(), ann);
        assert_eq!(resolve(client, &["bob"]).await, [("bob".to_owned(), bob)]);
        let cached = [
            system.keys(&format!("usr:*:sessions:*:{ann}")).await,
            system.keys(&format!("usr:*:name:*:{}", crate::support::digest("name bob"))).await,
        ];
        cached.iter().all(|keys| !keys.is_empty())
    })
    .await;
    let server = &system.redis.nodes()[0];
    let mut admin = server.admin().await;
    cmd("SAVE").exec_async(&mut admin).await.unwrap();
    // What follows is on no disk.
    logout(client, &ended).await;
    let opened = login(client, "ann", PASSWORD).await.unwrap();
    delete(client, bob, PASSWORD).await.unwrap();
    assert_eq!(authenticate(client, &opened).await.unwrap(), ann);
    server.kill();
    server.restart().await;
    for _ in 0..50 {
        assert_rejected(authenticate(client, &ended).await, Reason::TokenInvalid);
        assert_eq!(authenticate(client, &opened).await.unwrap(), ann);
        assert_eq!(resolve(client, &["bob"]).await, []);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    system.caches().await;
    assert_rejected(authenticate(client, &ended).await, Reason::TokenInvalid);
    system.assert_valid(1).await;
}
