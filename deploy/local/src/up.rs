//! `microblog up`: all servers in one process, on a private redis-server with persistent data. This
//! file has the order of start and stop.

mod access;
mod background;
mod data_dir;
mod demo_data;
mod messages;
mod orphaned_redis;
mod port;
mod redis;
mod software;

use std::{env, net::Ipv4Addr, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, bail};

pub use self::{access::Access, data_dir::DataDir, redis::Redis, software::Software};
use crate::{
    keys::Keys,
    services::{Flags, Plan, SERVERS, Server},
};

/// Starts all servers in one process, with a private redis-server.
///
/// Ctrl-C stops them gracefully, a second Ctrl-C at once. The data persist.
#[derive(clap::Args)]
#[command(mut_arg("log", |log| log.default_value("warn")))]
pub struct Args {
    /// Directory of the data. Default: $XDG_DATA_HOME/microblog, or ~/.local/share/microblog if
    /// that is not set
    #[arg(long, value_name = "DIR", env = "MICROBLOG_DATA_DIR")]
    data_dir: Option<PathBuf>,

    /// First of ten ports on 127.0.0.1, for the gateway. The next five are for the services user,
    /// relation, post, timeline and notice, the ninth for metrics unless --metrics-listen is set, and
    /// the last for redis-server
    #[arg(
        long,
        value_name = "PORT",
        env = "MICROBLOG_PORT_BASE",
        default_value_t = 50_050,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(u16::MAX - REDIS_OFFSET))
    )]
    port_base: u16,

    /// The redis-server to start, 7.0 or newer. Default: redis-server or else valkey-server from
    /// PATH
    #[arg(long, value_name = "FILE", env = "MICROBLOG_REDIS_SERVER")]
    redis_server: Option<PathBuf>,

    /// Creates a demo data set if nothing is stored: 200 accounts with follows and posts
    #[arg(long)]
    demo: bool,

    #[command(flatten)]
    databases: Databases,

    #[command(flatten)]
    chassis: microblog_chassis::Config,
}

/// The URLs of the services' databases, as for `--database-url` of a separate server.
#[derive(clap::Args)]
struct Databases {
    /// URL of the user service's SQL database. Default: user.sqlite in the data directory
    #[arg(long, value_name = "URL", env = "MICROBLOG_USER_DATABASE_URL", hide_env_values = true)]
    user_database_url: Option<String>,

    /// URL of the relation service's SQL database. Default: relation.sqlite in the data directory
    #[arg(
        long,
        value_name = "URL",
        env = "MICROBLOG_RELATION_DATABASE_URL",
        hide_env_values = true
    )]
    relation_database_url: Option<String>,

    /// URL of the post service's SQL database. Default: post.sqlite in the data directory
    #[arg(long, value_name = "URL", env = "MICROBLOG_POST_DATABASE_URL", hide_env_values = true)]
    post_database_url: Option<String>,

    /// URL of the notice service's SQL database. Default: notice.sqlite in the data directory
    #[arg(long, value_name = "URL", env = "MICROBLOG_NOTICE_DATABASE_URL", hide_env_values = true)]
    notice_database_url: Option<String>,
}

const METRICS_OFFSET: u16 = 8;
const REDIS_OFFSET: u16 = 9;

impl Databases {
    /// Returns the services with a database, each with its URL if one is given.
    fn urls(&self) -> [(Server, Option<&str>); 4] {
        let Self {
            user_database_url,
            relation_database_url,
            post_database_url,
            notice_database_url,
        } = self;
        [
            (Server::User, user_database_url),
            (Server::Relation, relation_database_url),
            (Server::Post, post_database_url),
            (Server::Notice, notice_database_url),
        ]
        .map(|(server, url)| (server, url.as_deref().filter(|url| !url.is_empty())))
    }
}

/// Runs all servers until a signal stops them.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut chassis = args.chassis.clone();
    if chassis.tls_cert_file.is_some() || chassis.health_listen.is_some() {
        bail!(
            "`microblog up` is for this machine only and has neither TLS nor a health check port: \
             unset MICROBLOG_TLS_CERT_FILE and MICROBLOG_HEALTH_LISTEN, or use `microblog serve`"
        );
    }
    if env::var_os("MICROBLOG_DATABASE_URL").is_some_and(|url| !url.is_empty()) {
        bail!(
            "each service has a database of its own: set MICROBLOG_USER_DATABASE_URL, \
             MICROBLOG_RELATION_DATABASE_URL, MICROBLOG_POST_DATABASE_URL and \
             MICROBLOG_NOTICE_DATABASE_URL in place of MICROBLOG_DATABASE_URL"
        );
    }
    let software = Software::find(args.redis_server.as_deref())?;
    let data = DataDir::open(&data_dir(args)?)?;
    orphaned_redis::stop(&data)?;
    let [metrics_port, redis_port] =
        [METRICS_OFFSET, REDIS_OFFSET].map(|offset| args.port_base + offset);
    let metrics_port = chassis.metrics_listen.is_none().then_some(metrics_port);
    let ports = SERVERS.map(|server| server.address(args.port_base).port());
    for port in ports.into_iter().chain(metrics_port).chain([redis_port]) {
        port::wait_until_free(port)?;
    }
    if let Some(port) = metrics_port {
        chassis.metrics_listen = Some((Ipv4Addr::LOCALHOST, port).into());
    }
    let access = data.prepare_redis(redis_port)?;
    let plan = Plan::new(&chassis, &flags(args, &data, &access)?)?;
    println!("microblog {} is starting", microblog_chassis::VERSION);
    let redis = Redis::start(software.clone(), &data, access.clone())?;
    messages::started(&software, &data, args, &chassis, redis_port);
    let keys = Keys { identity_key_file: chassis.identity_key_file.clone() };
    let demo_data_mark = args.demo.then(|| data.demo_data_mark());
    background::start(args.port_base, demo_data_mark, keys, access)?;
    let code = microblog_chassis::run(&chassis, move |worker| plan.clone().listen(worker));
    drop(redis);
    println!("stopped; the data are in {}", data.path().display());
    Ok(code)
}

/// Returns the flags of all servers. Other settings are those of the environment, as for the separate
/// programs. By default, the databases are in the data directory and limits per address are off; the
/// environment can override both.
fn flags(args: &Args, data: &DataDir, access: &Access) -> anyhow::Result<Flags> {
    let mut flags = Flags::new();
    for server in SERVERS {
        let own = flags.entry(server).or_default();
        own.push(format!("--listen={}", server.address(args.port_base)).into());
        if server.has_redis() {
            own.push(format!("--redis-url={}", access.url(server.name())?).into());
        }
    }
    for (server, url) in args.databases.urls() {
        let file = || data.prepare_database(server.name());
        let url = url.map_or_else(file, |url| Ok(url.to_owned()))?;
        flags.entry(server).or_default().push(format!("--database-url={url}").into());
    }
    let gateway = flags.entry(Server::Gateway).or_default();
    gateway.extend(["--page", "--page-metrics"].map(Into::into));
    gateway.extend(no_limits_per_address().into_iter().map(Into::into));
    Ok(flags)
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

fn data_dir(args: &Args) -> anyhow::Result<PathBuf> {
    if let Some(dir) = &args.data_dir {
        return Ok(dir.clone());
    }
    // The XDG base directory specification ignores relative paths.
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")));
    Ok(base.context("neither HOME nor XDG_DATA_HOME is set: use --data-dir")?.join("microblog"))
}
