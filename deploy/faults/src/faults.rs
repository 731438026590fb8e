//! The table of faults. Add a fault here, with a function in one of the files below.

mod copies;
mod failover;
mod redis_loss;

use crate::{
    system::{Level, Setup, StoreKind},
    trial::Fault,
};

/// Returns all faults.
pub(crate) fn all() -> Vec<Fault> {
    [redis_losses(), copies(), failovers()].into_iter().flatten().collect()
}

fn redis_losses() -> Vec<Fault> {
    vec![
        Fault {
            name: "redis-lost",
            injected: "Redis is killed, its files are deleted, it starts empty; `microblog restore`",
            bites: "STORES_MISMATCHED",
            setups: vec![
                Setup::one(Level::Recorded),
                Setup::five(StoreKind::Cluster, Level::Recorded),
            ],
            inject: |trial| Box::pin(redis_loss::lost(trial)),
        },
        Fault {
            name: "redis-lost-local",
            injected: "as redis-lost, and the database is behind",
            bites: "STORES_MISMATCHED; only writes after the printed times are lost, and some are",
            setups: vec![Setup::one(Level::Local), Setup::five(StoreKind::Single, Level::Local)],
            inject: |trial| Box::pin(redis_loss::lost(trial)),
        },
    ]
}

fn copies() -> Vec<Fault> {
    vec![
        Fault {
            name: "redis-old-copy",
            injected: "the files of Redis are copied under load; later Redis is killed, and starts \
                       with the copy",
            bites: "lost changes are found",
            setups: vec![
                Setup::one(Level::Recorded),
                Setup::five(StoreKind::Single, Level::Recorded),
            ],
            inject: |trial| Box::pin(copies::old_redis(trial)),
        },
        Fault {
            name: "database-old-copy",
            injected: "a copy of the database of earlier is put back; once it is written anew, all \
                       data of Redis are lost; `microblog restore`",
            bites: "the copy is older; STORES_MISMATCHED",
            setups: vec![
                Setup::one(Level::Recorded),
                Setup::five(StoreKind::Single, Level::Recorded),
            ],
            inject: |trial| Box::pin(copies::old_database(trial)),
        },
    ]
}

fn failovers() -> Vec<Fault> {
    let setups = |level| {
        vec![Setup::five(StoreKind::Sentinel, level), Setup::five(StoreKind::Cluster, level)]
    };
    vec![
        Fault {
            name: "failover-local",
            injected: "the database stops, and a primary is cut off from its replica; after more \
                       writes it is killed, and the replica is promoted",
            bites: "a failover; acknowledged writes after the cut are lost",
            setups: setups(Level::Local),
            inject: |trial| Box::pin(failover::unrecorded(trial)),
        },
        Fault {
            name: "failover-replicated",
            injected: "a primary is cut off from its replica and killed later, and the replica is \
                       promoted",
            bites: "a failover; NOT_REPLICATED",
            setups: setups(Level::Replicated),
            inject: |trial| Box::pin(failover::replicated(trial)),
        },
        Fault {
            name: "failover-recorded",
            injected: "as failover-replicated",
            bites: "a failover; RECOVERING",
            setups: setups(Level::Recorded),
            inject: |trial| Box::pin(failover::recorded(trial)),
        },
        Fault {
            name: "failover-before-commit",
            injected: "as failover-recorded, while another transaction locks the positions",
            bites: "a failover; NOT_RECORDED",
            setups: vec![Setup::five(StoreKind::Sentinel, Level::Recorded)],
            inject: |trial| Box::pin(failover::before_commit(trial)),
        },
        Fault {
            name: "failover-before-trim",
            injected: "as failover-recorded, while the services may not trim journals",
            bites: "a failover; RECOVERING; rejected XTRIM",
            setups: vec![Setup::five(StoreKind::Sentinel, Level::Recorded)],
            inject: |trial| Box::pin(failover::before_trim(trial)),
        },
    ]
}
