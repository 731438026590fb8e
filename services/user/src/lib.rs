//! The user service: accounts, their unique names and e-mail addresses, profiles, passwords and
//! sessions. Calls no other service.
//!
//! The database has the accounts. A name, an address or an external id is one row, so no two accounts have
//! it. A call that writes is one transaction (`group`): it locks the rows that it needs, and
//! `steps` has the rules. Redis and the processes cache what is read often (`items`): the public part of
//! an account, who has a name, and sessions. What only its owner sees, a password's hash among it, is read
//! from the database.
//!
//! Secrets (passwords, hashes, tokens, addresses) have types whose `Debug` hides the value. Wire
//! types show it and must not be logged.

mod accounts;
mod address;
mod background;
mod changes;
mod config;
mod credentials;
mod email;
mod error;
mod expiry;
mod external_accounts;
mod group;
mod identifier;
mod import;
mod items;
mod login;
mod name;
mod password;
mod profile;
mod registration;
mod rpc;
mod sessions;
mod steps;
mod tables;
mod throttle;
mod token;
mod verify;
mod wire;

use std::{process::ExitCode, sync::Arc};

use clap::Parser as _;
use microblog_chassis::{CallAuthorizer, Service, ServiceListener, Worker};
use microblog_keyspace::{self as keyspace, Keyspace};
use microblog_proto::user::{
    UserServiceGuard, UserServiceHandler,
    user_service_server::{SERVICE_NAME, UserServiceServer},
};
use microblog_record::Database;
use microblog_storage::{Cache, Item as _, Reader, Tables, Trust, Writer};
use tonic::service::Routes;

pub use config::Config;
pub use password::HashError;

use crate::{
    accounts::Accounts, group::Calls, items::AccountItem, password::Hasher, tables::MIGRATIONS,
};

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Redis address is not valid.
    #[error("the cache cannot be opened")]
    Cache(#[from] keyspace::Error),
    /// The address of the database is not valid, or no service can use the database.
    #[error("the database cannot be opened")]
    Database(#[from] microblog_record::OpenError),
    /// Passwords cannot be hashed.
    #[error("password hashing failed")]
    Hash(#[from] HashError),
}

/// Returns the service for one worker thread of a process. Does not wait for Redis.
pub async fn service(config: &Config, worker: Worker) -> Result<Service, StartError> {
    let database = Database::open(&config.database)?;
    if worker.is_first() {
        database.check_at_start().await?;
    }
    let keyspace = Keyspace::open(&config.redis, AccountItem::LIBRARY)?;
    let hasher = Hasher::of_process(config.hashing_threads.into());
    hasher.warm_up().await?;
    let cache = Cache::new(keyspace.clone());
    let tables = Tables::new(database, &MIGRATIONS);
    let trust = Trust::start(tables.clone(), keyspace.clone(), AccountItem::PREFIX);
    let [writer, bulk_writer] =
        [(); 2].map(|()| Writer::start(Calls, tables.clone(), cache.clone(), trust.clone()));
    let accounts = Accounts {
        reader: Reader::new(tables.clone(), keyspace.clone(), trust),
        tables: tables.clone(),
        writer,
        bulk_writer,
        hasher,
        session_ttl: config.session_ttl(),
        freed_name_hold: config.freed_name_hold(),
        uses: Arc::default(),
    };
    let background = match worker.is_first() {
        true => background::jobs(&tables, &keyspace),
        false => Vec::new(),
    };
    let max_message_bytes = config.chassis.max_message_bytes;
    let rpc = Arc::new(UserServiceGuard::new(rpc::Rpc::new(accounts), CallAuthorizer));
    let handler: UserServiceHandler = rpc.clone();
    let server = UserServiceServer::from_arc(rpc).max_decoding_message_size(max_message_bytes);
    // Without Redis, the database answers.
    let ready = Arc::new(move || {
        let tables = tables.clone();
        Box::pin(async move { tables.database().await.is_ok() }) as _
    });
    let handler = Some(Arc::new(handler) as _);
    Ok(Service {
        name: SERVICE_NAME,
        routes: Routes::new(server),
        handler,
        web: None,
        ready,
        background,
    })
}

/// The program: parses flags and runs the service. `microblog` also calls it, under this program's name.
pub fn main() -> ExitCode {
    let config = Config::parse();
    microblog_chassis::run(&config.chassis.clone(), move |worker| listen(config.clone(), worker))
}

async fn listen(config: Config, worker: Worker) -> Result<Vec<ServiceListener>, StartError> {
    let service = service(&config, worker).await?;
    Ok(vec![ServiceListener { address: config.listen, service }])
}
