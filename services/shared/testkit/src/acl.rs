//! Whether a service's user in `deploy/redis/users.acl` may do what the service does, and nothing
//! else.
//!
//! What a service does is read from its sources: each quoted word in capitals that is a command of
//! Redis, in its Rust and in its Lua, and in those functions of the `keyspace`'s prelude that its
//! Lua calls. So a service names its commands as whole words, and makes none up from parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use redis::{Value, cmd};

use crate::{RedisServer, redis_server::connect, settings};

/// What the `keyspace` sends for every service: connections, readiness and the client of a cluster;
/// functions.
const OF_THE_KEYSPACE: [&str; 8] = [
    "ping",
    "role",
    "cluster|slots",
    "cluster|info",
    "asking",
    "fcall",
    "function|load",
    "function|list",
];

/// What the `keyspace` sends for those services that call these of its methods.
const OF_METHODS: [(&str, &str); 3] =
    [(".page(", "zrange"), (".exclusive(", "unwatch"), (".recall(", "client|tracking")];

const PRELUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../keyspace/src/prelude.lua");

/// Keys of every service, and of none.
const KEYS: [&str; 5] =
    ["user:{1}:profile:4", "rel:{1}:following:4", "post:{1}:post:4", "tl:{1}:home:4", "anything"];

/// What no service needs. `OWN` stands for a key of its own.
const REFUSED: [&[&str]; 19] = [
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

/// Asserts that a user may run exactly the commands that a service uses, whose crate is in this
/// directory.
///
/// # Panics
/// With the commands that are missing and those that are too many.
pub async fn assert_exact(user: &str, crate_directory: &str) {
    let server = RedisServer::start().await;
    let names: Vec<String> =
        cmd("COMMAND").arg("LIST").query_async(&mut server.admin().await).await.expect("the list");
    let names: BTreeSet<String> = names.into_iter().map(|name| name.to_lowercase()).collect();
    let used = used(Path::new(crate_directory), &names);
    let allowed: BTreeSet<_> = settings::rights(user).commands.into_iter().map(whole).collect();
    let missing: Vec<_> = used.difference(&allowed).collect();
    let unused: Vec<_> = allowed.difference(&used).collect();
    assert!(
        missing.is_empty() && unused.is_empty(),
        "the Redis user {user} lacks {missing:?}, and has without need {unused:?}"
    );
}

/// Asserts that Redis refuses a user the keys of others, and commands that read whole lists or
/// govern the server.
///
/// # Panics
/// With what was not refused.
pub async fn assert_confined(user: &str) {
    let server = RedisServer::start().await;
    let mut connection = connect(&server.url(user)).await.expect("connect");
    let mut refused = async |words: &[&str]| {
        let mut command = cmd(words[0]);
        let answer = command.arg(&words[1..]).query_async::<Value>(&mut connection).await;
        let error = answer.expect_err(&format!("{words:?} is to be refused"));
        assert_eq!(error.code(), Some("NOPERM"), "{words:?}: {error}");
    };
    let own = settings::rights(user).keys;
    let others: Vec<_> = KEYS.iter().filter(|key| !key.starts_with(&own)).collect();
    assert_eq!(others.len(), KEYS.len() - 1, "{user} has the keys {own}…");
    for key in others {
        for words in [&["GET", key][..], &["SET", key, "1"], &["ZADD", key, "1", "2"]] {
            refused(words).await;
        }
    }
    let own = format!("{own}{{1}}:key");
    for words in REFUSED {
        let words: Vec<_> =
            words.iter().map(|&word| if word == "OWN" { &own } else { word }).collect();
        refused(&words).await;
    }
}

// The sources name a command that has others below it, such as XGROUP, and which of them, apart.
fn whole(command: String) -> String {
    let is_of_the_keyspace = OF_THE_KEYSPACE.contains(&&*command)
        || OF_METHODS.iter().any(|(_, of_method)| *of_method == command);
    match command.split_once('|') {
        Some((whole, _)) if !is_of_the_keyspace => whole.to_owned(),
        _ => command,
    }
}

fn used(directory: &Path, names: &BTreeSet<String>) -> BTreeSet<String> {
    let mut sources = Vec::new();
    read(&directory.join("src"), &mut sources);
    let lua: String =
        sources.iter().filter(|(is_lua, _)| *is_lua).map(|(_, text)| &**text).collect();
    let prelude = fs::read_to_string(PRELUDE).unwrap_or_else(|error| panic!("{PRELUDE}: {error}"));
    let called = called(&lua, &functions(&prelude));
    let is_called = |method: &str| sources.iter().any(|(_, text)| text.contains(method));
    let of_methods = OF_METHODS.into_iter().filter(|(method, _)| is_called(method));
    let of_the_keyspace = OF_THE_KEYSPACE.into_iter().chain(of_methods.map(|(_, command)| command));
    let texts = sources.iter().map(|(_, text)| &**text).chain(called);
    let own = texts.flat_map(capitals).map(str::to_lowercase).filter(|word| names.contains(word));
    of_the_keyspace.map(str::to_owned).chain(own).collect()
}

/// Reads all sources without their tests; with each, whether it is Lua.
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

/// Returns the functions of a Lua text by their names.
fn functions(text: &str) -> BTreeMap<&str, &str> {
    let begun = text.split("\nlocal function ").skip(1);
    let ended = begun.filter_map(|rest| rest.split("\nend\n").next());
    ended.filter_map(|function| Some((function.split_once('(')?.0, function))).collect()
}

/// Returns those functions that a Lua text names, and those that these name.
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

/// Returns the quoted words in capitals.
fn capitals(text: &str) -> impl Iterator<Item = &str> {
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
    fn commands_are_found_where_they_are_named_and_called() {
        let prelude = "\nlocal function now()\n  redis.call('TIME')\nend\n\
                       \nlocal function issue(key)\n  now() redis.call('GET', key)\nend\n\
                       \nlocal function bury()\n  call_with('ZREM', old)\nend\n";
        let functions = functions(prelude);
        let names: Vec<_> = functions.keys().copied().collect();
        assert_eq!(names, ["bury", "issue", "now"]);
        let called = called("-- never bury\nissue(keys[1]) unbury()", &functions);
        let words: Vec<_> = called.into_iter().flat_map(capitals).collect();
        assert_eq!(words, ["GET", "TIME"]);
        let words: Vec<_> =
            capitals("it's cmd(\"ZADD\").arg(\"NX\") 'don't' \"A\" \"SSca\"").collect();
        assert_eq!(words, ["ZADD", "NX"]);
    }
}
