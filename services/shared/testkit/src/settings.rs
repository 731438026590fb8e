//! The settings of the tests' redis-servers: those of `deploy/redis`, with passwords.

use std::{collections::BTreeSet, path::Path};

/// The user of servers among themselves, and of tests that look at what a service may not.
pub const ADMIN: &str = "admin";

/// Returns the password of a user in tests. It has characters that an address must encode.
pub fn password(user: &str) -> String {
    format!("{user}/p@ss")
}

/// Writes the configuration that all servers share: a Sentinel makes its servers rewrite theirs.
///
/// Tests kill servers, not machines, and then ask for all that was acknowledged. With `everysec` a
/// server may acknowledge what it has not written yet, while an earlier second is being synced; with
/// `no` it always writes first, and what was written outlives it.
pub(crate) fn write_config(to: &Path) {
    let path = format!("{}/redis.conf", directory());
    let shared = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    std::fs::write(to, shared + "\nappendfsync no\n").expect("write the configuration");
}

/// Writes the users of `deploy/redis/users.acl`, and an administrator, as Redis reads them.
pub(crate) fn write_acl(to: &Path) {
    std::fs::write(to, acl(&users())).expect("write the ACL file");
}

/// What a user may do.
pub(crate) struct Rights {
    /// What its keys begin with.
    pub(crate) keys: String,
    /// Its commands, in small letters.
    pub(crate) commands: BTreeSet<String>,
}

/// Returns what a user in `deploy/redis/users.acl` may do.
pub(crate) fn rights(user: &str) -> Rights {
    let users = acl(&users());
    let mut lines = users.lines().map(|line| line.split(' '));
    let rules = lines.find(|line| line.clone().nth(1) == Some(user)).expect("a user");
    let keys = rules.clone().find_map(|rule| rule.strip_prefix('~')?.strip_suffix('*'));
    let commands = rules.filter_map(|rule| rule.strip_prefix('+')).map(str::to_owned).collect();
    Rights { keys: keys.expect("keys that begin alike").to_owned(), commands }
}

fn users() -> String {
    let path = format!("{}/users.acl", directory());
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn directory() -> String {
    format!("{}/../../../deploy/redis", env!("CARGO_MANIFEST_DIR"))
}

// Comments dropped, indented lines joined to the user's first one, passwords added.
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

/// Returns the part of an address that says who one is.
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
