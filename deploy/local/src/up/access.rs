//! Redis ACL of the private redis-server: the project's users with random passwords, and an
//! administrator.

use std::collections::BTreeMap;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

const USERS_ACL: &str = include_str!("../../../redis/users.acl");
const ADMIN: &str = "admin";
const PASSWORD_BYTES: usize = 24;

/// The passwords of all users.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Passwords(BTreeMap<String, String>);

/// Address and credentials of the private redis-server.
#[derive(Clone)]
pub struct Access {
    /// The port on 127.0.0.1.
    pub(super) port: u16,
    /// The passwords of its users.
    pub(super) passwords: Passwords,
}

impl Passwords {
    /// Parses `user password` lines, and generates passwords for users without one.
    pub(super) fn complete(lines: &str) -> Self {
        let given = lines.lines().filter_map(|line| line.split_once(' '));
        let mut passwords: BTreeMap<String, String> =
            given.map(|(user, password)| (user.to_owned(), password.to_owned())).collect();
        for user in users(USERS_ACL).iter().filter_map(|user| name(user)).chain([ADMIN]) {
            passwords.entry(user.to_owned()).or_insert_with(new_password);
        }
        Self(passwords)
    }

    /// Returns the passwords as `user password` lines.
    pub(super) fn lines(&self) -> String {
        self.0.iter().map(|(user, password)| format!("{user} {password}\n")).collect()
    }

    /// Returns the ACL file for redis-server, with password hashes.
    pub(super) fn acl(&self) -> String {
        acl(USERS_ACL, &self.0)
    }
}

impl Access {
    /// Returns the URL for a service's user.
    pub fn url(&self, user: &str) -> anyhow::Result<String> {
        let Self { port, passwords: Passwords(passwords) } = self;
        let password = passwords
            .get(user)
            .with_context(|| format!("redis/users.acl of this build has no user `{user}`"))?;
        Ok(format!("redis://{user}:{password}@127.0.0.1:{port}"))
    }

    /// Returns the URL for the administrator.
    pub fn admin_url(&self) -> anyhow::Result<String> {
        self.url(ADMIN)
    }
}

/// Returns the users of the project's ACL file, one per line, as redis-server requires: without
/// comments, with indented lines joined.
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

/// Returns the name of the user on a line, except the disabled default user.
fn name(user: &str) -> Option<&str> {
    user.split(' ').nth(1).filter(|&name| name != "default")
}

/// Returns an ACL file with a password hash for each user, and an administrator.
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
    fn every_user_except_default_gets_a_password() {
        let template =
            "# who\n\nuser default off\n\nuser post on ~pst:*\n    # some\n    +get +set\n";
        let passwords = BTreeMap::from([
            ("post".to_owned(), "secret".to_owned()),
            (ADMIN.to_owned(), "root".to_owned()),
        ]);
        let acl = acl(template, &passwords);
        let lines: Vec<_> = acl.lines().collect();
        assert_eq!(lines[0], "user default off");
        assert!(
            lines[1].starts_with("user post on ~pst:* +get +set #2bb80d537b1da3e38bd30361aa85")
        );
        assert!(lines[2].starts_with("user admin on ~* &* +@all #"));
        assert_eq!(lines.len(), 3);
        assert!(!acl.contains("secret"));
    }

    #[test]
    fn existing_passwords_are_kept_and_new_users_get_one() {
        let first = Passwords::complete("relation kept\n");
        assert_eq!(first.0["relation"], "kept");
        assert_eq!(first.0["user"].len(), 2 * PASSWORD_BYTES);
        assert_ne!(first.0[ADMIN], Passwords::complete("").0[ADMIN]);
        assert!(Passwords::complete(&first.lines()) == first);
    }
}
