//! The settings of the tests' redis-servers: those of `deploy/redis`, with passwords.

use std::path::Path;

/// The user of servers among themselves, and of tests that look at what a service may not.
pub const ADMIN: &str = "admin";

/// Returns the password of a user in tests. It has characters that an address must encode.
pub fn password(user: &str) -> String {
    format!("{user}/p@ss")
}

/// Copies the configuration that all servers share: a Sentinel makes its servers rewrite theirs.
pub(crate) fn write_config(to: &Path) {
    let path = format!("{}/redis.conf", directory());
    std::fs::copy(&path, to).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Writes the users of `deploy/redis/users.acl`, and an administrator, as Redis reads them.
pub(crate) fn write_acl(to: &Path) {
    let path = format!("{}/users.acl", directory());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    std::fs::write(to, acl(&text)).expect("write the ACL file");
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
