//! `microblog serve`: any services in one process, for production. This file has the flags: those of
//! the services' own programs, for all services of the process or for one.

use std::{
    collections::HashSet,
    env,
    ffi::{OsStr, OsString},
    process::ExitCode,
};

use anyhow::bail;
use clap::{
    Arg, ArgAction, ArgMatches, Args as _, Command, Error, FromArgMatches, error::ErrorKind,
    parser::ValueSource, value_parser,
};
use microblog_chassis::Config as Chassis;

use crate::services::{Flags, Plan, SERVERS, Server};

/// What each service must have for itself: there are no flags that set it for all.
const EXCLUSIVE: [&str; 3] = ["listen", "database-url", "database-password-file"];
/// What the help also lists for each service.
const LISTED: [&str; 5] =
    ["listen", "redis-url", "redis-password-file", "database-url", "database-password-file"];

const PREFIX: &str = "MICROBLOG_";

/// The services to run, with their flags.
pub struct Args {
    chassis: Chassis,
    flags: Flags,
}

/// Runs services in one process. They call each other without a network, and the other services at
/// their URLs.
///
/// Each flag below applies to all services of the process that have it. With the name of a service
/// in front, it applies to that service only, and takes precedence: --post-redis-timeout-ms, or
/// MICROBLOG_POST_REDIS_TIMEOUT_MS in the environment. The flags of the process, such as --threads
/// and those for TLS, exist once. Each service has its own port and, in production, its own Redis
/// user and database role.
#[derive(clap::Args)]
struct Process {
    /// The services to run, separated by commas
    #[arg(
        long,
        env = "MICROBLOG_SERVICES",
        value_name = "SERVICES",
        value_delimiter = ',',
        required = true
    )]
    services: Vec<Server>,
    #[command(flatten)]
    chassis: Chassis,
}

/// Runs the services until a signal stops them.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    for name in EXCLUSIVE.map(variable) {
        if env::var_os(format!("{PREFIX}{name}")).is_some_and(|value| !value.is_empty()) {
            bail!(
                "{PREFIX}{name} is of a server in its own process: set {PREFIX}USER_{name} and so \
                 on, for each service"
            );
        }
    }
    let plan = Plan::new(&args.chassis, &args.flags)?;
    Ok(microblog_chassis::run(&args.chassis, move |worker| plan.clone().listen(worker)))
}

/// A flag of a service, with its two forms in this command.
struct Flag {
    of_program: Arg,
    long: String,
    /// Whether there is a form for all services of the process.
    common: bool,
    /// The form for this service; `None` for flags of the process.
    own: Option<String>,
}

