//! The table of faults. Add a fault here, with a function in one of the files below.

mod copies;
mod database;
mod failover;
mod fanout;
mod network;
mod overload;
mod redis_loss;
mod redis_server;
mod servers;

use crate::{
    system::{Level, Passage, Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

/// Returns all faults.
pub(crate) fn all() -> Vec<Fault> {
    let groups = [
        server_faults(),
        network_faults(),
        redis_faults(),
        cluster_faults(),
        database_faults(),
        fanout_faults(),
        overloads(),
        redis_losses(),
        copies(),
        failovers(),
    ];
    groups.into_iter().flatten().collect()
}

fn redis_losses() -> Vec<Fault> {
    vec![
        Fault::new(
            "redis-lost",
            "Redis is killed, its files are deleted, it starts empty; `microblog restore`",
            "STORES_MISMATCHED",
            vec![Setup::one(Level::Recorded), Setup::five(StoreKind::Cluster, Level::Recorded)],
            |trial| Box::pin(redis_loss::lost(trial)),
        ),
        Fault::new(
            "redis-lost-local",
            "as redis-lost, and the database is behind",
            "STORES_MISMATCHED; only writes after the printed times are lost, and some are",
            vec![Setup::one(Level::Local), Setup::five(StoreKind::Single, Level::Local)],
            |trial| Box::pin(redis_loss::lost(trial)),
        ),
    ]
}

fn copies() -> Vec<Fault> {
    vec![
        Fault::new(
            "redis-old-copy",
            "the files of Redis are copied under load; later Redis is killed, and starts \
                       with the copy",
            "lost changes are found",
            vec![Setup::one(Level::Recorded), Setup::five(StoreKind::Single, Level::Recorded)],
            |trial| Box::pin(copies::old_redis(trial)),
        ),
        Fault::new(
            "database-old-copy",
            "a copy of the database of earlier is put back; once it is written anew, all \
                       data of Redis are lost; `microblog restore`",
            "the copy is older; STORES_MISMATCHED",
            vec![Setup::one(Level::Recorded), Setup::five(StoreKind::Single, Level::Recorded)],
            |trial| Box::pin(copies::old_database(trial)),
        ),
    ]
}

fn failovers() -> Vec<Fault> {
    let setups = |level| {
        vec![Setup::five(StoreKind::Sentinel, level), Setup::five(StoreKind::Cluster, level)]
    };
    vec![
        Fault::new(
            "failover-local",
            "the database stops, and a primary is cut off from its replica; after more \
                       writes it is killed, and the replica is promoted",
            "a failover; acknowledged writes after the cut are lost",
            setups(Level::Local),
            |trial| Box::pin(failover::unrecorded(trial)),
        ),
        Fault::new(
            "failover-replicated",
            "a primary is cut off from its replica and killed later, and the replica is \
                       promoted",
            "a failover; NOT_REPLICATED",
            setups(Level::Replicated),
            |trial| Box::pin(failover::replicated(trial)),
        ),
        Fault::new(
            "failover-recorded",
            "as failover-replicated",
            "a failover; RECOVERING",
            setups(Level::Recorded),
            |trial| Box::pin(failover::recorded(trial)),
        ),
        Fault::new(
            "failover-before-commit",
            "as failover-recorded, while another transaction locks the positions",
            "a failover; NOT_RECORDED",
            vec![Setup::five(StoreKind::Sentinel, Level::Recorded)],
            |trial| Box::pin(failover::before_commit(trial)),
        ),
        Fault::new(
            "failover-before-trim",
            "as failover-recorded, while the services may not trim journals",
            "a failover; RECOVERING; rejected XTRIM",
            vec![Setup::five(StoreKind::Sentinel, Level::Recorded)],
            |trial| Box::pin(failover::before_trim(trial)),
        ),
    ]
}

/// Returns what was seen by the clients: unknown outcomes.
fn seen_calls(trial: &Trial, since: usize) -> Bite {
    let unknown = trial.load.shared.log.unknown(since);
    Bite::seen_if(unknown > 0, format!("{unknown} unknown outcomes"))
}

/// A process for each service and a single Redis, at the level `recorded`.
fn five() -> Vec<Setup> {
    vec![Setup::five(StoreKind::Single, Level::Recorded)]
}

fn server_faults() -> Vec<Fault> {
    let mut faults = Vec::new();
    for service in ["gateway", "user", "relation", "post", "timeline"] {
        let bites = if service == "timeline" { "posts wait for delivery" } else { "failed calls" };
        faults.push(Fault::new(
            format!("{service}-killed"),
            format!("{service} is killed (SIGKILL), and starts again"),
            bites,
            five(),
            move |trial| Box::pin(servers::killed(trial, program(service))),
        ));
        faults.push(Fault::new(
            format!("{service}-frozen"),
            format!("{service} stops for 10 s (SIGSTOP), and goes on"),
            bites,
            five(),
            move |trial| Box::pin(servers::frozen(trial, program(service))),
        ));
    }
    faults.push(Fault::new(
        "all-killed",
        "`microblog up` is killed with all its servers and Redis, and starts again",
        "failed calls",
        vec![Setup::one(Level::Recorded)],
        |trial| Box::pin(servers::killed(trial, "microblog")),
    ));
    faults.push(Fault::new(
        "all-restarted",
        "each server is stopped (SIGTERM) and started again, one after the other",
        "all exit with 0",
        vec![
            Setup::five(StoreKind::Single, Level::Local),
            Setup::five(StoreKind::Cluster, Level::Recorded),
        ],
        |trial| Box::pin(servers::restarted(trial)),
    ));
    faults
}

/// Returns the program of a server.
fn program(service: &str) -> &'static str {
    match service {
        "gateway" => "microblog-gateway",
        "user" => "microblog-user",
        "relation" => "microblog-relation",
        "post" => "microblog-post",
        _ => "microblog-timeline",
    }
}

fn network_faults() -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut add = |name: String, injected: String, caller, callee, passage| {
        faults.push(Fault::new(name, injected, "lost or delayed messages", five(), move |trial| {
            Box::pin(network::impaired(trial, caller, callee, passage))
        }));
    };
    for service in ["user", "relation", "post", "timeline"] {
        add(
            format!("{service}-redis-cut"),
            format!("nothing passes between {service} and Redis for 10 s"),
            Some(service),
            "redis",
            Passage::Cut,
        );
    }
    for (caller, callee) in [
        ("gateway", "user"),
        ("gateway", "relation"),
        ("gateway", "post"),
        ("post", "timeline"),
        ("timeline", "relation"),
    ] {
        add(
            format!("{caller}-{callee}-cut"),
            format!("nothing passes between {caller} and {callee} for 10 s"),
            Some(caller),
            callee,
            Passage::Cut,
        );
    }
    for (caller, callee) in [("relation", "redis"), ("post", "redis"), ("gateway", "post")] {
        add(
            format!("{caller}-{callee}-one-way"),
            format!("no replies pass from {callee} to {caller} for 10 s"),
            Some(caller),
            callee,
            Passage::RepliesCut,
        );
    }
    add(
        "redis-slow".to_owned(),
        "each message from and to Redis takes 100 ms longer for 10 s".to_owned(),
        None,
        "redis",
        Passage::Delayed,
    );
    faults
}

