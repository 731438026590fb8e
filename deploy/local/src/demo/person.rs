//! An account of the tour: its session, and its calls through the gateway, printed with their
//! responses.

use std::time::Duration;

use anyhow::{anyhow, ensure};
use microblog_proto::gateway::{
    self, UserRef, gateway_service_client::GatewayServiceClient, user_ref::Ref,
};
use rand::distr::{Alphanumeric, SampleString as _};
use tokio::time::{self, Instant};
use tonic::{Request, Response, Status, metadata::MetadataValue, transport::Channel};
use uuid::Uuid;

use crate::remote::{self, error_message, reason};

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// The generated client of the gateway.
pub(super) type Client = GatewayServiceClient<Channel>;

/// An account of the tour.
pub(super) struct Person {
    /// The account's name: a given name and a random suffix.
    pub(super) name: String,
    /// The account's id; 0 before the registration.
    pub(super) id: u64,
    given_name: &'static str,
    password: String,
    registered: bool,
    token: String,
    client: Client,
}

impl Person {
    /// Returns a person without an account.
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

    /// Returns a reference to this account for requests.
    pub(super) fn as_ref(&self) -> Option<UserRef> {
        Some(UserRef { r#ref: Some(Ref::Name(self.name.clone())) })
    }

    /// Makes a call in this session. Prints it, and its response as `describe` describes it.
    pub(super) async fn call<Q: Clone, A>(
        &self,
        what: &str,
        message: Q,
        call: impl AsyncFn(Client, Request<Q>) -> Result<Response<A>, Status>,
        describe: impl FnOnce(&A) -> String,
    ) -> anyhow::Result<A> {
        println!("  {:5} {what}", self.given_name);
        let answer = self
            .call_with_retries(message, call)
            .await?
            .map_err(|status| anyhow!("{what}: {}", error_message(&status)))?
            .into_inner();
        print_response(&describe(&answer));
        Ok(answer)
    }

    /// Repeats a call until its response is right or a timeout ends. Prints the call and the last
    /// response.
    pub(super) async fn call_until<Q: Clone, A>(
        &self,
        what: &str,
        within: Duration,
        message: Q,
        call: impl AsyncFn(Client, Request<Q>) -> Result<Response<A>, Status>,
        describe: impl FnOnce(&A) -> String,
        is_right: impl Fn(&A) -> bool,
    ) -> anyhow::Result<A> {
        println!("  {:5} {what}", self.given_name);
        let deadline = Instant::now() + within;
        loop {
            let answer = self
                .call_with_retries(message.clone(), &call)
                .await?
                .map_err(|status| anyhow!("{what}: {}", error_message(&status)))?
                .into_inner();
            let is_right = is_right(&answer);
            if is_right || Instant::now() >= deadline {
                print_response(&describe(&answer));
                ensure!(is_right, "{what}: unexpected response");
                return Ok(answer);
            }
            time::sleep(POLL).await;
        }
    }

    /// Prints an event that is no response.
    pub(super) fn print_event(&self, what: &str, answer: &str) {
        println!("  {:5} {what}", self.given_name);
        print_response(answer);
    }

    /// Makes a call that must fail with this reason, and returns the status.
    pub(super) async fn expect_error<Q: Clone, A>(
        &self,
        what: &str,
        expected_reason: &str,
        message: Q,
        call: impl AsyncFn(Client, Request<Q>) -> Result<Response<A>, Status>,
    ) -> anyhow::Result<Status> {
        println!("  {:5} {what}", self.given_name);
        match self.call_with_retries(message, call).await? {
            Ok(_) => Err(anyhow!("{what}: should have failed with {expected_reason}")),
            Err(status) => {
                println!("        → {}", error_message(&status));
                ensure!(reason(&status) == expected_reason, "{what}: expected {expected_reason}");
                Ok(status)
            }
        }
    }

    /// Registers the account.
    pub(super) async fn register(&mut self) -> anyhow::Result<()> {
        let message = gateway::RegisterRequest {
            request_id: Uuid::new_v4().to_string(),
            email: self.email(),
            name: self.name.clone(),
            password: self.password.clone(),
            display_name: String::new(),
        };
        // The account may exist even if the response is lost.
        self.registered = true;
        let what = format!("registers as {} with {}", self.name, self.email());
        let answer = self.call(
            &what,
            message,
            async |mut c, r| c.register(r).await,
            |a| format!("account {}", a.user.as_ref().map_or(0, |user| user.id)),
        );
        let user = answer.await?.user.unwrap_or_default();
        ensure!(user.id != 0 && user.name == self.name, "registration returned another account");
        self.id = user.id;
        Ok(())
    }

    /// Logs in.
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
        ensure!(!self.token.is_empty(), "login returned no token");
        Ok(())
    }

    /// Deletes the account, if it exists.
    pub(super) async fn delete_account(&mut self) -> anyhow::Result<()> {
        if !self.registered {
            return Ok(());
        }
        self.log_in().await?;
        let message = gateway::DeleteAccountRequest { password: self.password.clone() };
        self.call(
            "deletes the account",
            message,
            async |mut c, r| c.delete_account(r).await,
            |_| "deleted".to_owned(),
        )
        .await?;
        self.registered = false;
        Ok(())
    }

    fn email(&self) -> String {
        format!("{}@demo.invalid", self.name)
    }

    /// Makes a call in this session and retries transient errors. Every call of the gateway is safe
    /// to retry.
    async fn call_with_retries<Q: Clone, A>(
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
        Ok(remote::retry(|| call(self.client.clone(), request())).await)
    }
}

fn print_response(answer: &str) {
    for line in answer.lines() {
        println!("        → {line}");
    }
}