/// Returns the flags of a service's program.
fn flags(server: Server) -> Vec<Flag> {
    let process = Chassis::augment_args(Command::new(""));
    let process: HashSet<_> = process.get_arguments().filter_map(Arg::get_long).collect();
    let command = server.command();
    let flag = |of_program: &Arg| {
        let long = of_program.get_long()?;
        let own = (!process.contains(long)).then(|| format!("{}-{long}", server.name()));
        Some(Flag {
            of_program: of_program.clone(),
            long: long.to_owned(),
            common: !EXCLUSIVE.contains(&long),
            own,
        })
    };
    command.get_arguments().filter_map(flag).collect()
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        let mut command = Process::augment_args(command);
        let mut order = command.get_arguments().count();
        for server in SERVERS {
            for flag in flags(server) {
                let id = flag.of_program.get_id();
                if flag.common && command.get_arguments().all(|known| known.get_id() != id) {
                    command = command.arg(flag.of_program.clone().display_order(order));
                }
                if let Some(own) = &flag.own {
                    command = command.arg(of_one(server, &flag, own).display_order(order));
                }
                order += 1;
            }
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let Process { services, chassis } = Process::from_arg_matches(matches)?;
        let mut flags = Flags::new();
        for server in services {
            if flags.insert(server, given(server, matches)).is_some() {
                let twice = format!("`--services` has {} twice", server.name());
                return Err(Error::raw(ErrorKind::ValueValidation, twice));
            }
        }
        Ok(Self { chassis, flags })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the form of a flag for one service. The service's own parser validates its value.
fn of_one(server: Server, flag: &Flag, own: &str) -> Arg {
    let is_listed = LISTED.contains(&&*flag.long);
    let arg = Arg::new(own.to_owned().leak() as &'static str)
        .long(own.to_owned().leak() as &'static str)
        .action(flag.of_program.get_action().clone())
        .help_heading(match server {
            Server::Gateway => "Gateway",
            Server::User => "User service",
            Server::Relation => "Relation service",
            Server::Post => "Post service",
            Server::Timeline => "Timeline service",
            Server::Notice => "Notice service",
        })
        .hide(!is_listed)
        .hide_env_values(flag.of_program.is_hide_env_values_set());
    let arg = match is_switch(&flag.of_program) {
        true => arg,
        false => arg.value_parser(value_parser!(OsString)),
    };
    let arg = match flag.of_program.get_value_delimiter() {
        Some(delimiter) => arg.value_delimiter(delimiter),
        None => arg,
    };
    let arg = match flag.of_program.get_env().and_then(|name| name.to_str()?.strip_prefix(PREFIX)) {
        Some(name) => arg.env(own_variable(server, name).leak() as &'static str),
        None => arg,
    };
    let arg = match flag.of_program.get_value_names() {
        Some(names) => arg.value_names(names.to_vec()),
        None => arg,
    };
    if flag.common {
        return arg.help(format!("As --{}, for this service", flag.long));
    }
    // The default is only shown: the service's own parser has it too.
    arg.help(flag.of_program.get_help().cloned().unwrap_or_default())
        .default_values(flag.of_program.get_default_values().to_vec())
}

/// Returns whether a flag has no value.
fn is_switch(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::SetTrue)
}

/// Returns the variable of a flag for one service, from that of its program. The variable of
/// `--mode` of the timeline service has its name in front already.
fn own_variable(server: Server, name: &str) -> String {
    let server = format!("{}_", variable(server.name()));
    let name = name.strip_prefix(&server).unwrap_or(name);
    format!("{PREFIX}{server}{name}")
}

/// Returns the variable of a flag, without its prefix.
fn variable(flag: &str) -> String {
    flag.replace('-', "_").to_uppercase()
}

/// Returns what the command line and the environment set for a service, as flags of its program.
/// That reads the variables of all services itself.
fn given(server: Server, matches: &ArgMatches) -> Vec<OsString> {
    let values = |id: &str, sources: &[ValueSource]| {
        let source = matches.value_source(id)?;
        sources.contains(&source).then(|| matches.get_raw(id)).flatten()
    };
    let arguments = |flag: Flag| {
        let all = [ValueSource::CommandLine, ValueSource::EnvVariable];
        let own = flag.own.as_ref().and_then(|own| values(own, &all));
        let common = || values(flag.of_program.get_id().as_str(), &all[..1]);
        let given = own.or_else(|| flag.common.then(common).flatten());
        let argument = |value: &OsStr| {
            let mut argument = OsString::from(format!("--{}", flag.long));
            if is_switch(&flag.of_program) {
                return (value == "true").then_some(argument);
            }
            argument.push("=");
            argument.push(value);
            Some(argument)
        };
        given.into_iter().flatten().filter_map(argument).collect::<Vec<_>>()
    };
    flags(server).into_iter().flat_map(arguments).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn flags_apply_to_all_services_or_to_one() {
        let flags = Cli::parse_from([
            "serve",
            "--services=user,post",
            "--services=gateway",
            "--redis-url=redis://all",
            "--post-redis-url=redis://post",
            "--gateway-listen=127.0.0.1:1",
            "--post-calls-per-minute=7",
            "--hashing-threads=3",
            "--threads=1",
        ]);
        let flags = flags.args.flags;
        let expected = [
            (Server::Gateway, &["--listen=127.0.0.1:1", "--post-calls-per-minute=7"][..]),
            (Server::User, &["--hashing-threads=3", "--redis-url=redis://all"]),
            (Server::Post, &["--redis-url=redis://post"]),
        ];
        assert_eq!(flags.len(), expected.len());
        for (server, own) in expected {
            let mut set: Vec<_> =
                flags[&server].iter().map(|flag| flag.to_str().unwrap()).collect();
            set.sort_unstable();
            assert_eq!(set, [own, &["--threads=1"]].concat(), "{server:?}");
        }
    }

    #[test]
    fn switches_and_lists_reach_their_service() {
        let flags = Cli::parse_from([
            "serve",
            "--services=gateway,post",
            "--page",
            "--allowed-origins=https://a.example,https://b.example",
            "--allowed-origins=https://c.example",
        ]);
        let origins =
            ["a", "b", "c"].map(|name| format!("--allowed-origins=https://{name}.example"));
        let flags = flags.args.flags;
        let of_gateway = flags[&Server::Gateway].iter().map(|flag| flag.to_str().unwrap());
        let (of_origins, others): (Vec<_>, Vec<_>) =
            of_gateway.partition(|flag| flag.starts_with("--allowed-origins"));
        assert_eq!(
            (of_origins, others),
            (origins.iter().map(String::as_str).collect(), vec!["--page"])
        );
        assert!(flags[&Server::Post].is_empty());

        let own =
            ["--gateway-page", "--gateway-allowed-origins=https://a.example,https://b.example"];
        let flags = Cli::parse_from(["serve", "--services=gateway"].iter().chain(&own));
        let flags = &flags.args.flags[&Server::Gateway];
        assert_eq!(flags.len(), 3, "{flags:?}");
        server_accepts(Server::Gateway, flags);
    }

    /// Asserts that a service's program accepts flags.
    fn server_accepts(server: Server, flags: &[OsString]) {
        let name = OsString::from(server.name());
        let parsed = server.command().try_get_matches_from([name].iter().chain(flags));
        assert!(parsed.is_ok(), "{parsed:?}");
    }

    #[test]
    fn variables_of_one_service_have_its_name_in_front() {
        for (server, of_program, own) in [
            (Server::User, "REDIS_URL", "MICROBLOG_USER_REDIS_URL"),
            (Server::Gateway, "USER_URL", "MICROBLOG_GATEWAY_USER_URL"),
            (Server::Timeline, "TIMELINE_MODE", "MICROBLOG_TIMELINE_MODE"),
        ] {
            assert_eq!(own_variable(server, of_program), own);
        }
    }
}
