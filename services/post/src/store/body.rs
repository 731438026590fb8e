//! The stored formats. A post is a hash of its content and counts. Contents are protobuf messages, which later versions may extend. They take
//! less memory than named fields; `benches/memory.rs` measures how much.
//!
//! A text is stored in the shorter of UTF-8 and UTF-16: Chinese and Japanese take two bytes a
//! character in UTF-16, and three in UTF-8.

use microblog_domain::{CommentId, PostId, UserId};
use microblog_keyspace::{
    Error, Kind, decode,
    redis::{Cmd, Value, cmd},
};
use prost::Message;

use super::decode::malformed;
use crate::{
    keys,
    post::{CommentContent, Content, Counts, Origin, Post, Reply},
};

/// The content of a post.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PostBody {
    #[prost(uint64, tag = "1")]
    author: u64,
    #[prost(string, tag = "2")]
    text: String,
    /// 0 if it is not a repost.
    #[prost(uint64, tag = "3")]
    root: u64,
    /// 0 if it is the root.
    #[prost(uint64, tag = "4")]
    reposted: u64,
    /// Instead of `text`, if shorter.
    #[prost(bytes = "vec", tag = "5")]
    text_utf16: Vec<u8>,
}

/// The content of a comment.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CommentBody {
    #[prost(uint64, tag = "1")]
    author: u64,
    #[prost(string, tag = "2")]
    text: String,
    /// The comment that this one replies to; 0 for none.
    #[prost(uint64, tag = "3")]
    in_reply_to: u64,
    /// Its author.
    #[prost(uint64, tag = "4")]
    in_reply_to_author: u64,
    /// Instead of `text`, if shorter.
    #[prost(bytes = "vec", tag = "5")]
    text_utf16: Vec<u8>,
}

/// Encodes a text into the fields `text` and `text_utf16`, one of which is empty.
fn write_text(text: &str) -> (String, Vec<u8>) {
    if 2 * text.encode_utf16().count() < text.len() {
        (String::new(), text.encode_utf16().flat_map(u16::to_le_bytes).collect())
    } else {
        (text.to_owned(), Vec::new())
    }
}

/// Decodes a text from these fields; `None` if they are malformed.
fn read_text(text: String, text_utf16: &[u8]) -> Option<String> {
    if text_utf16.is_empty() {
        return Some(text);
    }
    let (units, rest) = text_utf16.as_chunks::<2>();
    let units: Vec<u16> = units.iter().map(|unit| u16::from_le_bytes(*unit)).collect();
    String::from_utf16(&units).ok().filter(|_| rest.is_empty() && text.is_empty())
}

impl PostBody {
    /// Encodes a content.
    pub(super) fn write(content: &Content) -> Vec<u8> {
        let Content { author, text, origin } = content;
        let (root, reposted) = origin.map_or((0, 0), |Origin { root, reposted }| {
            (root.get(), if reposted == root { 0 } else { reposted.get() })
        });
        let (text, text_utf16) = write_text(text);
        Self { author: author.get(), text, root, reposted, text_utf16 }.encode_to_vec()
    }

