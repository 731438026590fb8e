//! Who may what in the private redis-server: the project's users, with passwords of their own, and
//! an admin. Pure but for the random numbers.

use std::collections::BTreeMap;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

const USERS_ACL: &str = include_str!("../../../redis/users.acl");
const ADMIN: &str = "admin";
const PASSWORD_BYTES: usize = 24;

/// The passwords of all users.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Passwords(BTreeMap<String, String>);

/// How to talk to the private redis-server.
#[derive(Clone)]
pub struct Access {
    /// The port of 127.0.0.1 that it listens on.
    pub(super) port: u16,
    /// Those that it knows.
    pub(super) passwords: Passwords,
}

impl Passwords {
    /// Reads `user password` lines, and makes passwords at random for users that have none.
    pub(super) fn complete(lines: &str) -> Self {
        let given = lines.lines().filter_map(|line| line.split_once(' '));
        let mut passwords: BTreeMap<String, String> =
            given.map(|(user, password)| (user.to_owned(), password.to_owned())).collect();
        for user in users(USERS_ACL).iter().filter_map(|user| name(user)).chain([ADMIN]) {
            passwords.entry(user.to_owned()).or_insert_with(new_password);
        }
        Self(passwords)
    }

    /// Returns them as `user password` lines.
    pub(super) fn lines(&self) -> String {
        self.0.iter().map(|(user, password)| format!("{user} {password}\n")).collect()
    }

    /// Returns the ACL file for redis-server: each user with the hash of a password.
    pub(super) fn acl(&self) -> String {
        acl(USERS_ACL, &self.0)
    }
}

impl Access {
    /// Returns the address for one of the services.
    pub fn url(&self, user: &str) -> anyhow::Result<String> {
        let Self { port, passwords: Passwords(passwords) } = self;
        let password = passwords
            .get(user)
            .with_context(|| format!("redis/users.acl of this build knows no user `{user}`"))?;
        Ok(format!("redis://{user}:{password}@127.0.0.1:{port}"))
    }

    /// Returns the address for the launcher itself.
    pub fn admin_url(&self) -> anyhow::Result<String> {
        self.url(ADMIN)
    }
}

/// Returns the users of the project's ACL file, each on one line, as redis-server wants them:
/// comments dropped, indented lines joined to the user's first one.
fn users(template: &str) -> Vec<String> {
    let mut users: Vec<String> = Vec::new();
    for line in template.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let words = line.split_whitespace();
        match users.last_mut() {
            Some(user) if line.starts_with(char::is_whitespace) => {
                words.for_each(|word| user.extend([" ", word]));
            }
            _ if line.is_empty() => {}
            _ => users.push(words.collect::<Vec<_>>().join(" ")),
        }
    }
    users
}

/// Returns the name of the user on a line, unless it is the default one, which is off.
fn name(user: &str) -> Option<&str> {
    user.split(' ').nth(1).filter(|&name| name != "default")
}

/// Returns an ACL file in which each user has a password, by its hash, and there is an admin.
fn acl(template: &str, passwords: &BTreeMap<String, String>) -> String {
    let mut users = users(template);
    users.push(format!("user {ADMIN} on ~* &* +@all"));
    let line = |user: String| match name(&user).and_then(|name| passwords.get(name)) {
        Some(password) => format!("{user} #{}\n", hex::encode(Sha256::digest(password))),
        None => user + "\n",
    };
    users.into_iter().map(line).collect()
}

fn new_password() -> String {
    hex::encode(rand::random::<[u8; PASSWORD_BYTES]>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_but_the_default_gets_a_password() {
        let template =
            "# who\n\nuser default off\n\nuser post on ~post:*\n    # some\n    +get +set\n";
        let passwords = BTreeMap::from([
            ("post".to_owned(), "secret".to_owned()),
            (ADMIN.to_owned(), "root".to_owned()),
        ]);
        let acl = acl(template, &passwords);
        let lines: Vec<_> = acl.lines().collect();
        assert_eq!(lines[0], "user default off");
        assert!(
            lines[1].starts_with("user post on ~post:* +get +set #2bb80d537b1da3e38bd30361aa85")
        );
        assert!(lines[2].starts_with("user admin on ~* &* +@all #"));
        assert_eq!(lines.len(), 3);
        assert!(!acl.contains("secret"));
    }

    #[test]
    fn passwords_are_kept_and_new_users_get_theirs() {
        let first = Passwords::complete("relation kept\n");
        assert_eq!(first.0["relation"], "kept");
        assert_eq!(first.0["user"].len(), 2 * PASSWORD_BYTES);
        assert_ne!(first.0[ADMIN], Passwords::complete("").0[ADMIN]);
        assert!(Passwords::complete(&first.lines()) == first);
    }
}
