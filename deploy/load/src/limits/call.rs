//! The clients of the servers that do nothing.

use bytes::Bytes;
use http::uri::PathAndQuery;
use microblog_local::remote;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};

use super::empty;
use crate::raw;

/// As long as a session's token, with the scheme before it: `Bearer ` and 54 characters.
const TOKEN: &str = "Bearer AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// How large the messages of a call are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) request: usize,
    pub(crate) answer: usize,
}

/// A server that does nothing, as its clients reach it.
#[derive(Debug)]
pub(crate) struct Target {
    channels: Vec<Channel>,
    answer: usize,
    path: PathAndQuery,
    request: Bytes,
    token: MetadataValue<Ascii>,
}

impl Target {
    /// Returns the server at a URL over so many connections, asked with messages of these sizes.
    /// Connects when it is first called. Must be called inside a runtime.
    pub(crate) fn new(url: &str, connections: usize, sizes: Sizes) -> anyhow::Result<Self> {
        let channels = (0..connections.max(1)).map(|_| remote::channel(url));
        Ok(Self {
            channels: channels.collect::<anyhow::Result<_>>()?,
            answer: sizes.answer,
            path: empty::path(sizes.answer)?,
            request: vec![b'r'; sizes.request].into(),
            token: MetadataValue::from_static(TOKEN),
        })
    }

    /// Calls it once, as the client with this number.
    pub(crate) async fn call(&self, client: usize) -> Result<(), Status> {
        let channel = self.channels[client % self.channels.len()].clone();
        let mut request = Request::new(self.request.clone());
        request.metadata_mut().insert("authorization", self.token.clone());
        let answer = raw::call(channel, self.path.clone(), request).await?;
        if answer.len() != self.answer {
            return Err(Status::data_loss("an answer of another length"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, net::TcpListener};

    use clap::Parser;
    use microblog_chassis as chassis;
    use tonic::Code;

    use super::*;
    use crate::limits::{chain::Chain, empty::Empty};

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        chassis: chassis::Config,
    }

    /// Starts a server that makes the calls of a chain, all to a peer.
    async fn serve(chain: &str, peer: &chassis::Peer) -> Target {
        let chain: Chain = chain.parse().unwrap();
        let service = Empty::new(&chain, |_| peer.clone()).unwrap().service();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let config = Flags::parse_from(["test"]).chassis;
        tokio::spawn(async move { chassis::serve(listener, service, &config, pending()).await });
        Target::new(&url, 2, Sizes { request: 70_000, answer: 300_000 }).unwrap()
    }

    #[tokio::test]
    async fn a_call_makes_the_calls_of_its_chain() {
        let config = Flags::parse_from(["test"]).chassis;
        let nobody = |_| unreachable!("an empty chain calls nobody");
        let callee = Empty::new(&Chain::default(), nobody).unwrap().service();
        let here = chassis::Peer::local(&callee, &config);
        // Nobody listens on the port of a listener that is gone.
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let away = chassis::Peer::remote(&format!("http://{gone}"), &config).unwrap();

        let chain = "user:56:15,relation:0:0;post:9:100000";
        for client in 0..3 {
            serve(chain, &here).await.call(client).await.unwrap();
            serve("", &away).await.call(client).await.unwrap();
        }
        let error = serve(chain, &away).await.call(0).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
    }
}
