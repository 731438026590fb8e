//! Entries of the change journal, as the Redis functions append them. The last word is a stamp.

use microblog_domain::{CommentId, PostId, RequestId, UserId};

use crate::post::MadeByRequest;

/// An entry of the change journal of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalEntry {
    /// A post was published.
    Post(PostId, MadeByRequest),
    /// A post was deleted. Has the stamp.
    Unpost(PostId, u64),
    /// A comment was added.
    Comment(PostId, CommentId, MadeByRequest),
    /// A comment was deleted. Has the stamp.
    Uncomment(PostId, CommentId, u64),
    /// A like or a repost of a post began or ended. It need not have existed before.
    Reaction(Reaction),
    /// A post was moved to the archive, or back.
    Moved(PostId),
    /// The account was deleted, and its data is being erased. Has the stamp.
    Forget(UserId, u64),
    /// The data of a deleted account is erased. Has the stamp.
    Forgotten(UserId, u64),
}

/// A list of a post without contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReactionList {
    /// The accounts that like it.
    Likes,
    /// Its reposts.
    Reposts,
}

/// The newest state of an entry of a post's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaction {
    /// The list.
    pub list: ReactionList,
    /// The post.
    pub post: PostId,
    /// The account or the repost.
    pub member: u64,
    /// Since when: a stamp, or the id of the repost.
    pub since: u64,
    /// Whether the entry is on the list.
    pub exists: bool,
}

impl JournalEntry {
    /// Decodes an entry; `None` if it is malformed.
    pub fn parse(entry: &str) -> Option<Self> {
        let (kind, rest) = entry.split_once(' ')?;
        let words: Vec<&str> = rest.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().ok();
        let post = |word: &str| PostId::new(number(word)?);
        let comment = |word: &str| CommentId::new(number(word)?);
        let user = |word: &str| UserId::new(number(word)?);
        let made = |id: u64, author: &str, request: &str, post: Option<PostId>| {
            let request = RequestId::parse("request_id", request).ok()?;
            Some(MadeByRequest { author: user(author)?, request, id, post })
        };
        let reaction = |list, [id, member, since]: [&str; 3], exists| {
            let (post, member, since) = (post(id)?, number(member)?, number(since)?);
            Some(Self::Reaction(Reaction { list, post, member, since, exists }))
        };
        use ReactionList::{Likes, Reposts};
        match (kind, &*words) {
            ("post", &[author, request, id]) => {
                let id = post(id)?;
                Some(Self::Post(id, made(id.get(), author, request, None)?))
            }
            ("unpost", &[id, stamp]) => Some(Self::Unpost(post(id)?, number(stamp)?)),
            ("comment", &[on, author, request, id]) => {
                let (on, id) = (post(on)?, comment(id)?);
                Some(Self::Comment(on, id, made(id.get(), author, request, Some(on))?))
            }
            ("uncomment", &[on, id, stamp]) => {
                Some(Self::Uncomment(post(on)?, comment(id)?, number(stamp)?))
            }
            ("like", &[post, account, since]) => reaction(Likes, [post, account, since], true),
            ("unlike", &[post, account, stamp]) => reaction(Likes, [post, account, stamp], false),
            ("repost", &[post, repost]) => reaction(Reposts, [post, repost, repost], true),
            ("unrepost", &[post, repost, stamp]) => reaction(Reposts, [post, repost, stamp], false),
            ("evict" | "restore", &[id, stamp]) => {
                number(stamp)?;
                post(id).map(Self::Moved)
            }
            ("forget", &[account, stamp]) => Some(Self::Forget(user(account)?, number(stamp)?)),
            ("forgotten", &[account, stamp]) => {
                Some(Self::Forgotten(user(account)?, number(stamp)?))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = "7c2d9b1e-53a4-4f0e-9a7e-0d5c1b7f2a01";

    #[test]
    fn entries_are_decoded() {
        let post = |id| PostId::new(id).unwrap();
        let comment = CommentId::new(9).unwrap();
        let author = UserId::new(4).unwrap();
        let request = RequestId::parse("request_id", REQUEST).unwrap();
        let made = |id, post| MadeByRequest { author, request, id, post };
        let reaction = |list, exists| {
            JournalEntry::Reaction(Reaction { list, post: post(8), member: 5, since: 7, exists })
        };
        let repost = Reaction {
            list: ReactionList::Reposts,
            post: post(8),
            member: 5,
            since: 5,
            exists: true,
        };
        for (entry, expected) in [
            (format!("post 4 {REQUEST} 8"), JournalEntry::Post(post(8), made(8, None))),
            ("unpost 8 9".into(), JournalEntry::Unpost(post(8), 9)),
            (
                format!("comment 8 4 {REQUEST} 9"),
                JournalEntry::Comment(post(8), comment, made(9, Some(post(8)))),
            ),
            ("uncomment 8 9 10".into(), JournalEntry::Uncomment(post(8), comment, 10)),
            ("like 8 5 7".into(), reaction(ReactionList::Likes, true)),
            ("unlike 8 5 7".into(), reaction(ReactionList::Likes, false)),
            ("repost 8 5".into(), JournalEntry::Reaction(repost)),
            ("unrepost 8 5 7".into(), reaction(ReactionList::Reposts, false)),
            ("evict 8 9".into(), JournalEntry::Moved(post(8))),
            ("restore 8 9".into(), JournalEntry::Moved(post(8))),
            ("forget 4 9".into(), JournalEntry::Forget(author, 9)),
            ("forgotten 4 9".into(), JournalEntry::Forgotten(author, 9)),
        ] {
            assert_eq!(JournalEntry::parse(&entry), Some(expected), "{entry}");
        }
    }

    #[test]
    fn malformed_entries_are_none() {
        for entry in
            ["", "post", "post 8 4", "post 8 4 7", "unpost 0 9", "like 8 5", "follow 1 2 3"]
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
