//! Processes that are killed (SIGKILL) at any moment: what was acknowledged stays, a call whose outcome is
//! not known may be repeated, and no read that begins 15 s later is wrong.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use microblog_chassis::status::reason_of;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{Process, Store, eventually, redis::cmd};

use crate::support::{
    self, Client, Database, PASSWORD, PATIENCE, System, Topology, authenticate, client, login,
    on_each_store, registration, resolve, start_process, try_register,
};

/// The time after a fault in which a read may answer what it answered before.
const STALE: Duration = Duration::from_secs(15);

/// Processes on the same stores.
struct Processes {
    urls: [String; 2],
    running: Vec<(Process, Client)>,
    _redis: Store,
    _database: Database,
}

impl Processes {
    async fn start(count: usize) -> Self {
        let (redis, database) = (Store::start(Topology::Cluster).await, Database::postgres().await);
        let urls = [redis.url("user"), database.url()];
        let mut processes = Self { urls, running: Vec::new(), _redis: redis, _database: database };
        for _ in 0..count {
            let process = processes.start_one().await;
            processes.running.push(process);
        }
        processes
    }

    async fn start_one(&self) -> (Process, Client) {
        let [redis, database] = &self.urls;
        let process = start_process(redis, database, &[]).await;
        let client = client(&process.address());
        (process, client)
    }

    /// Kills a process, and starts another one in its place.
    async fn replace(&mut self, which: usize) {
        self.running[which].0.kill9();
        self.running[which] = self.start_one().await;
    }

    fn client(&self, n: usize) -> Client {
        self.running[n % self.running.len()].1.clone()
    }

    fn sql(&self, statement: &str) -> String {
        let Database::Postgres(server) = &self._database else { unreachable!() };
        server.sql(statement)
    }
}

/// All have the same name and the same address, and each a request of its own.
#[tokio::test]
async fn of_the_same_registrations_one_succeeds_though_processes_are_killed() {
    const CALLS: usize = 50;
    let mut processes = Processes::start(4).await;
    for round in 0..8 {
        let name = format!("ann{round}");
        let requests: Vec<_> = (0..CALLS).map(|_| registration(&name)).collect();
        let mut calls: FuturesUnordered<_> = requests
            .iter()
            .enumerate()
            .map(|(n, request)| {
                let (client, request) = (processes.client(n), request.clone());
                tokio::spawn(async move { (n, try_register(&client, request).await) })
            })
            .collect();
        // Before an answer, and after some.
        let mut answers = Vec::new();
        for _ in 0..round * 3 {
            answers.push(calls.next().await.unwrap().unwrap());
        }
        processes.running[round % 4].0.kill9();
        while let Some(answer) = calls.next().await {
            answers.push(answer.unwrap());
        }
        let mut acknowledged = HashSet::new();
        for (n, answer) in answers {
            match answer {
                Ok(user) => assert!(acknowledged.insert((n, user.id))),
                Err(status) if n % 4 == round % 4 => {
                    let is_taken = reason_of(&status) == Some(Reason::NameTaken);
                    assert!(is_taken || reason_of(&status).is_none(), "{status:?}");
                }
                Err(status) => assert_eq!(reason_of(&status), Some(Reason::NameTaken)),
            }
        }
        assert!(acknowledged.len() <= 1, "{acknowledged:?}");

        processes.replace(round % 4).await;
        // The request that has made the account returns it, whoever asks, and the others do not.
        let repeated = join_all(requests.iter().enumerate().map(|(n, request)| {
            let (client, request) = (processes.client(n + 1), request.clone());
            async move { (n, try_register(&client, request).await) }
        }));
        let mut winners = HashSet::new();
        for (n, answer) in repeated.await {
            match answer {
                Ok(user) => assert!(winners.insert((n, user.id))),
                Err(status) => assert_eq!(reason_of(&status), Some(Reason::NameTaken)),
            }
        }
        assert_eq!(winners.len(), 1, "{winners:?}");
        assert!(acknowledged.is_subset(&winners), "{acknowledged:?} {winners:?}");
        let (_, id) = winners.into_iter().next().unwrap();
        let accounts = format!("SELECT id FROM accounts WHERE name = '{name}'");
        assert_eq!(processes.sql(&accounts), id.to_string());
        let owned = format!("SELECT count(*) FROM identifiers WHERE account = {id}");
        assert_eq!(processes.sql(&owned), "2");
        for n in 0..4 {
            assert_eq!(resolve(&processes.client(n), &[&name]).await, [(name.clone(), id)]);
        }
    }
    support::assert_valid(&processes.client(0), 8).await;
}

/// All have the same address, and names of their own.
#[tokio::test]
async fn of_registrations_of_an_address_one_succeeds_though_processes_are_killed() {
    const CALLS: usize = 24;
    let mut processes = Processes::start(4).await;
    for round in 0..4 {
        let email = format!("ann{round}@example.org");
        let request = |n| pb::RegisterRequest {
            email: email.clone(),
            ..registration(&format!("ann{round}_{n}"))
        };
        let requests: Vec<_> = (0..CALLS).map(request).collect();
        let mut calls: FuturesUnordered<_> = requests
            .iter()
            .enumerate()
            .map(|(n, request)| {
                let (client, request) = (processes.client(n), request.clone());
                tokio::spawn(async move { (n, try_register(&client, request).await) })
            })
            .collect();
        for _ in 0..round * 4 {
            let _ = calls.next().await.unwrap().unwrap();
        }
        processes.running[round % 4].0.kill9();
        while let Some(answer) = calls.next().await {
            let (n, answer) = answer.unwrap();
            let Err(status) = answer else { continue };
            let is_victim = n % 4 == round % 4;
            let reason = reason_of(&status);
            assert!(
                reason == Some(Reason::EmailTaken) || is_victim && reason.is_none(),
                "{status:?}"
            );
        }
        processes.replace(round % 4).await;
        let mut winners = 0;
        for (n, request) in requests.iter().enumerate() {
            match try_register(&processes.client(n + 1), request.clone()).await {
                Ok(_) => winners += 1,
                Err(status) => assert_eq!(reason_of(&status), Some(Reason::EmailTaken)),
            }
        }
        assert_eq!(winners, 1);
    }
    support::assert_valid(&processes.client(0), 4).await;
}