    /// Decodes a content.
    pub(super) fn read(bytes: &[u8]) -> Result<Content, Error> {
        let damaged = || malformed("a post's content");
        let body = Self::decode(bytes).map_err(|_| damaged())?;
        let Self { author, text, root, reposted, text_utf16 } = body;
        let author = UserId::new(author).ok_or_else(damaged)?;
        let text = read_text(text, &text_utf16).ok_or_else(damaged)?;
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
    /// Encodes a content.
    pub(super) fn write(content: &CommentContent) -> Vec<u8> {
        let CommentContent { author, text, in_reply_to } = content;
        let (to, to_author) =
            in_reply_to.map_or((0, 0), |Reply { to, author }| (to.get(), author.get()));
        let (author, (text, text_utf16)) = (author.get(), write_text(text));
        let body =
            Self { author, text, in_reply_to: to, in_reply_to_author: to_author, text_utf16 };
        body.encode_to_vec()
    }

    /// Decodes a content.
    pub(super) fn read(bytes: &[u8]) -> Result<CommentContent, Error> {
        let damaged = || malformed("a comment's content");
        let body = Self::decode(bytes).map_err(|_| damaged())?;
        let author = UserId::new(body.author).ok_or_else(damaged)?;
        let in_reply_to = CommentId::new(body.in_reply_to)
            .zip(UserId::new(body.in_reply_to_author))
            .map(|(to, author)| Reply { to, author });
        let text = read_text(body.text, &body.text_utf16).ok_or_else(damaged)?;
        Ok(CommentContent { author, text, in_reply_to })
    }
}

/// The cached read of posts, for callers without a viewer.
pub(super) const CACHED_POST: Kind<PostId, Option<Post>> = Kind {
    partition: PostId::partition,
    command: fields,
    id: keys::id_of_post,
    decode: read,
    heap_bytes: |post| post.as_ref().map_or(0, |post| post.content.text.capacity()),
};

/// Returns the command that reads a post.
pub(super) fn fields(id: PostId) -> Cmd {
    cmd("HMGET").arg(keys::post(id)).arg(&["b", "l", "c", "r"]).take()
}

/// Decodes a post; `None` if it is missing or malformed.
pub(super) fn read(id: PostId, fields: Value) -> Result<Option<Post>, Error> {
    let (body, likes, comments, reposts): (Option<Vec<u8>>, Value, Value, Value) = decode(fields)?;
    let Some(body) = body else { return Ok(None) };
    let content = readable(id, &body);
    let count = |field| decode::<Option<u64>>(field).map(Option::unwrap_or_default);
    let counts = [likes, comments, reposts].map(count);
    let [Ok(likes), Ok(comments), Ok(reposts)] = counts else {
        tracing::error!(post = id.get(), "malformed counts of a post");
        return Ok(None);
    };
    let counts = Counts { likes, comments, reposts };
    Ok(content.map(|content| Post { id, content, counts, liked: false }))
}

/// Decodes a content; `None` if it is malformed.
// A malformed post must not hide the others. `Verify` reports it.
pub(super) fn readable(id: PostId, body: &[u8]) -> Option<Content> {
    let content = PostBody::read(body);
    content.inspect_err(|_| tracing::error!(post = id.get(), "malformed content of a post")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_round_trip() {
        let author = UserId::new(5).unwrap();
        for text in ["", "hello", "é", "微博", "微博 and more of it", "👩‍👩‍👧微", "Привет"]
        {
            let content = Content { author, text: text.to_owned(), origin: None };
            let bytes = PostBody::write(&content);
            assert_eq!(PostBody::read(&bytes).unwrap(), content);
            let shorter = text.len().min(2 * text.encode_utf16().count());
            assert_eq!(bytes.len(), 2 + if text.is_empty() { 0 } else { 2 } + shorter, "{text}");
        }
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
    fn malformed_contents_are_rejected() {
        assert!(PostBody::read(b"\xff\xff").is_err());
        assert!(PostBody::read(b"").is_err(), "not written by a service");
        assert!(PostBody::read(b"\x08\x05\x2a\x03abc").is_err(), "half a unit");
        assert!(PostBody::read(b"\x08\x05\x2a\x02\x00\xd8").is_err(), "half a character");
        assert!(CommentBody::read(b"").is_err(), "not written by a service");
    }

    #[test]
    fn fuzz_bodies() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(content) = PostBody::read(bytes) {
                assert_eq!(PostBody::read(&PostBody::write(&content)).unwrap(), content);
            }
            if let Ok(content) = CommentBody::read(bytes) {
                assert_eq!(CommentBody::read(&CommentBody::write(&content)).unwrap(), content);
            }
        });
    }
}
