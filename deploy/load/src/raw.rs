//! Calls whose messages are bytes: nobody encodes or reads what nobody needs, which on a shared
//! machine would cost as much as a part of the server.

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};

/// Calls a method, and returns the answer as it came.
pub(crate) async fn call(
    channel: Channel,
    path: PathAndQuery,
    request: Request<Bytes>,
) -> Result<Bytes, Status> {
    let mut grpc = Grpc::new(channel);
    let not_ready = |error| Status::unavailable(format!("not connected: {error}"));
    grpc.ready().await.map_err(not_ready)?;
    Ok(grpc.unary(request, path, Raw).await?.into_inner())
}

/// Puts bytes on the wire and takes them off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
