//! All Redis keys of the user service. The partition is the hash tag. No other file builds keys.
//!
//! | key | type | value |
//! | --- | --- | --- |
//! | `user:{p}:clock` | string | tick of the last id issued in the partition |
//! | `user:{p}:journal` | stream | the change journal ([`crate::JournalEntry`]); absent unless the service records its changes |
//! | `user:{p}:journal:record` | string | the identity of the record that has the partition |
//! | `user:{p}:journal:mark` | string | empty: written before WAIT, at the durability level `replicated` |
//! | `user:{p}:journal:lease` | string | the lease on the recovery of the partition: its holder; TTL 10 s |
//! | `user:{p}:profile:<u>` | hash | account, registration or deleted account: see [`crate::store`]; expires with the hold of a deleted account's name |
//! | `user:{p}:registrations` | zset | ids of pending and aborted registrations; score: the id |
//! | `user:{p}:accounts` | set (intset) | ids of the accounts, for `Verify` |
//! | `user:{p}:deletions` | zset | ids of deleted accounts that are not confirmed; score: the id |
//! | `user:{p}:freed` | zset | ids of deleted accounts whose names are held; score: end of the hold in Unix ms |
//! | `user:{p}:sessions:<u>` | zset | SHA-256 of a token → expiry in Unix ms; expires with the last session |
//! | `user:{h}:name:<name>` | string | claim on a name in lower case: the id; after a deletion, the negated id, which expires |
//! | `user:{h}:email:<address>` | string | claim on an address in lower case: the id |
//! | `user:{h}:external:<issuer> <id>` | string | claim on an external id: the account's id |
//! | `user:{h}:attempts:<login>` | hash | failed log-ins of an account by its address, or of an unknown name or address; TTL 1 hour, or 24 hours once throttled |
//!
//! In a profile, and in the database, the field `email` has the account's address: its e-mail address, or
//! issuer, space and id of an external id.
//!
//! `p` is the partition of the id, `h` that of the text.

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{key, number_behind};

use crate::{address::Address, identifier::Identifier, login::Login, name::Name};

/// Returns the prefix of all profile keys of a partition, to which the id is appended. The Redis
/// function issues the ids and completes the keys; the slot is the same.
pub(crate) fn profile_prefix(partition: Partition) -> String {
    key(format_args!("user:{{{partition}}}:profile:"))
}

pub(crate) fn profile(user: UserId) -> String {
    key(format_args!("user:{{{}}}:profile:{user}", user.partition()))
}

/// Returns the owner of a profile key.
pub(crate) fn owner_of_profile(key: &[u8]) -> Option<UserId> {
    UserId::new(number_behind("}:profile:", key)?)
}

pub(crate) fn sessions(user: UserId) -> String {
    key(format_args!("user:{{{}}}:sessions:{user}", user.partition()))
}

/// Returns the owner of a sessions key.
pub(crate) fn owner_of_sessions(key: &[u8]) -> Option<UserId> {
    UserId::new(number_behind("}:sessions:", key)?)
}

pub(crate) fn clock(partition: Partition) -> String {
    key(format_args!("user:{{{partition}}}:clock"))
}

pub(crate) fn journal(partition: Partition) -> String {
    key(format_args!("user:{{{partition}}}:journal"))
}

pub(crate) fn registrations(partition: Partition) -> String {
    key(format_args!("user:{{{partition}}}:registrations"))
}

pub(crate) fn accounts(partition: Partition) -> String {
    key(format_args!("user:{{{partition}}}:accounts"))
}

pub(crate) fn deletions(partition: Partition) -> String {
    key(format_args!("user:{{{partition}}}:deletions"))
}

pub(crate) fn freed(partition: Partition) -> String {
    key(format_args!("user:{{{partition}}}:freed"))
}

pub(crate) fn name(name: &Name) -> String {
    key(format_args!("user:{{{}}}:name:{}", name.partition(), name.unique()))
}

pub(crate) fn address(address: &Address) -> String {
    let kind = match address {
        Address::Email(_) => "email",
        Address::External(_) => "external",
    };
    key(format_args!("user:{{{}}}:{kind}:{}", address.partition(), address.unique()))
}

/// Returns the key of a claim.
pub(crate) fn claim(claim: Identifier<'_>) -> String {
    match claim {
        Identifier::Name(text) => name(text),
        Identifier::Address(text) => address(text),
    }
}

pub(crate) fn attempts(login: &Login) -> String {
    key(format_args!("user:{{{}}}:attempts:{}", login.partition(), login.unique()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_an_account_are_in_its_partition() {
        let user = UserId::new((7 << 12) | (1023 << 2) | 1).unwrap();
        assert_eq!(profile(user), "user:{1023}:profile:32765");
        assert_eq!(owner_of_profile(profile(user).as_bytes()), Some(user));
        assert_eq!(owner_of_profile(sessions(user).as_bytes()), None);
        assert_eq!(sessions(user), "user:{1023}:sessions:32765");
        assert_eq!(owner_of_sessions(sessions(user).as_bytes()), Some(user));
        assert_eq!(owner_of_sessions(profile(user).as_bytes()), None);
        assert_eq!(clock(user.partition()), "user:{1023}:clock");
        assert_eq!(registrations(user.partition()), "user:{1023}:registrations");
        assert_eq!(accounts(user.partition()), "user:{1023}:accounts");
        assert_eq!(deletions(user.partition()), "user:{1023}:deletions");
    }

    #[test]
    fn claims_ignore_case_and_share_the_partition_of_the_counter() {
        let lower = Address::stored("ann@example.org").unwrap();
        let upper = Address::stored("ANN@Example.org").unwrap();
        assert_eq!(address(&lower), address(&upper));
        let at = lower.partition();
        assert_eq!(address(&lower), format!("user:{{{at}}}:email:ann@example.org"));
        let throttle_key = attempts(&Login::Address(lower));
        assert_eq!(throttle_key, format!("user:{{{at}}}:attempts:ann@example.org"));
        let ann = Name::parse("name", "Ann").unwrap();
        assert_eq!(name(&ann), format!("user:{{{}}}:name:ann", ann.partition()));
    }

    #[test]
    fn an_address_cannot_inject_a_hash_tag() {
        // Only the first pair of braces is the hash tag, and user input comes after it.
        for odd in ["{1}@example.org", "{1} {2}"] {
            let odd = Address::stored(odd).unwrap();
            assert!(address(&odd).starts_with(&format!("user:{{{}}}:", odd.partition())));
        }
    }
}
