//! Messages in streams: each has a prefix of its flags and its length, in gRPC, gRPC-Web and Connect.

use bytes::{BufMut as _, Bytes, BytesMut};

/// The bytes of a prefix.
pub(super) const PREFIX: usize = 5;
/// The flag of a compressed message.
pub(super) const COMPRESSED: u8 = 1;
/// The flag of the end of a stream of Connect.
pub(super) const END: u8 = 2;

/// Returns a message with its prefix.
pub(super) fn enclose(flags: u8, message: &[u8]) -> Bytes {
    let mut envelope = BytesMut::with_capacity(PREFIX + message.len());
    envelope.put_u8(flags);
    // A message of 4 GiB would not fit into memory.
    envelope.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    envelope.put_slice(message);
    envelope.freeze()
}
