//! The services of a process: their list, configuration and peers. Add a new service here.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    iter,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use clap::{Command, CommandFactory as _, Parser};
use microblog_chassis::{
    AddressError, Config as Chassis, Peer, Service, ServiceListener as Listener, Worker,
};
use microblog_gateway::{Limits, Peers};

/// A service of a process, or the gateway. In the order of their ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Server {
    /// The public API
    Gateway,
    /// Accounts, names and sessions
    User,
    /// The follow graph
    Relation,
    /// Posts, likes and comments
    Post,
    /// Home and friends timelines
    Timeline,
    /// Notices
    Notice,
}

/// All servers, in the order of their ports.
pub const SERVERS: [Server; 6] = [
    Server::Gateway,
    Server::User,
    Server::Relation,
    Server::Post,
    Server::Timeline,
    Server::Notice,
];

impl Server {
    /// Returns its name, which is also that of its Redis user.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::User => "user",
            Self::Relation => "relation",
            Self::Post => "post",
            Self::Timeline => "timeline",
            Self::Notice => "notice",
        }
    }

    /// Returns the full name of its gRPC service.
    pub(crate) fn service(self) -> &'static str {
        match self {
            Self::Gateway => "microblog.gateway.v1.GatewayService",
            Self::User => "microblog.user.v1.UserService",
            Self::Relation => "microblog.relation.v1.RelationService",
            Self::Post => "microblog.post.v1.PostService",
            Self::Timeline => "microblog.timeline.v1.TimelineService",
            Self::Notice => "microblog.notice.v1.NoticeService",
        }
    }

    /// Returns whether it has a keyspace in Redis.
    pub fn has_redis(self) -> bool {
        self != Self::Gateway
    }

    /// Returns whether it has a SQL database.
    pub fn has_database(self) -> bool {
        matches!(self, Self::User | Self::Relation | Self::Post | Self::Notice)
    }

    /// Returns its listen address, in a block of ports.
    pub fn address(self, port_base: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port_base + self as u16).into()
    }

    /// Returns its URL, in a block of ports.
    pub(crate) fn url(self, port_base: u16) -> String {
        format!("http://{}", self.address(port_base))
    }

    /// Returns the server with this program, `microblog-user` and so on.
    pub fn of_program(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_prefix("microblog-")?;
        SERVERS.into_iter().find(|server| server.name() == name)
    }

    /// Runs its program with the arguments of this process.
    pub fn main(self) -> ExitCode {
        match self {
            Self::Gateway => microblog_gateway::main(),
            Self::User => microblog_user::main(),
            Self::Relation => microblog_relation::main(),
            Self::Post => microblog_post::main(),
            Self::Timeline => microblog_timeline::main(),
            Self::Notice => microblog_notice::main(),
        }
    }

    /// Returns the flags of its program.
    pub(crate) fn command(self) -> Command {
        match self {
            Self::Gateway => microblog_gateway::Config::command(),
            Self::User => microblog_user::Config::command(),
            Self::Relation => microblog_relation::Config::command(),
            Self::Post => microblog_post::Config::command(),
            Self::Timeline => microblog_timeline::Config::command(),
            Self::Notice => microblog_notice::Config::command(),
        }
    }
}

/// The flags of each server of a process, as its own program takes them.
pub(crate) type Flags = BTreeMap<Server, Vec<OsString>>;

/// The configurations of the servers of a process.
#[derive(Clone)]
pub(crate) struct Plan(Arc<Configs>);

struct Configs {
    chassis: Chassis,
    /// With the rate limits, which all workers share.
    gateway: Option<(microblog_gateway::Config, Limits)>,
    user: Option<microblog_user::Config>,
    relation: Option<microblog_relation::Config>,
    post: Option<microblog_post::Config>,
    timeline: Option<microblog_timeline::Config>,
    notice: Option<microblog_notice::Config>,
}

