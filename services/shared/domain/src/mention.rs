//! Mentions of accounts in texts.
//!
//! A text contains names, which are resolved when the text is read. Since then a name may have passed to
//! another account, so a mention refers to an account only if the account is older than the text. Names
//! cannot be changed: the owner at the time of writing has had the name since registration, and a later
//! owner is younger. Ids contain their time of creation, so nothing needs to be stored. (An id is issued
//! some milliseconds before its name is claimed. That matters only if names of deleted accounts become
//! free at once.)

use crate::Stamp;

/// Returns whether an account existed when a text was written, to the millisecond. The clocks of
/// two partitions may differ like those of two machines, so an account created just before may
/// count as younger. Its mention then refers to no account, rather than to the wrong account.
pub fn is_no_younger(user_id: u64, text_id: u64) -> bool {
    let made = |id: u64| Stamp::new(id).map(Stamp::time);
    made(user_id).zip(made(text_id)).is_some_and(|(account, text)| account <= text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_mentions_no_younger_account() {
        // In another partition, whose stamps of the same time are larger.
        let [at, other] = [3, 9].map(|partition| move |ms: u64| (ms << 12) | (partition << 2));
        assert!(is_no_younger(other(5), at(6)) && is_no_younger(other(5), at(5)));
        assert!(!is_no_younger(other(6), at(5)) && !is_no_younger(other(500), at(5)));
        assert!(!is_no_younger(u64::MAX, at(5)));
    }
}
