//! What a service sends for a call: its statements and its Redis commands, in order.

use std::{collections::HashSet, future::ready};

use futures::StreamExt as _;
use redis::{Client, aio::Monitor, cmd};
use uuid::Uuid;

use crate::{PostgresServer, RedisServer};

/// The name of the connections whose statements are counted.
const COUNTED: &str = "counted";

/// What a service has sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Sent {
    /// What each statement does, and to which table; without those that begin or end a transaction which
    /// only reads.
    pub statements: Vec<String>,
    /// The name of each command, or of the function that it calls; without the marks, which are read four
    /// times a second.
    pub commands: Vec<String>,
}

impl Sent {
    /// Returns what is expected.
    pub fn new(statements: &[&str], commands: &[&str]) -> Self {
        let owned = |list: &[&str]| list.iter().map(|&one| one.to_owned()).collect();
        Self { statements: owned(statements), commands: owned(commands) }
    }
}

/// Notes what one service sends. Another one, of another Redis user, has the background jobs.
pub struct SentMeter {
    user: &'static str,
    monitor: Monitor,
}

impl SentMeter {
    /// Settings of the PostgreSQL server: each statement is in the log, behind the name of its connection.
    pub const SETTINGS: [&'static str; 2] = ["log_statement=all", "log_line_prefix=%a|"];

    /// Returns a meter of a service that is this user of Redis.
    ///
    /// # Panics
    /// If Redis cannot be monitored.
    pub async fn start(redis: &RedisServer, user: &'static str) -> Self {
        let client = Client::open(redis.admin_url()).expect("an address");
        let monitor = client.get_async_monitor().await.expect("monitor Redis");
        Self { user, monitor }
    }

    /// Returns the URL of the database for the service.
    pub fn database_url(server: &PostgresServer) -> String {
        format!("{}?application_name={COUNTED}", server.url())
    }

    /// Returns what the service sends for a call.
    pub async fn sent(
        &mut self,
        redis: &RedisServer,
        database: &PostgresServer,
        call: impl Future<Output = ()>,
    ) -> Sent {
        let log = database.log().len();
        self.commands(redis).await;
        call.await;
        let commands = self.commands(redis).await;
        let statements = database.log()[log..].lines().filter_map(statement).collect();
        Sent { statements, commands }
    }

    // Returns the commands of the service since the last time.
    async fn commands(&mut self, redis: &RedisServer) -> Vec<String> {
        let mut admin = redis.admin().await;
        let end = Uuid::new_v4().to_string();
        cmd("ECHO").arg(&end).exec_async(&mut admin).await.expect("an echo");
        let seen = self.monitor.on_message::<String>();
        let seen = seen.take_while(|line| ready(!line.contains(&end)));
        let lines: Vec<String> = seen.collect().await;
        let list = cmd("CLIENT").arg("LIST").take();
        let list: String = list.query_async(&mut admin).await.expect("the connections");
        let user = format!(" user={} ", self.user);
        let of_service = list.lines().filter(|line| line.contains(&user));
        let address = |line: &str| Some(line.split_once(" addr=")?.1.split(' ').next()?.to_owned());
        let own: HashSet<String> = of_service.filter_map(address).collect();
        lines.iter().filter_map(|line| command(line, &own)).collect()
    }
}

// Returns what a statement in the log does, and to which table.
fn statement(line: &str) -> Option<String> {
    let (_, text) = line.strip_prefix(COUNTED)?.split_once("LOG:  ")?;
    let (kind, text) = text.split_once(": ")?;
    if kind != "statement" && !kind.starts_with("execute ") {
        return None;
    }
    let words: Vec<&str> =
        text.split([' ', '(', ')', ';']).filter(|word| !word.is_empty()).collect();
    let behind = |word: &str| words[words.iter().position(|&one| one == word)? + 1..].first();
    let removed = words.iter().find_map(|word| word.strip_prefix("remove_"));
    Some(match *words.first()? {
        "BEGIN" | "ROLLBACK" => return None,
        "WITH" => parts(&words).join(" + "),
        "SELECT" if text.contains("append_to_feed") => "append to the feed and COMMIT".to_owned(),
        "SELECT" if text.contains("AS one LEFT JOIN") => format!("load {}", behind("JOIN")?),
        "SELECT" if text.contains("pg_control_system") => "SELECT history".to_owned(),
        "SELECT" if removed.is_some() => format!("DELETE {}", removed?),
        "SELECT" => {
            // That of a sub-select is read, where the first one is of the parameters.
            let tables = words.windows(2).filter(|pair| pair[0] == "FROM").map(|pair| pair[1]);
            let mut named = tables.filter(|name| !["unnest", "SELECT", "VALUES"].contains(name));
            format!("SELECT {}", named.next()?)
        }
        "DELETE" => format!("DELETE {}", behind("FROM")?),
        "INSERT" => format!("INSERT {}", behind("INTO")?),
        "UPDATE" => format!("UPDATE {}", behind("UPDATE")?),
        other => other.to_owned(),
    })
}

// Returns what the parts of a statement do: those that write, and the history.
fn parts(words: &[&str]) -> Vec<String> {
    let part = |words: &[&str]| match *words {
        [_, "INSERT", "INTO", table] => Some(format!("INSERT {table}")),
        [before, "UPDATE", table, _] if !["DO", "KEY"].contains(&before) => {
            Some(format!("UPDATE {table}"))
        }
        [.., "FROM", "pg_control_system"] => Some("SELECT history".to_owned()),
        _ => None,
    };
    words.windows(4).filter_map(part).collect()
}

// Returns a command of one of the connections: its name, or that of its function.
fn command(line: &str, connections: &HashSet<String>) -> Option<String> {
    let (head, command) = line.split_once("] ")?;
    let (_, address) = head.rsplit_once(' ')?;
    let mut words = command.split(' ').map(|word| word.trim_matches('"'));
    let name = match words.next()? {
        // Without the version of its library.
        name if name.eq_ignore_ascii_case("fcall") => words.next()?.rsplit_once('_')?.0.to_owned(),
        name => name.to_uppercase(),
    };
    let is_counted = connections.contains(address) && name != "read_mark";
    is_counted.then_some(name)
}