/// Errors of starting the servers of a worker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot start the user service")]
    User(#[source] microblog_user::StartError),
    #[error("cannot start the relation service")]
    Relation(#[source] microblog_relation::StartError),
    #[error("cannot start the post service")]
    Post(#[source] microblog_post::StartError),
    #[error("cannot start the timeline service")]
    Timeline(#[source] microblog_keyspace::Error),
    #[error("cannot start the notice service")]
    Notice(#[source] microblog_notice::StartError),
    #[error("invalid URL of the {0} service")]
    Peer(&'static str, #[source] AddressError),
}

impl Plan {
    /// Configures servers from their flags and the environment, like their own programs.
    pub(crate) fn new(chassis: &Chassis, flags: &Flags) -> anyhow::Result<Self> {
        let gateway: Option<microblog_gateway::Config> = config(Server::Gateway, flags)?;
        let mut configs = Configs {
            chassis: chassis.clone(),
            gateway: gateway.map(|config| {
                let limits = Limits::new(&config.limits);
                (config, limits)
            }),
            user: config(Server::User, flags)?,
            relation: config(Server::Relation, flags)?,
            post: config(Server::Post, flags)?,
            timeline: config(Server::Timeline, flags)?,
            notice: config(Server::Notice, flags)?,
        };
        let own = [
            configs.gateway.as_mut().map(|(config, _)| &mut config.chassis),
            configs.user.as_mut().map(|config| &mut config.chassis),
            configs.relation.as_mut().map(|config| &mut config.chassis),
            configs.post.as_mut().map(|config| &mut config.chassis),
            configs.timeline.as_mut().map(|config| &mut config.chassis),
            configs.notice.as_mut().map(|config| &mut config.chassis),
        ];
        // Shares what the process has once, such as the identity keys.
        own.into_iter().flatten().for_each(|own| own.clone_from(chassis));
        Ok(Self(Arc::new(configs)))
    }

    /// Starts the servers of one worker. They call each other in process, and others at their URLs.
    pub(crate) async fn listen(self, worker: Worker) -> Result<Vec<Listener>, Error> {
        let Configs { chassis, gateway, user, relation, post, timeline, notice } = &*self.0;
        let mut started = Started { chassis, listeners: Vec::new(), post: Peer::unbound(chassis) };
        if let Some(config) = user {
            let service = microblog_user::service(config, worker).await.map_err(Error::User)?;
            started.add(Server::User, config.listen, service);
        }
        if let Some(config) = relation {
            let service = microblog_relation::service(config, worker).await;
            started.add(Server::Relation, config.listen, service.map_err(Error::Relation)?);
        }
        if let Some(config) = timeline {
            let relation = started.peer(Server::Relation, &config.relation_url)?;
            let post = match post {
                Some(_) => started.post.clone(),
                None => started.peer(Server::Post, &config.post_url)?,
            };
            let service = microblog_timeline::service(config, relation, Some(post), worker).await;
            started.add(Server::Timeline, config.listen, service.map_err(Error::Timeline)?);
        }
        if let Some(config) = post {
            let timeline = started.peer(Server::Timeline, &config.timeline_url)?;
            let service = microblog_post::service(config, Some(timeline), worker).await;
            let service = service.map_err(Error::Post)?;
            // The post and timeline services call each other.
            started.post.bind(&service, chassis);
            started.add(Server::Post, config.listen, service);
        }
        if let Some(config) = notice {
            let peers = microblog_notice::Peers {
                user: started.peer(Server::User, &config.user_url)?,
                relation: started.peer(Server::Relation, &config.relation_url)?,
                post: started.peer(Server::Post, &config.post_url)?,
            };
            let service = microblog_notice::service(config, peers, worker).await;
            started.add(Server::Notice, config.listen, service.map_err(Error::Notice)?);
        }
        if let Some((config, limits)) = gateway {
            let peers = Peers {
                user: started.peer(Server::User, &config.user_url)?,
                relation: started.peer(Server::Relation, &config.relation_url)?,
                post: started.peer(Server::Post, &config.post_url)?,
                timeline: started.peer(Server::Timeline, &config.timeline_url)?,
                notice: started.peer(Server::Notice, &config.notice_url)?,
            };
            let service = microblog_gateway::service(config, limits.clone(), peers, worker);
            started.add(Server::Gateway, config.listen, service);
        }
        Ok(started.listeners.into_iter().map(|(_, listener)| listener).collect())
    }
}

/// The servers of a worker that have started.
struct Started<'a> {
    chassis: &'a Chassis,
    listeners: Vec<(Server, Listener)>,
    /// The post service, if it runs here.
    post: Peer,
}

impl Started<'_> {
    fn add(&mut self, server: Server, address: SocketAddr, service: Service) {
        self.listeners.push((server, Listener { address, service }));
    }

    /// Returns a client of a service: in process if it runs here, else at its URL.
    fn peer(&self, server: Server, url: &str) -> Result<Peer, Error> {
        match self.listeners.iter().find(|(other, _)| *other == server) {
            Some((_, listener)) => Ok(Peer::local(&listener.service, self.chassis)),
            None => {
                Peer::remote(url, self.chassis).map_err(|error| Error::Peer(server.name(), error))
            }
        }
    }
}

/// Returns the configuration of a server, if it is one of the process.
fn config<C: Parser>(server: Server, flags: &Flags) -> anyhow::Result<Option<C>> {
    let Some(flags) = flags.get(&server) else { return Ok(None) };
    let program = OsString::from(server.name());
    let config = C::try_parse_from(iter::once(&program).chain(flags));
    config.map(Some).with_context(|| format!("cannot configure the {} service", server.name()))
}
