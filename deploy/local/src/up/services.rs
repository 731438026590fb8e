//! The servers of the process: their list, configuration and peers. Add a new service here.

use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::Context as _;
use clap::Parser;
use microblog_chassis::{AddressError, Config as Chassis, Peer, ServiceListener, Worker};

use super::{Args, access::Access, data_dir::DataDir};

/// A server of the process, as clients see it.
pub(super) struct Server {
    /// The display name.
    pub(super) name: &'static str,
    /// The full name of its gRPC service.
    pub(super) service: &'static str,
    /// The offset of its port from the first one.
    offset: u16,
}

/// All servers, in the order of their ports.
pub(super) const SERVERS: [Server; 5] = [
    Server { name: "gateway", service: "microblog.gateway.v1.GatewayService", offset: 0 },
    Server { name: "user", service: "microblog.user.v1.UserService", offset: 1 },
    Server { name: "relation", service: "microblog.relation.v1.RelationService", offset: 2 },
    Server { name: "post", service: "microblog.post.v1.PostService", offset: 3 },
    Server { name: "timeline", service: "microblog.timeline.v1.TimelineService", offset: 4 },
];

impl Server {
    /// Returns the listen address.
    pub(super) fn address(&self, port_base: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port_base + self.offset).into()
    }

    /// Returns the URL.
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
    limits: microblog_gateway::Limits,
    user: microblog_user::Config,
    relation: microblog_relation::Config,
    post: microblog_post::Config,
    timeline: microblog_timeline::Config,
}

/// Errors of starting the servers of a worker.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot start the user service")]
    User(#[source] microblog_user::StartError),
    #[error("cannot start the relation service")]
    Relation(#[source] microblog_relation::StartError),
    #[error("cannot start the post service")]
    Post(#[source] microblog_post::StartError),
    #[error("cannot start the timeline service")]
    Timeline(#[source] microblog_keyspace::Error),
    #[error("invalid URL of the post service")]
    Peer(#[source] AddressError),
}

impl Plan {
    /// Configures all servers from flags and environment, like the separate programs, except for
    /// listen addresses and the URLs of stores. By default, the databases are in the data directory
    /// and limits per address are off; the environment can override both.
    pub(super) fn new(args: &Args, data: &DataDir, access: &Access) -> anyhow::Result<Self> {
        let Args { port_base, chassis, .. } = args;
        let mut user: microblog_user::Config = config_with_redis("user", access)?;
        let mut relation: microblog_relation::Config = config_with_redis("relation", access)?;
        let mut post: microblog_post::Config = config_with_redis("post", access)?;
        let mut timeline: microblog_timeline::Config = config_with_redis("timeline", access)?;
        let mut gateway: microblog_gateway::Config = config("gateway", &no_limits_per_address())?;
        let databases = [&mut user.database, &mut relation.database, &mut post.database];
        for (database, (service, url)) in databases.into_iter().zip(args.databases.urls()) {
            let file = || data.prepare_database(service);
            database.database_url = Some(url.map_or_else(file, |url| Ok(url.to_owned()))?);
        }
        for own in [
            &mut user.chassis,
            &mut relation.chassis,
            &mut post.chassis,
            &mut timeline.chassis,
            &mut gateway.chassis,
        ] {
            own.clone_from(chassis);
        }
        Ok(Self(Arc::new(Configs {
            port_base: *port_base,
            chassis: chassis.clone(),
            limits: microblog_gateway::Limits::new(&gateway.limits),
            gateway,
            user,
            relation,
            post,
            timeline,
        })))
    }

    /// Starts the servers of one worker. They call each other in process, except
    /// timeline the post service.
    pub(super) async fn listen(self, worker: Worker) -> Result<Vec<ServiceListener>, Error> {
        let Configs { port_base, chassis, user, relation, post, timeline, .. } = &*self.0;
        let user = microblog_user::service(user, worker).await.map_err(Error::User)?;
        let relation =
            microblog_relation::service(relation, worker).await.map_err(Error::Relation)?;
        // The post service starts after the timeline service, which is its peer.
        let of_post = Peer::remote(&SERVERS[3].url(*port_base), chassis).map_err(Error::Peer)?;
        let of_relation = Peer::local(&relation, chassis);
        let timeline = microblog_timeline::service(timeline, of_relation, Some(of_post), worker)
            .await
            .map_err(Error::Timeline)?;
        let post = microblog_post::service(post, Some(Peer::local(&timeline, chassis)), worker)
            .await
            .map_err(Error::Post)?;
        let peers = microblog_gateway::Peers {
            user: Peer::local(&user, chassis),
            relation: Peer::local(&relation, chassis),
            post: Peer::local(&post, chassis),
            timeline: Peer::local(&timeline, chassis),
        };
        let Configs { gateway, limits, .. } = &*self.0;
        let gateway = microblog_gateway::service(gateway, limits.clone(), peers, worker);
        let services = [gateway, user, relation, post, timeline];
        let servers = SERVERS.iter().zip(services);
        let listening = servers.map(|(server, service)| ServiceListener {
            address: server.address(*port_base),
            service,
        });
        Ok(listening.collect())
    }
}

/// Returns the flags that disable limits per address, unless the environment sets them. All
/// clients are on this machine, and their owner may test with many accounts.
fn no_limits_per_address() -> Vec<&'static str> {
    let limits = [
        ("MICROBLOG_LOGINS_PER_MINUTE", "--logins-per-minute=0"),
        ("MICROBLOG_REGISTRATIONS_PER_HOUR", "--registrations-per-hour=0"),
        ("MICROBLOG_REGISTRATIONS_PER_HOUR_TOTAL", "--registrations-per-hour-total=0"),
        ("MICROBLOG_AVAILABILITY_CHECKS_PER_MINUTE", "--availability-checks-per-minute=0"),
        (
            "MICROBLOG_AVAILABILITY_CHECKS_PER_MINUTE_TOTAL",
            "--availability-checks-per-minute-total=0",
        ),
    ];
    let unset = limits.into_iter().filter(|(variable, _)| env::var_os(variable).is_none());
    unset.map(|(_, flag)| flag).collect()
}

fn config_with_redis<C: Parser>(name: &str, access: &Access) -> anyhow::Result<C> {
    config(name, &["--redis-url", &access.url(name)?])
}

fn config<C: Parser>(name: &str, flags: &[&str]) -> anyhow::Result<C> {
    C::try_parse_from([&[name], flags].concat())
        .with_context(|| format!("cannot configure the {name} service from the environment"))
}
