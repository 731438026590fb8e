//! The user service: accounts, their unique names and e-mail addresses, profiles, passwords and
//! sessions. Calls no other service.
//!
//! A call passes three layers. `rpc` decodes and validates the request, and encodes the response,
//! with `wire`. [`Accounts`] has the rules, one file per group. [`store`] alone calls Redis, one method per
//! step. A step is one atomic function in one partition. An operation over several partitions is a
//! sequence of steps that may stop anywhere: [`registration`] says how names and addresses stay
//! unique, and [`sweeper`] aborts stale registrations.
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
mod external_accounts;
mod identifier;
pub mod import;
mod journal;
mod keys;
mod login;
mod name;
mod password;
mod profile;
mod record;
pub mod registration;
mod repair;
mod rpc;
mod sessions;
pub mod store;
pub mod sweeper;
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
use tonic::service::Routes;

pub use accounts::Accounts;
pub use address::{Address, ExternalId};
pub use config::Config;
pub use email::Email;
pub use error::Error;
pub use external_accounts::{EnsureRequest, Ensured};
pub use identifier::{Identifier, IdentifierKind};
pub use journal::JournalEntry;
pub use login::Login;
pub use name::Name;
pub use password::{Hash, HashError, Hasher, Password, Permit};
pub use profile::{Draft, ProfileField, Record, Registration, State, User};
pub use record::{AccountTables, recorder};
pub use sessions::Session;
pub use store::{ClaimOwner, Store};
pub use sweeper::Sweeper;
pub use token::{Fingerprint, RngError, Token};
pub use verify::Report;

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Redis address is not valid.
    #[error("the store cannot be opened")]
    Store(#[from] keyspace::Error),
    /// The address of the database is not valid, or no service can use the database.
    #[error("the database cannot be opened")]
    Database(#[from] microblog_record::OpenError),
    /// Passwords cannot be hashed.
    #[error("password hashing failed")]
    Hash(#[from] HashError),
}

/// Returns the service for one worker thread of a process. Does not wait for Redis.
pub async fn service(config: &Config, worker: Worker) -> Result<Service, StartError> {
    let store = Store::new(Keyspace::open(&config.redis, store::LIBRARY)?);
    let hasher = Hasher::of_process(config.hashing_threads.into());
    hasher.warm_up().await?;
    let accounts =
        Accounts::new(store.clone(), hasher, config.session_ttl(), config.freed_name_hold());
    let database = Database::open(&config.database)?;
    if let Some(database) = database.as_ref().filter(|_| worker.is_first()) {
        database.check_at_start().await?;
    }
    let recorder = database.map(|database| Arc::new(recorder(accounts.clone(), database)));
    config.durability.set_up(recorder.as_ref())?;
    let background = match worker.is_first() {
        true => background::jobs(&accounts, config.write_budget(), recorder.as_ref()),
        false => Vec::new(),
    };
    let max_message_bytes = config.chassis.max_message_bytes;
    let rpc = Arc::new(UserServiceGuard::new(rpc::Rpc::new(accounts, recorder), CallAuthorizer));
    let handler: UserServiceHandler = rpc.clone();
    let server = UserServiceServer::from_arc(rpc).max_decoding_message_size(max_message_bytes);
    let ready = Arc::new(move || {
        let store = store.clone();
        Box::pin(async move { store.ready().await.is_ok() }) as _
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
