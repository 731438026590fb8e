//! The hash of a post: its content and counts.

use microblog_domain::PostId;
use microblog_keyspace::{
    Error, Kind, decode,
    redis::{Cmd, Value, cmd},
};

use super::body::PostBody;
use crate::{
    keys,
    post::{Content, Counts, Post},
};

/// The cached read of posts, for callers without a viewer.
pub(super) const KIND: Kind<PostId, Option<Post>> = Kind {
    command: |id| (id.partition(), fields(id)),
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
