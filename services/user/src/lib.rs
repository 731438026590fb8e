//! The user service: accounts, their unique names and e-mail addresses, profiles, passwords and
//! sessions. Calls no other service, and knows nothing of who follows whom.
//!
//! A call goes through three rooms: `rpc` decodes it, checks every field and encodes the answer;
//! [`Accounts`] has the rules, one file for each group of them; [`store`] alone speaks Redis, one
//! method for each step. A step is one atomic function in one partition, and what belongs together
//! in several partitions is a protocol of such steps that may stop anywhere: [`registration`] says
//! how names and addresses stay unique all the same, and [`sweeper`] who sweeps up.
//!
//! What is secret (passwords, their hashes, tokens, addresses) has types whose `Debug` does not
//! show it, from where `rpc` has decoded it. The wire's own types show it: they go to no log.

mod accounts;
mod config;
mod credentials;
mod email;
mod error;
pub mod import;
mod keys;
mod login;
mod name;
mod password;
mod profile;
pub mod registration;
mod repair;
mod rpc;
mod sessions;
pub mod store;
pub mod sweeper;
mod throttle;
mod token;
mod verify;

use std::sync::Arc;

use microblog_chassis::{Listening, Service, Worker, identity::CallAuthorizer};
use microblog_keyspace::Keyspace;
use microblog_proto::user::{
    UserServiceGuard, UserServiceHandler,
    user_service_server::{SERVICE_NAME, UserServiceServer},
};
use tonic::service::Routes;

pub use accounts::Accounts;
pub use config::Config;
pub use email::Email;
pub use error::Error;
pub use login::Login;
pub use name::Name;
pub use password::{Hash, HashError, Hasher, Password, Permit};
pub use profile::{Draft, Part, Record, Registration, State, User};
pub use sessions::Session;
pub use store::{Claim, Holder, Kind, Store};
pub use sweeper::Sweeper;
pub use token::{Fingerprint, NoRandomness, Token};
pub use verify::Findings;

/// Returns the service for one worker. Succeeds while Redis is away: it is not ready then.
pub async fn service(config: &Config, worker: Worker) -> Result<Service, Error> {
    let keyspace = Keyspace::open(&config.redis, store::LIBRARY)?;
    let store = Store::new(keyspace);
    let hasher = Hasher::of_process(config.hashing_threads.into());
    hasher.warm_up().await?;
    let accounts =
        Accounts::new(store.clone(), hasher, config.session_ttl(), config.freed_name_hold());
    let mut background: Vec<futures::future::BoxFuture<'static, ()>> = Vec::new();
    if worker.is_first() {
        background.push(Box::pin(Sweeper::new(accounts.clone(), config.write_budget()).run()));
        background.push(Box::pin(sweeper::measure_clocks(store.clone())));
    }
    let rpc = Arc::new(UserServiceGuard::new(rpc::Rpc::new(accounts), CallAuthorizer));
    let handler: UserServiceHandler = rpc.clone();
    let server = UserServiceServer::from_arc(rpc)
        .max_decoding_message_size(config.chassis.max_message_bytes);
    Ok(Service {
        name: SERVICE_NAME,
        routes: Routes::new(server),
        handler: Some(Arc::new(handler)),
        ready: Arc::new(move || {
            let store = store.clone();
            Box::pin(async move { store.ready().await.is_ok() })
        }),
        background,
    })
}

/// Returns what one worker of the process listens for.
pub async fn listen(config: Config, worker: Worker) -> Result<Vec<Listening>, Error> {
    let service = service(&config, worker).await?;
    Ok(vec![Listening { address: config.listen, service }])
}
