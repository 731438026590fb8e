//! Checks that a service's Redis user in `deploy/redis/users.acl` has exactly the permissions that
//! the service needs.
//!
//! The commands of a service are read from its sources: each quoted upper-case word that is a Redis
//! command, in its Rust and Lua code, in that of `storage` if it uses it, and in the functions of the
//! `keyspace` prelude that its Lua code calls. A service therefore writes command names as whole words.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use redis::{Value, cmd};

use crate::{RedisServer, redis_config, redis_server::connect};

/// Commands that `keyspace` sends for every service: connections, readiness, the cluster client,
/// functions.
const KEYSPACE_COMMANDS: [&str; 8] = [
    "ping",
    "role",
    "cluster|slots",
    "cluster|info",
    "asking",
    "fcall",
    "function|load",
    "function|list",
];

/// Commands that `keyspace` sends for services that call these methods.
const METHOD_COMMANDS: [(&str, &str); 2] =
    [(".dedicated_connection(", "unwatch"), (".client_side_cache(", "client|tracking")];

const PRELUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../keyspace/src/prelude.lua");

/// The library of services that cache their database.
const STORAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../storage/src");

/// What a service's sources have if it keeps no entries of `storage` in its processes.
const NOTHING_SMALL: &str = "const SMALL: &'static [Self] = &[];";

/// Commands that `storage` sends only for entries that it keeps in the processes.
const SMALL_COMMANDS: [&str; 2] = ["client|tracking", "get"];

/// Keys of each service, and a key of no service.
const KEYS: [&str; 6] = [
    "usr:{1}:profile:history:4",
    "rel:{1}:following:history:4",
    "pst:{1}:post:history:4",
    "tl:{1}:home:4",
    "note:{1}:notices:history:4",
    "anything",
];

/// Commands that no service needs. `OWN` stands for a key of the service.
const FORBIDDEN: [&[&str]; 19] = [
    &["KEYS", "*"],
    &["SCAN", "0"],
    &["RANDOMKEY"],
    &["DBSIZE"],
    &["FLUSHALL"],
    &["FUNCTION", "FLUSH"],
    &["FUNCTION", "DELETE", "library"],
    &["CONFIG", "GET", "*"],
    &["ACL", "LIST"],
    &["EVAL", "return 1", "0"],
    &["HGETALL", "OWN"],
    &["SMEMBERS", "OWN"],
    &["ZCOUNT", "OWN", "-inf", "+inf"],
    &["ZINTERSTORE", "OWN", "1", "OWN"],
    &["RENAMENX", "OWN", "OWN"],
    &["COPY", "OWN", "OWN"],
    &["DUMP", "OWN"],
    &["MONITOR"],
    &["SHUTDOWN"],
];

/// Asserts that a Redis user may run exactly the commands that a service uses. The directory is
/// that of the service's crate.
///
/// # Panics
/// With the missing and the unnecessary commands.
pub async fn assert_exact(user: &str, crate_directory: &str) {
    let server = RedisServer::start().await;
    let names: Vec<String> =
        cmd("COMMAND").arg("LIST").query_async(&mut server.admin().await).await.expect("the list");
    let names: BTreeSet<String> = names.into_iter().map(|name| name.to_lowercase()).collect();
    let used = used(Path::new(crate_directory), &names);
    let allowed: BTreeSet<_> =
        redis_config::permissions(user).commands.into_iter().map(container_command).collect();
    let missing: Vec<_> = used.difference(&allowed).collect();
    let unused: Vec<_> = allowed.difference(&used).collect();
    assert!(
        missing.is_empty() && unused.is_empty(),
        "the Redis user {user} lacks {missing:?}, and does not need {unused:?}"
    );
}

/// Asserts that Redis rejects a user's access to keys of other services, to commands that read
/// whole lists, and to administrative commands.
///
/// # Panics
/// With a command that Redis does not reject.
pub async fn assert_confined(user: &str) {
    let server = RedisServer::start().await;
    let mut connection = connect(&server.url(user)).await.expect("connect");
    let mut assert_rejected = async |words: &[&str]| {
        let mut command = cmd(words[0]);
        let answer = command.arg(&words[1..]).query_async::<Value>(&mut connection).await;
        let error = answer.expect_err(&format!("{words:?} must be rejected"));
        assert_eq!(error.code(), Some("NOPERM"), "{words:?}: {error}");
    };
    let own = redis_config::permissions(user).keys;
    let others: Vec<_> = KEYS.iter().filter(|key| !key.starts_with(&own)).collect();
    assert_eq!(others.len(), KEYS.len() - 1, "{user} has the keys {own}…");
    for key in others {
        for words in [&["GET", key][..], &["SET", key, "1"], &["ZADD", key, "1", "2"]] {
            assert_rejected(words).await;
        }
    }
    let own = format!("{own}{{1}}:key");
    for words in FORBIDDEN {
        let words: Vec<_> =
            words.iter().map(|&word| if word == "OWN" { &own } else { word }).collect();
        assert_rejected(&words).await;
    }
}

