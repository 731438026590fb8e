//! gRPC calls with encoded messages. Encoding and decoding would cost about as much CPU as parts of
//! the server, on the same machine.

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};

/// Calls a method and returns the encoded response.
pub async fn unary(
    channel: Channel,
    path: PathAndQuery,
    request: Request<Bytes>,
) -> Result<Bytes, Status> {
    let mut grpc = Grpc::new(channel);
    let not_ready = |error| Status::unavailable(format!("not connected: {error}"));
    grpc.ready().await.map_err(not_ready)?;
    Ok(grpc.unary(request, path, RawCodec).await?.into_inner())
}

/// A codec that passes bytes through.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawCodec;

impl Codec for RawCodec {
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

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
