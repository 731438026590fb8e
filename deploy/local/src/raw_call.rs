//! gRPC calls with encoded messages. Encoding and decoding would cost about as much CPU as parts of
//! the server, on the same machine.

use bytes::Bytes;
use http::uri::PathAndQuery;
use microblog_chassis::raw_codec::RawCodec;
use tonic::{Request, Status, Streaming, client::Grpc, transport::Channel};

/// Calls a method and returns the encoded response.
pub async fn unary(
    channel: Channel,
    path: PathAndQuery,
    request: Request<Bytes>,
) -> Result<Bytes, Status> {
    Ok(ready(channel).await?.unary(request, path, RawCodec).await?.into_inner())
}

/// Calls a method whose response is a stream, and returns the encoded messages.
pub async fn server_streaming(
    channel: Channel,
    path: PathAndQuery,
    request: Request<Bytes>,
) -> Result<Streaming<Bytes>, Status> {
    Ok(ready(channel).await?.server_streaming(request, path, RawCodec).await?.into_inner())
}

async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel);
    let not_ready = |error| Status::unavailable(format!("not connected: {error}"));
    grpc.ready().await.map_err(not_ready)?;
    Ok(grpc)
}
