//! How the store writes contents: as protobuf messages, which later versions may extend. They take
//! less memory than named fields; `benches/memory.rs` measures how much.

use microblog_domain::{CommentId, PostId, UserId};
use microblog_keyspace::Error;
use prost::Message;

use super::malformed;
use crate::post::{CommentContent, Content, Origin, Reply};

/// What a post says.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PostBody {
    #[prost(uint64, tag = "1")]
    author: u64,
    #[prost(string, tag = "2")]
    text: String,
    /// 0 of what is no repost.
    #[prost(uint64, tag = "3")]
    root: u64,
    /// 0 where it is the root.
    #[prost(uint64, tag = "4")]
    reposted: u64,
}

/// What a comment says.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CommentBody {
    #[prost(uint64, tag = "1")]
    author: u64,
    #[prost(string, tag = "2")]
    text: String,
    /// The comment that it answers; 0 for none.
    #[prost(uint64, tag = "3")]
    in_reply_to: u64,
    /// Who wrote that.
    #[prost(uint64, tag = "4")]
    in_reply_to_author: u64,
}

impl PostBody {
    /// Writes a content.
    pub(super) fn write(content: &Content) -> Vec<u8> {
        let Content { author, text, origin } = content;
        let (root, reposted) = origin.map_or((0, 0), |Origin { root, reposted }| {
            (root.get(), if reposted == root { 0 } else { reposted.get() })
        });
        Self { author: author.get(), text: text.clone(), root, reposted }.encode_to_vec()
    }

    /// Reads a content.
    pub(super) fn read(bytes: &[u8]) -> Result<Content, Error> {
        let damaged = || malformed("a post's content");
        let Self { author, text, root, reposted } = Self::decode(bytes).map_err(|_| damaged())?;
        let author = UserId::new(author).ok_or_else(damaged)?;
        let origin = match PostId::new(root) {
            None => None,
            Some(root) => {
                let reposted = PostId::new(reposted).unwrap_or(root);
                Some(Origin { root, reposted })
            }
        };
        Ok(Content { author, text, origin })
    }
}

impl CommentBody {
    /// Writes a content.
    pub(super) fn write(content: &CommentContent) -> Vec<u8> {
        let CommentContent { author, text, in_reply_to } = content;
        let (to, to_author) =
            in_reply_to.map_or((0, 0), |Reply { to, author }| (to.get(), author.get()));
        let (author, text) = (author.get(), text.clone());
        Self { author, text, in_reply_to: to, in_reply_to_author: to_author }.encode_to_vec()
    }

    /// Reads a content.
    pub(super) fn read(bytes: &[u8]) -> Result<CommentContent, Error> {
        let damaged = || malformed("a comment's content");
        let body = Self::decode(bytes).map_err(|_| damaged())?;
        let author = UserId::new(body.author).ok_or_else(damaged)?;
        let in_reply_to = CommentId::new(body.in_reply_to)
            .zip(UserId::new(body.in_reply_to_author))
            .map(|(to, author)| Reply { to, author });
        Ok(CommentContent { author, text: body.text, in_reply_to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_read_as_they_were_written() {
        let author = UserId::new(5).unwrap();
        let [root, other] = [6, 7].map(|id| PostId::new(id).unwrap());
        for origin in [None, Some((root, root)), Some((root, other))] {
            let origin = origin.map(|(root, reposted)| Origin { root, reposted });
            let content = Content { author, text: "hello".to_owned(), origin };
            assert_eq!(PostBody::read(&PostBody::write(&content)).unwrap(), content);
        }
        for in_reply_to in [None, CommentId::new(8).map(|to| Reply { to, author })] {
            let content = CommentContent { author, text: "well".to_owned(), in_reply_to };
            assert_eq!(CommentBody::read(&CommentBody::write(&content)).unwrap(), content);
        }
    }

    #[test]
    fn what_is_damaged_is_told() {
        assert!(PostBody::read(b"\xff\xff").is_err());
        assert!(PostBody::read(b"").is_err(), "nobody wrote it");
        assert!(CommentBody::read(b"").is_err(), "nobody wrote it");
    }
}