// The sources name a container command such as XGROUP and its subcommand separately.
fn container_command(command: String) -> String {
    let is_keyspace_command = KEYSPACE_COMMANDS.contains(&&*command)
        || METHOD_COMMANDS.iter().any(|(_, of_method)| *of_method == command);
    match command.split_once('|') {
        Some((container_command, _)) if !is_keyspace_command => container_command.to_owned(),
        _ => command,
    }
}

fn used(directory: &Path, names: &BTreeSet<String>) -> BTreeSet<String> {
    let mut sources = Vec::new();
    read(&directory.join("src"), &mut sources);
    let nothing_is_small = sources.iter().any(|(_, text)| text.contains(NOTHING_SMALL));
    if sources.iter().any(|(_, text)| text.contains("microblog_storage")) {
        read(Path::new(STORAGE), &mut sources);
    }
    let lua: String =
        sources.iter().filter(|(is_lua, _)| *is_lua).map(|(_, text)| &**text).collect();
    let prelude = fs::read_to_string(PRELUDE).expect("the prelude");
    let called = called(&lua, &functions(&prelude));
    let is_called = |method: &str| sources.iter().any(|(_, text)| text.contains(method));
    let method_commands = METHOD_COMMANDS.into_iter().filter(|(method, _)| is_called(method));
    let keyspace_commands =
        KEYSPACE_COMMANDS.into_iter().chain(method_commands.map(|(_, command)| command));
    let texts = sources.iter().map(|(_, text)| &**text).chain(called);
    let own =
        texts.flat_map(upper_case_words).map(str::to_lowercase).filter(|word| names.contains(word));
    let mut used: BTreeSet<_> = keyspace_commands.map(str::to_owned).chain(own).collect();
    used.retain(|command| !nothing_is_small || !SMALL_COMMANDS.contains(&&**command));
    used
}

/// Reads all sources without their tests. The flag marks Lua.
fn read(directory: &Path, sources: &mut Vec<(bool, String)>) {
    let entries = fs::read_dir(directory);
    for entry in entries.unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
        let path = entry.expect("an entry").path();
        let is_lua = path.extension().is_some_and(|extension| extension == "lua");
        if path.is_dir() {
            read(&path, sources);
        } else if is_lua || path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            sources.push((is_lua, code.to_owned()));
        }
    }
}

/// Returns the functions of a Lua source by name.
fn functions(text: &str) -> BTreeMap<&str, &str> {
    let begun = text.split("\nlocal function ").skip(1);
    let ended = begun.filter_map(|rest| rest.split("\nend\n").next());
    ended.filter_map(|function| Some((function.split_once('(')?.0, function))).collect()
}

/// Returns the functions that a Lua source calls, directly or indirectly.
fn called<'a>(text: &str, functions: &BTreeMap<&'a str, &'a str>) -> Vec<&'a str> {
    let mut found = BTreeMap::new();
    let mut texts = vec![text];
    while let Some(text) = texts.pop() {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("--"));
        let words = code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
        for word in words {
            if let Some((&name, &function)) = functions.get_key_value(word)
                && found.insert(name, function).is_none()
            {
                texts.push(function);
            }
        }
    }
    found.into_values().collect()
}

/// Returns the quoted upper-case words.
fn upper_case_words(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(['"', '\'']).filter_map(|(at, quote)| {
        let rest = &text[at + quote.len()..];
        let end = rest.find(|c: char| !c.is_ascii_uppercase())?;
        (end > 1 && rest[end..].starts_with(quote)).then(|| &rest[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_sources_and_in_called_functions() {
        let prelude = "\nlocal function now()\n  redis.call('TIME')\nend\n\
                       \nlocal function issue(key)\n  now() redis.call('GET', key)\nend\n\
                       \nlocal function bury()\n  call_with('ZREM', old)\nend\n";
        let functions = functions(prelude);
        let names: Vec<_> = functions.keys().copied().collect();
        assert_eq!(names, ["bury", "issue", "now"]);
        let called = called("-- never bury\nissue(keys[1]) unbury()", &functions);
        let words: Vec<_> = called.into_iter().flat_map(upper_case_words).collect();
        assert_eq!(words, ["GET", "TIME"]);
        let words: Vec<_> =
            upper_case_words("it's cmd(\"ZADD\").arg(\"NX\") 'don't' \"A\" \"SSca\"").collect();
        assert_eq!(words, ["ZADD", "NX"]);
    }
}
