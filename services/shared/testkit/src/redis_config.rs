//! The configuration of the tests' redis-servers: that of `deploy/redis`, with passwords.

use std::{collections::BTreeSet, path::Path};

/// The user of replication and Sentinel, and of tests that read keys of any service.
pub const ADMIN: &str = "admin";

/// Returns the password of a user in tests. It has characters that a URL must percent-encode.
pub fn password(user: &str) -> String {
    format!("{user}/p@ss")
}

/// Writes the configuration of a server. Each server needs its own file, since a Sentinel rewrites
/// it.
///
/// Tests kill processes, not machines, and expect every acknowledged write afterwards. With
/// `appendfsync everysec`, a server may acknowledge a write before `write(2)`, while an earlier
/// fsync is running. With `no`, it calls `write(2)` first, and the data survives the process.
pub(crate) fn write_config(to: &Path) {
    let path = format!("{}/redis.conf", directory());
    let shared = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    std::fs::write(to, shared + "\nappendfsync no\n").expect("write the configuration");
}

/// Writes the users of `deploy/redis/users.acl` and an administrator as an ACL file.
pub(crate) fn write_acl(to: &Path) {
    std::fs::write(to, acl(&users())).expect("write the ACL file");
}

/// The permissions of a user.
pub(crate) struct Permissions {
    /// The prefix of its keys.
    pub(crate) keys: String,
    /// Its commands, in lower case.
    pub(crate) commands: BTreeSet<String>,
}

/// Returns the permissions of a user in `deploy/redis/users.acl`.
pub(crate) fn permissions(user: &str) -> Permissions {
    let users = acl(&users());
    let mut lines = users.lines().map(|line| line.split(' '));
    let rules = lines.find(|line| line.clone().nth(1) == Some(user)).expect("a user");
    let keys = rules.clone().find_map(|rule| rule.strip_prefix('~')?.strip_suffix('*'));
    let commands = rules.filter_map(|rule| rule.strip_prefix('+')).map(str::to_owned).collect();
    Permissions { keys: keys.expect("a key prefix").to_owned(), commands }
}

fn users() -> String {
    let path = format!("{}/users.acl", directory());
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn directory() -> String {
    format!("{}/../../../deploy/redis", env!("CARGO_MANIFEST_DIR"))
}

// Drops comments, joins indented lines to the user's first line, and adds passwords.
fn acl(text: &str) -> String {
    let mut users: Vec<String> = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with("user ") {
            users.push(words.join(" "));
        } else if !words.is_empty() {
            let user = users.last_mut().expect("the ACL file starts with a user");
            user.push(' ');
            user.push_str(&words.join(" "));
        }
    }
    users.push(format!("user {ADMIN} on ~* &* +@all"));
    for user in &mut users {
        let name = user.split(' ').nth(1).unwrap_or_default().to_owned();
        if name != "default" {
            user.push_str(&format!(" >{}", password(&name)));
        }
    }
    users.join("\n") + "\n"
}

/// Returns the user and password part of a URL.
pub(crate) fn credentials(user: &str) -> String {
    format!("{user}:{}", password(user).replace('/', "%2F").replace('@', "%40"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_get_passwords_and_one_line_each() {
        let text = "# all\nuser default off\n\nuser a on ~a:*\n    # some\n    +get +set\n";
        let expected = "user default off\nuser a on ~a:* +get +set >a/p@ss\n\
                        user admin on ~* &* +@all >admin/p@ss\n";
        assert_eq!(acl(text), expected);
    }
}