fn redis_faults() -> Vec<Fault> {
    vec![
        Fault::new(
            "redis-killed",
            "Redis is killed (SIGKILL), and starts again with its data",
            "failed calls",
            vec![Setup::one(Level::Recorded), Setup::five(StoreKind::Single, Level::Recorded)],
            |trial| Box::pin(redis_server::killed(trial)),
        ),
        Fault::new(
            "redis-killed-fsync",
            "as redis-killed, with `appendfsync always`",
            "failed calls",
            vec![Setup::five(StoreKind::Single, Level::Local)],
            |trial| Box::pin(redis_server::killed_with_fsync(trial)),
        ),
        Fault::new(
            "redis-frozen",
            "Redis stops for 10 s (SIGSTOP), and goes on",
            "failed calls",
            five(),
            |trial| Box::pin(redis_server::frozen(trial)),
        ),
        Fault::new(
            "redis-truncated",
            "Redis is killed, and starts with the end of its append-only file cut off",
            "lost changes are found",
            vec![Setup::one(Level::Recorded), Setup::five(StoreKind::Single, Level::Recorded)],
            |trial| Box::pin(redis_server::truncated(trial)),
        ),
        Fault::new(
            "redis-full",
            "Redis reaches `maxmemory`, which is raised later",
            "STORE_FULL",
            five(),
            |trial| Box::pin(redis_server::full(trial)),
        ),
        Fault::new(
            "redis-disconnects",
            "Redis closes all connections, twenty times in 4 s",
            "closed connections",
            vec![
                Setup::five(StoreKind::Single, Level::Recorded),
                Setup::five(StoreKind::Cluster, Level::Recorded),
            ],
            |trial| Box::pin(redis_server::disconnected(trial)),
        ),
        Fault::new(
            "redis-functions-lost",
            "all functions are deleted, twenty times in 4 s",
            "libraries that were loaded again",
            five(),
            |trial| Box::pin(redis_server::without_functions(trial)),
        ),
    ]
}

