//! Connection age.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use microblog_chassis::{Config, Connection};
use microblog_proto::user::GetUserByNameRequest;
use tonic::Request;

use crate::support::{Server, Stub, config, eventually, request};

#[tokio::test]
async fn max_connection_age_closes_old_connections() {
    let callers = Arc::new(Mutex::new(HashSet::new()));
    let seen = callers.clone();
    let stub = Stub::new().get(move |request: Request<GetUserByNameRequest>| {
        seen.lock()
            .unwrap()
            .insert(request.extensions().get::<Connection>().unwrap().remote_addr.unwrap());
        async { Ok(String::new()) }
    });
    let config = Config { max_connection_age_s: 1, ..config() };
    let mut server = Server::start(stub.service(), config);
    let mut client = server.client();
    eventually("three connections, one after the other", async || {
        // tonic's channel may lose a call when its connection closes; peers do not (`peers.rs`).
        let _ = client.get_user_by_name(request(None)).await;
        callers.lock().unwrap().len() >= 3
    })
    .await;
    server.stop();
    drop(client);
    server.ended().await;
}
