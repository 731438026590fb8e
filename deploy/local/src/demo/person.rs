//! One of the people of the tour: an account, its session, and its calls through the gateway,
//! each printed with its answer.

use std::time::Duration;

use anyhow::{anyhow, ensure};
use microblog_proto::gateway::{
    self, UserRef, gateway_service_client::GatewayServiceClient, user_ref::Ref,
};
use rand::distr::{Alphanumeric, SampleString as _};
use tokio::time::{self, Instant};
use tonic::{Request, Response, Status, metadata::MetadataValue, transport::Channel};
use uuid::Uuid;

use crate::remote::{self, reason, told};

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// The generated client of the gateway.
pub(super) type Client = GatewayServiceClient<Channel>;

/// Somebody with an account.
pub(super) struct Person {
    /// The account's name: a given name and a random end.
    pub(super) name: String,
    /// The account's id; 0 as long as there is none.
    pub(super) id: u64,
    given_name: &'static str,
    password: String,
    registered: bool,
    token: String,
    client: Client,
}

impl Person {
    /// Returns somebody who has no account yet.
    pub(super) fn new(given_name: &'static str, channel: Channel) -> Self {
        let ending = Alphanumeric.sample_string(&mut rand::rng(), 8).to_lowercase();
        Self {
            name: format!("{given_name}_{ending}"),
            id: 0,
            given_name,
            password: Alphanumeric.sample_string(&mut rand::rng(), 24),
            registered: false,
            token: String::new(),
            client: Client::new(channel),
        }
    }

    /// Returns how a request refers to this account.
    pub(super) fn as_ref(&self) -> Option<UserRef> {
        Some(UserRef { r#ref: Some(Ref::Name(self.name.clone())) })
    }

    /// Makes a call in this person's session; prints it and the answer, which `tell` puts in words.
    pub(super) async fn call<Q: Clone, A>(
        &self,
        what: &str,
        message: Q,
        call: impl AsyncFn(Client, Request<Q>) -> Result<Response<A>, Status>,
        tell: impl FnOnce(&A) -> String,
    ) -> anyhow::Result<A> {
        println!("  {:5} {what}", self.given_name);
        let answer = self
            .ask(message, call)
            .await?
            .map_err(|status| anyhow!("{what}: {}", told(&status)))?
            .into_inner();
        answered(&tell(&answer));
        Ok(answer)
    }

    /// Makes a call whose answer must be right within some time, repeated until it is; prints it
    /// and the last answer.
    pub(super) async fn call_until<Q: Clone, A>(
        &self,
        what: &str,
        within: Duration,
        message: Q,
        call: impl AsyncFn(Client, Request<Q>) -> Result<Response<A>, Status>,
        tell: impl FnOnce(&A) -> String,
        is_right: impl Fn(&A) -> bool,
    ) -> anyhow::Result<A> {
        println!("  {:5} {what}", self.given_name);
        let give_up = Instant::now() + within;
        loop {
            let answer = self
                .ask(message.clone(), &call)
                .await?
                .map_err(|status| anyhow!("{what}: {}", told(&status)))?
                .into_inner();
            let is_right = is_right(&answer);
            if is_right || Instant::now() >= give_up {
                answered(&tell(&answer));
                ensure!(is_right, "{what}: not what there should be");
                return Ok(answer);
            }
            time::sleep(POLL).await;
        }
    }

    /// Prints what this person learns without a call.
    pub(super) fn tell(&self, what: &str, answer: &str) {
        println!("  {:5} {what}", self.given_name);
        answered(answer);
    }

    /// Makes a call that must be refused for this reason, and returns the refusal.
    pub(super) async fn refused<Q: Clone, A>(
        &self,
        what: &str,
        expected_reason: &str,
        message: Q,
        call: impl AsyncFn(Client, Request<Q>) -> Result<Response<A>, Status>,
    ) -> anyhow::Result<Status> {
        println!("  {:5} {what}", self.given_name);
        match self.ask(message, call).await? {
            Ok(_) => Err(anyhow!("{what}: should have been refused with {expected_reason}")),
            Err(status) => {
                println!("        → {}", told(&status));
                ensure!(reason(&status) == expected_reason, "{what}: expected {expected_reason}");
                Ok(status)
            }
        }
    }

    /// Creates the account.
    pub(super) async fn register(&mut self) -> anyhow::Result<()> {
        let message = gateway::RegisterRequest {
            request_id: Uuid::new_v4().to_string(),
            email: self.email(),
            name: self.name.clone(),
            password: self.password.clone(),
            display_name: String::new(),
        };
        // Even where the answer is lost, the account may be there.
        self.registered = true;
        let what = format!("registers as {} with {}", self.name, self.email());
        let answer = self.call(
            &what,
            message,
            async |mut c, r| c.register(r).await,
            |a| format!("account {}", a.user.as_ref().map_or(0, |user| user.id)),
        );
        let user = answer.await?.user.unwrap_or_default();
        ensure!(user.id != 0 && user.name == self.name, "the new account is not the one asked for");
        self.id = user.id;
        Ok(())
    }

    /// Opens a session.
    pub(super) async fn log_in(&mut self) -> anyhow::Result<()> {
        self.token.clear();
        let message =
            gateway::LoginRequest { login: self.name.clone(), password: self.password.clone() };
        let answer = self.call(
            "logs in",
            message,
            async |mut c, r| c.login(r).await,
            |_| "a session token".to_owned(),
        );
        self.token = answer.await?.token;
        ensure!(!self.token.is_empty(), "logging in gave no token");
        Ok(())
    }

    /// Deletes the account, if there is one.
    pub(super) async fn leave(&mut self) -> anyhow::Result<()> {
        if !self.registered {
            return Ok(());
        }
        self.log_in().await?;
        let message = gateway::DeleteAccountRequest { password: self.password.clone() };
        self.call(
            "deletes the account",
            message,
            async |mut c, r| c.delete_account(r).await,
            |_| "gone".to_owned(),
        )
        .await?;
        self.registered = false;
        Ok(())
    }

    fn email(&self) -> String {
        format!("{}@demo.invalid", self.name)
    }

    /// Makes a call in this person's session, and repeats it while it fails for a reason that may
    /// pass, as an application does: every call of the gateway may be repeated.
    async fn ask<Q: Clone, A>(
        &self,
        message: Q,
        call: impl AsyncFn(Client, Request<Q>) -> Result<Response<A>, Status>,
    ) -> anyhow::Result<Result<Response<A>, Status>> {
        let mut bearer = MetadataValue::try_from(format!("Bearer {}", self.token))?;
        bearer.set_sensitive(true);
        let request = || {
            let mut request = remote::request(message.clone(), CALL_TIMEOUT);
            if !self.token.is_empty() {
                request.metadata_mut().insert("authorization", bearer.clone());
            }
            request
        };
        Ok(remote::repeatedly(|| call(self.client.clone(), request())).await)
    }
}

fn answered(answer: &str) {
    for line in answer.lines() {
        println!("        → {line}");
    }
}
