//! An account of the tour: its session, and its calls through the gateway, printed with their
//! responses.

use std::{fmt, time::Duration};

use anyhow::{anyhow, bail, ensure};
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
// Lists are ordered by time in milliseconds.
const CALL_INTERVAL: Duration = Duration::from_millis(5);

/// The generated client of the gateway.
pub(super) type Client = GatewayServiceClient<Channel>;

/// An account of the tour. Its name consists of a given name and a random suffix.
pub(super) struct Person {
    /// The account's id; 0 before the registration.
    pub(super) id: u64,
    name: String,
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
            id: 0,
            name: format!("{given_name}_{ending}"),
            given_name,
            password: Alphanumeric.sample_string(&mut rand::rng(), 24),
            registered: false,
            token: String::new(),
            client: Client::new(channel),
        }
    }

    /// Returns a reference to this account for requests.
    pub(super) fn user(&self) -> Option<UserRef> {
        Some(UserRef { r#ref: Some(Ref::Name(self.name.clone())) })
    }

    /// Makes a call in this session. Prints it, and its response as `describe` describes it.
    pub(super) async fn call<Q: Clone, A>(
        &self,
        what: &str,
        message: Q,
        method: impl AsyncFn(&mut Client, Request<Q>) -> Result<Response<A>, Status>,
        describe: impl Fn(&A) -> String,
    ) -> anyhow::Result<A> {
        self.print_call(what);
        let answer = self.answer(what, message, &method).await?;
        print_response(&describe(&answer));
        Ok(answer)
    }

    /// Makes a call whose response must have this description.
    pub(super) async fn expect<Q: Clone, A>(
        &self,
        what: &str,
        message: Q,
        method: impl AsyncFn(&mut Client, Request<Q>) -> Result<Response<A>, Status>,
        describe: impl Fn(&A) -> String,
        expected: &str,
    ) -> anyhow::Result<()> {
        let within = Duration::ZERO;
        self.expect_within(within, what, message, method, describe, expected).await.map(drop)
    }

    /// Repeats a call until its response has the expected description or a timeout ends.
    pub(super) async fn expect_within<Q: Clone, A>(
        &self,
        within: Duration,
        what: &str,
        message: Q,
        method: impl AsyncFn(&mut Client, Request<Q>) -> Result<Response<A>, Status>,
        describe: impl Fn(&A) -> String,
        expected: &str,
    ) -> anyhow::Result<A> {
        self.print_call(what);
        let deadline = Instant::now() + within;
        loop {
            let answer = self.answer(what, message.clone(), &method).await?;
            let described = describe(&answer);
            if described == expected || Instant::now() >= deadline {
                print_response(&described);
                ensure!(described == expected, "{what}: expected:\n{expected}");
                return Ok(answer);
            }
            time::sleep(POLL).await;
        }
    }

    /// Makes a call that must fail with this reason.
    pub(super) async fn expect_error<Q: Clone, A>(
        &self,
        what: &str,
        message: Q,
        method: impl AsyncFn(&mut Client, Request<Q>) -> Result<Response<A>, Status>,
        expected_reason: &str,
    ) -> anyhow::Result<()> {
        self.print_call(what);
        let Err(status) = self.send(message, &method).await? else {
            bail!("{what}: should have failed with {expected_reason}")
        };
        print_response(&error_message(&status));
        ensure!(reason(&status) == expected_reason, "{what}: expected {expected_reason}");
        Ok(())
    }

    /// Registers the account.
    pub(super) async fn register(&mut self) -> anyhow::Result<()> {
        let email = format!("{self}@demo.invalid");
        let what = format!("registers as {self} with {email}");
        let message = gateway::RegisterRequest {
            request_id: Uuid::new_v4().to_string(),
            email,
            name: self.name.clone(),
            password: self.password.clone(),
            display_name: String::new(),
        };
        // The account may exist even if the response is lost.
        self.registered = true;
        let described = |a: &gateway::RegisterResponse| {
            format!("account {}", a.user.as_ref().map_or(0, |user| user.id))
        };
        let answer = self.call(&what, message, Client::register, described).await?;
        let user = answer.user.unwrap_or_default();
        ensure!(user.id != 0 && user.name == self.name, "registration returned another account");
        self.id = user.id;
        Ok(())
    }

    /// Logs in.
    pub(super) async fn log_in(&mut self) -> anyhow::Result<()> {
        self.token.clear();
        let message =
            gateway::LoginRequest { login: self.name.clone(), password: self.password.clone() };
        let described = |_: &_| "a session token".to_owned();
        self.token = self.call("logs in", message, Client::login, described).await?.token;
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
        self.call("deletes the account", message, Client::delete_account, done).await?;
        Ok(())
    }

    /// Prints a call, or another event.
    pub(super) fn print_call(&self, what: &str) {
        println!("  {:5} {what}", self.given_name);
    }

    async fn answer<Q: Clone, A>(
        &self,
        what: &str,
        message: Q,
        method: &impl AsyncFn(&mut Client, Request<Q>) -> Result<Response<A>, Status>,
    ) -> anyhow::Result<A> {
        let answer = self.send(message, method).await?;
        answer.map_err(|status| anyhow!("{what}: {}", error_message(&status)))
    }

    /// Makes a call in this session and retries transient errors. Every call of the gateway is safe
    /// to retry.
    async fn send<Q: Clone, A>(
        &self,
        message: Q,
        method: &impl AsyncFn(&mut Client, Request<Q>) -> Result<Response<A>, Status>,
    ) -> anyhow::Result<Result<A, Status>> {
        time::sleep(CALL_INTERVAL).await;
        let mut bearer = MetadataValue::try_from(format!("Bearer {}", self.token))?;
        bearer.set_sensitive(true);
        let answer = remote::retry(async || {
            let mut request = remote::request(message.clone(), CALL_TIMEOUT);
            if !self.token.is_empty() {
                request.metadata_mut().insert("authorization", bearer.clone());
            }
            Ok(method(&mut self.client.clone(), request).await?.into_inner())
        });
        Ok(answer.await)
    }
}

impl fmt::Display for Person {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Describes a response without content.
pub(super) fn done<A>(_: &A) -> String {
    "done".to_owned()
}

/// Prints a response, which may be an empty list.
pub(super) fn print_response(answer: &str) {
    let answer = if answer.is_empty() { "nothing" } else { answer };
    for line in answer.lines() {
        println!("        → {line}");
    }
}
