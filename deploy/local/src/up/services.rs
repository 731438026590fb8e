//! The servers of the process: which there are, how they are configured, and who calls whom. The
//! one place to extend when a service is added.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::Context as _;
use clap::Parser;
use microblog_chassis::{Config as Chassis, Listening, Peer, Worker};

use super::access::Access;

/// A server of the process, as callers see it.
pub(super) struct Server {
    /// What people call it.
    pub(super) name: &'static str,
    /// The full name of its gRPC service.
    pub(super) service: &'static str,
    /// Its port, counted from the first one.
    offset: u16,
}

/// All servers, in the order of their ports.
pub(super) const SERVERS: [Server; 4] = [
    Server { name: "gateway", service: "microblog.gateway.v1.GatewayService", offset: 0 },
    Server { name: "user", service: "microblog.user.v1.UserService", offset: 1 },
    Server { name: "relation", service: "microblog.relation.v1.RelationService", offset: 2 },
    Server { name: "post", service: "microblog.post.v1.PostService", offset: 3 },
];

impl Server {
    /// Returns the address to listen on.
    pub(super) fn address(&self, port_base: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port_base + self.offset).into()
    }

    /// Returns the address to call it at.
    pub(super) fn url(&self, port_base: u16) -> String {
        format!("http://{}", self.address(port_base))
    }
}

/// Returns the ports of all servers.
pub(super) fn ports(port_base: u16) -> impl Iterator<Item = u16> {
    SERVERS.iter().map(move |server| server.address(port_base).port())
}

/// The configurations of all servers.
#[derive(Clone)]
pub(super) struct Plan(Arc<Configs>);

struct Configs {
    port_base: u16,
    chassis: Chassis,
    gateway: microblog_gateway::Config,
    user: microblog_user::Config,
    relation: microblog_relation::Config,
    post: microblog_post::Config,
}

/// Why the servers of a worker cannot be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot start the user service")]
    User(#[source] microblog_user::Error),
    #[error("cannot start the relation service")]
    Relation(#[source] microblog_keyspace::Error),
    #[error("cannot start the post service")]
    Post(#[source] microblog_keyspace::Error),
}

impl Plan {
    /// Configures all servers: each as by its own flags and environment, but for where it listens
    /// and where its store is.
    pub(super) fn new(port_base: u16, access: &Access, chassis: &Chassis) -> anyhow::Result<Self> {
        let mut user: microblog_user::Config =
            configured("user", &["--redis-url", &access.url("user")?])?;
        let mut relation: microblog_relation::Config =
            configured("relation", &["--redis-url", &access.url("relation")?])?;
        let mut post: microblog_post::Config =
            configured("post", &["--redis-url", &access.url("post")?])?;
        let mut gateway: microblog_gateway::Config = configured("gateway", &[])?;
        for own in
            [&mut user.chassis, &mut relation.chassis, &mut post.chassis, &mut gateway.chassis]
        {
            own.clone_from(chassis);
        }
        let chassis = chassis.clone();
        Ok(Self(Arc::new(Configs { port_base, chassis, gateway, user, relation, post })))
    }

    /// Makes the servers of one worker; they call each other within the process.
    pub(super) async fn listen(self, worker: Worker) -> Result<Vec<Listening>, Error> {
        let Configs { port_base, chassis, gateway, user, relation, post } = &*self.0;
        let user = microblog_user::service(user, worker).await.map_err(Error::User)?;
        let relation =
            microblog_relation::service(relation, worker).await.map_err(Error::Relation)?;
        // There are no timelines yet that it could tell of posts.
        let post = microblog_post::service(post, None, worker).await.map_err(Error::Post)?;
        let peers = microblog_gateway::Peers {
            user: Peer::local(&user, chassis),
            relation: Peer::local(&relation, chassis),
            post: Peer::local(&post, chassis),
        };
        let gateway = microblog_gateway::service(gateway, peers, worker);
        let [gateway_at, user_at, relation_at, post_at] =
            SERVERS.map(|server| server.address(*port_base));
        Ok(vec![
            Listening { address: user_at, service: user },
            Listening { address: relation_at, service: relation },
            Listening { address: post_at, service: post },
            Listening { address: gateway_at, service: gateway },
        ])
    }
}

fn configured<C: Parser>(name: &str, flags: &[&str]) -> anyhow::Result<C> {
    C::try_parse_from([&[name], flags].concat())
        .with_context(|| format!("cannot configure the {name} service from the environment"))
}
