//! Entries of the change journal, as the Redis functions append them.

use microblog_domain::UserId;

/// An entry of the change journal of a partition. It says what to read again: it has no texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalEntry {
    /// An account was registered. Has the version.
    Registration(UserId, u64),
    /// The profile of an account changed. Has the version.
    Update(UserId, u64),
    /// The password of an account changed, or a session of it ended.
    Credentials(UserId),
    /// An account was deleted. Has the version.
    Deletion(UserId, u64),
    /// The deletion of an account was confirmed.
    Confirmation(UserId),
    /// A name or address of this partition was claimed or released by an account or registration,
    /// of any partition.
    Claim(UserId),
}

impl JournalEntry {
    /// Decodes an entry; `None` if it is malformed.
    pub fn parse(entry: &str) -> Option<Self> {
        let (kind, rest) = entry.split_once(' ')?;
        let (id, stamp) = rest.split_once(' ')?;
        let id = UserId::new(id.parse().ok()?)?;
        let stamp: u64 = stamp.parse().ok()?;
        match kind {
            "register" => Some(Self::Registration(id, stamp)),
            "update" => Some(Self::Update(id, stamp)),
            "password" | "logout" => Some(Self::Credentials(id)),
            "delete" => Some(Self::Deletion(id, stamp)),
            "deleted" => Some(Self::Confirmation(id)),
            "claim" | "release" => Some(Self::Claim(id)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_decoded() {
        let id = UserId::new(4).unwrap();
        for (kinds, expected) in [
            (&["register"][..], JournalEntry::Registration(id, 9)),
            (&["update"], JournalEntry::Update(id, 9)),
            (&["password", "logout"], JournalEntry::Credentials(id)),
            (&["delete"], JournalEntry::Deletion(id, 9)),
            (&["deleted"], JournalEntry::Confirmation(id)),
            (&["claim", "release"], JournalEntry::Claim(id)),
        ] {
            for kind in kinds {
                assert_eq!(JournalEntry::parse(&format!("{kind} 4 9")), Some(expected), "{kind}");
            }
        }
    }

    #[test]
    fn malformed_entries_are_none() {
        for entry in
            ["", "update", "update 4", "update 0 9", "update 4 9 1", "update x 9", "follow 4 9"]
        {
            assert_eq!(JournalEntry::parse(entry), None, "{entry}");
        }
    }

    #[test]
    fn fuzz_entries() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            if JournalEntry::parse(&text).is_some() {
                assert!(text.split(' ').count() >= 3, "{text}");
            }
        });
    }
}