on_each_store! {
    a_crash_keeps_acknowledged_registrations
}

/// Kills the service during registrations.
async fn a_crash_keeps_acknowledged_registrations(topology: Topology) {
    const TASKS: usize = 12;
    let redis = Store::start(topology).await;
    let database = match topology {
        Topology::Single => Database::sqlite(),
        Topology::Cluster => Database::postgres().await,
    };
    let urls = [redis.url("user"), database.url()];
    let process = start_process(&urls[0], &urls[1], &[]).await;
    let first = client(&process.address());
    let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
    let tasks = (0..TASKS).map(|task| {
        let (mut client, answered) = (first.clone(), answered.clone());
        tokio::spawn(async move {
            for i in 0.. {
                let request = registration(&format!("user_{task}_{i}"));
                match client.register(request.clone()).await {
                    Ok(answer) => answered.send(answer.into_inner().user.unwrap()).unwrap(),
                    Err(_) => return request,
                }
            }
            unreachable!("it is killed before")
        })
    });
    let tasks: Vec<_> = tasks.collect();
    drop(answered);
    let mut acknowledged = Vec::new();
    while acknowledged.len() < 25 {
        acknowledged.push(answers.recv().await.expect("all tasks were rejected"));
    }
    process.kill9();
    let mut unanswered = Vec::new();
    for task in tasks {
        unanswered.push(task.await.unwrap());
    }
    while let Some(user) = answers.recv().await {
        acknowledged.push(user);
    }
    assert_eq!(unanswered.len(), TASKS);

    let process = start_process(&urls[0], &urls[1], &[]).await;
    let later = client(&process.address());
    for user in &acknowledged {
        login(&later, &user.name, PASSWORD).await.unwrap();
    }
    for request in &unanswered {
        // The name is free, unless the registration completed and only its response was lost.
        let other = pb::RegisterRequest {
            request_id: registration("x").request_id,
            password: "another password".to_owned(),
            ..request.clone()
        };
        let made = try_register(&later, other).await;
        let same = try_register(&later, request.clone()).await;
        assert_ne!(made.is_ok(), same.is_ok(), "{made:?} {same:?}");
    }
    support::assert_valid(&later, (acknowledged.len() + TASKS) as u64).await;
}

/// The log-out is committed, and the process is killed before it can change the cache: the verifier of
/// another process does.
#[tokio::test]
async fn a_session_that_a_killed_process_has_ended_is_refused_soon() {
    let (redis, database) = (Store::start(Topology::Cluster).await, Database::postgres().await);
    let system = System::start_on(redis, database, &[]).await;
    let Database::Postgres(server) = &system.database else { unreachable!() };
    let ann = support::register(&system.client, "ann").await.id;
    for _ in 0..2 {
        let victim = start_process(&system.redis.url("user"), &system.database.url(), &[]).await;
        let ending = client(&victim.address());
        let token = login(&ending, "ann", PASSWORD).await.unwrap();
        let other = login(&ending, "ann", PASSWORD).await.unwrap();
        // It is cached.
        eventually("the sessions are cached", PATIENCE, async || {
            assert_eq!(authenticate(&system.client, &token).await.unwrap(), ann);
            let keys = system.keys(&format!("usr:*:sessions:*:{ann}")).await;
            keys.iter().any(|key| !key.contains(":lease:"))
        })
        .await;
        for node in system.redis.nodes() {
            let pause = cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").take();
            pause.exec_async(&mut node.admin().await).await.unwrap();
        }
        let request = pb::LogoutRequest { token: token.clone() };
        let mut called = ending.clone();
        let call = tokio::spawn(async move { called.logout(request).await.is_ok() });
        let gone = format!(
            "SELECT count(*) FROM sessions WHERE token = '{}'",
            support::fingerprint(&token)
        );
        eventually("the log-out is committed", PATIENCE, async || server.sql(&gone) == "0").await;
        victim.kill9();
        let killed = Instant::now();
        for node in system.redis.nodes() {
            let resume = cmd("CLIENT").arg("UNPAUSE").take();
            resume.exec_async(&mut node.admin().await).await.unwrap();
        }
        let _ = call.await;
        let mut refused = 0;
        while refused < 100 {
            let begun = killed.elapsed();
            match authenticate(&system.client, &token).await {
                // The entry may be trusted again before the verifier deletes it.
                Ok(_) => {
                    assert!(begun < STALE, "the session lives {begun:?} later");
                    refused = 0;
                }
                Err(status) => {
                    assert_eq!(reason_of(&status), Some(Reason::TokenInvalid));
                    refused += 1;
                }
            }
            assert_eq!(authenticate(&system.client, &other).await.unwrap(), ann);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    system.assert_valid(1).await;
}