fn cluster_faults() -> Vec<Fault> {
    let setups = || {
        vec![
            Setup::five(StoreKind::Cluster, Level::Local),
            Setup::five(StoreKind::Cluster, Level::Recorded),
        ]
    };
    vec![
        Fault::new(
            "failover-planned",
            "each replica takes over by `CLUSTER FAILOVER`",
            "failovers",
            setups(),
            |trial| Box::pin(redis_server::failed_over_as_planned(trial)),
        ),
        Fault::new(
            "slots-moved",
            "2,000 slots move to another primary and back by `redis-cli --cluster reshard`",
            "keys that moved",
            setups(),
            |trial| Box::pin(redis_server::slots_moved(trial)),
        ),
    ]
}

fn database_faults() -> Vec<Fault> {
    vec![
        Fault::new(
            "database-killed",
            "PostgreSQL is killed (SIGKILL), and starts again",
            "NOT_RECORDED",
            five(),
            |trial| Box::pin(database::killed(trial)),
        ),
        Fault::new(
            "database-frozen",
            "PostgreSQL stops (SIGSTOP), and goes on",
            "NOT_RECORDED",
            five(),
            |trial| Box::pin(database::frozen(trial)),
        ),
        Fault::new(
            "database-disconnects",
            "PostgreSQL ends all connections, twenty times in 4 s",
            "ended connections",
            five(),
            |trial| Box::pin(database::disconnected(trial)),
        ),
        Fault::new(
            "database-read-only",
            "PostgreSQL accepts no writes, as with a full disk, and accepts them again",
            "NOT_RECORDED",
            five(),
            |trial| Box::pin(database::read_only(trial)),
        ),
    ]
}

fn fanout_faults() -> Vec<Fault> {
    vec![
        Fault::new(
            "timelines-lost",
            "all cached timelines are deleted, ten times in 2 s",
            "deleted timelines",
            five(),
            |trial| Box::pin(fanout::timelines_lost(trial)),
        ),
        Fault::new(
            "jobs-repeated",
            "fan-out jobs are added twice more, late and in another order",
            "added jobs",
            five(),
            |trial| Box::pin(fanout::jobs_repeated(trial)),
        ),
        Fault::new(
            "jobs-poisoned",
            "entries that are no jobs are added to all fan-out streams",
            "entries that stay pending",
            five(),
            |trial| Box::pin(fanout::poisoned(trial)),
        ),
        Fault::new(
            "groups-lost",
            "the consumer groups of fan-out are deleted, ten times in 2 s",
            "groups that were created again",
            five(),
            |trial| Box::pin(fanout::groups_lost(trial)),
        ),
        Fault::new(
            "streams-lost",
            "the fan-out streams are deleted with their jobs, ten times in 2 s",
            "streams that were created again",
            five(),
            |trial| Box::pin(fanout::streams_lost(trial)),
        ),
    ]
}

fn overloads() -> Vec<Fault> {
    let setups = || vec![Setup::one(Level::Local), Setup::five(StoreKind::Single, Level::Recorded)];
    vec![
        Fault::new(
            "connections-dropped",
            "2,500 connections to the gateway are opened and dropped in 5 s, some amid a request",
            "opened connections",
            setups(),
            |trial| Box::pin(overload::connections_dropped(trial)),
        ),
        Fault::new(
            "cold-timeline",
            "2,000 calls at once read one home timeline that is not cached",
            "pages, all of them equal",
            five(),
            |trial| Box::pin(overload::cold_timeline(trial)),
        ),
    ]
}
