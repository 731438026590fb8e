//! A client whose every secret is a canary, with valid and invalid calls. Records response metadata
//! and errors. The response messages belong to the client and are not recorded.

use std::time::Duration;

use microblog_proto::gateway::{
    ChangePasswordRequest, CheckAvailabilityRequest, CommentRequest, DeleteAccountRequest,
    FollowRequest, LikeRequest, LoginRequest, LogoutRequest, MeRequest, PublishRequest,
    RegisterRequest, UserRef, ViewHomeRequest, ViewPostRequest,
    gateway_service_client::GatewayServiceClient, user_ref::Ref,
};
use tonic::{
    Request, Response, Status,
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

use crate::canaries::{Canaries, word};

const TOO_LONG: usize = 3_000;
const TOO_BIG: usize = 5 << 20;
/// More than the limit of wrong guesses.
const GUESSES: usize = 12;

pub(crate) struct Client<'a> {
    canaries: &'a Canaries,
    gateway: GatewayServiceClient<Channel>,
    traceparent: String,
    name: String,
    email: String,
    password: String,
    token: String,
    recorded: Vec<String>,
}

impl<'a> Client<'a> {
    /// Registers an account, whose calls belong to a trace, and logs in.
    pub(crate) async fn join(gateway: &str, canaries: &'a Canaries, trace_id: &str) -> Self {
        let channel = Endpoint::from_shared(gateway.to_owned()).unwrap().connect_lazy();
        let mut client = Self {
            canaries,
            gateway: GatewayServiceClient::new(channel),
            traceparent: format!("00-{trace_id}-00f067aa0ba902b7-01"),
            name: word(12),
            email: format!("{}@example.org", canaries.make("an e-mail address")),
            password: canaries.make("a password"),
            token: String::new(),
            recorded: Vec::new(),
        };
        assert!(client.register(client.registration()).await, "{:?}", client.recorded);
        assert!(client.log_in().await, "{:?}", client.recorded);
        client
    }

    /// Returns the recorded metadata and errors.
    pub(crate) fn recorded(self) -> String {
        self.recorded.join("\n")
    }

    /// Makes valid and invalid calls.
    pub(crate) async fn make_calls(&mut self, other: &Client<'_>) {
        self.write_and_read(other).await;
        self.register_wrongly(other).await;
        self.show_wrong_tokens().await;
        self.write_wrongly().await;
        self.change_password().await;
        self.guess(other).await;
        self.log_out().await;
    }

    /// Makes calls during an outage; all of them fail.
    pub(crate) async fn call_during_outage(&mut self) {
        let registration = RegisterRequest {
            email: format!("{}@example.org", self.canaries.make("a late e-mail address")),
            name: word(12),
            ..self.registration()
        };
        assert!(!self.register(registration).await);
        assert!(!self.log_in().await);
        let request = self.request(MeRequest {});
        let answer = self.gateway.me(request).await;
        assert!(self.record("Me", answer).is_none());
        assert!(self.publish("a post that is not stored").await.is_none());
    }

    /// Reads the own account.
    pub(crate) async fn look(&mut self) {
        let request = self.request(MeRequest {});
        let answer = self.gateway.me(request).await;
        self.record("Me", answer).unwrap();
    }

    /// Publishes a post, and returns its id if the call succeeds.
    pub(crate) async fn publish(&mut self, what: &str) -> Option<u64> {
        let text = self.canaries.make(what);
        let request = self.request(PublishRequest { request_id: request_id(), text });
        let answer = self.gateway.publish(request).await;
        Some(self.record("Publish", answer)?.post.unwrap().id)
    }

    async fn write_and_read(&mut self, other: &Client<'_>) {
        let request = self.request(CheckAvailabilityRequest { name: self.name.clone() });
        let answer = self.gateway.check_availability(request).await;
        self.record("CheckAvailability", answer).unwrap();
        self.look().await;
        let user = Some(UserRef { r#ref: Some(Ref::Name(other.name.clone())) });
        let request = self.request(FollowRequest { user });
        let answer = self.gateway.follow(request).await;
        self.record("Follow", answer).unwrap();
        let post_id = self.publish("a post").await.unwrap();
        let request = self.request(LikeRequest { post_id });
        let answer = self.gateway.like(request).await;
        self.record("Like", answer).unwrap();
        let (request_id, text) = (request_id(), self.canaries.make("a comment"));
        let comment = CommentRequest { request_id, post_id, text, ..Default::default() };
        let request = self.request(comment);
        let answer = self.gateway.comment(request).await;
        self.record("Comment", answer).unwrap();
        let request = self.request(ViewHomeRequest { page_size: 5, ..Default::default() });
        let answer = self.gateway.view_home(request).await;
        self.record("ViewHome", answer).unwrap();
        let request = self.request(ViewPostRequest { post_id });
        let answer = self.gateway.view_post(request).await;
        self.record("ViewPost", answer).unwrap();
    }

    async fn register_wrongly(&mut self, other: &Client<'_>) {
        let right = RegisterRequest {
            email: format!("{}@example.org", self.canaries.make("a rejected e-mail address")),
            name: word(12),
            password: self.canaries.make("a rejected password"),
            ..self.registration()
        };
        let no_address = format!("{} at home", self.canaries.make("what is no e-mail address"));
        let long = self.canaries.make("an e-mail address that is too long");
        let long = format!("{}@example.org", long.repeat(20));
        let short = self.canaries.make_of("a password that is too short", 7);
        let endless = self.canaries.make("a password that is too long").repeat(20);
        for wrong in [
            RegisterRequest { email: other.email.clone(), ..right.clone() },
            RegisterRequest { name: other.name.clone(), ..right.clone() },
            RegisterRequest { email: no_address, ..right.clone() },
            RegisterRequest { email: long, ..right.clone() },
            RegisterRequest { password: short, ..right.clone() },
            RegisterRequest { password: endless, ..right },
        ] {
            let wrong = RegisterRequest { request_id: request_id(), ..wrong };
            assert!(!self.register(wrong).await);
        }
    }

    async fn show_wrong_tokens(&mut self) {
        // Of a valid format, but of no session.
        let mut forged = self.token.clone().into_bytes();
        forged[20..40].copy_from_slice(self.canaries.make("a forged token").as_bytes());
        let forged = String::from_utf8(forged).unwrap();
        let token = self.canaries.make("what is no token");
        for header in [
            format!("Bearer {forged}"),
            format!("Bearer {token}"),
            format!("Basic {token}"),
            format!("bearer{token}"),
        ] {
            let mut request = Request::new(MeRequest {});
            self.add_trace(request.metadata_mut());
            request.metadata_mut().insert("authorization", header.parse().unwrap());
            let answer = self.gateway.me(request).await;
            assert!(self.record("Me", answer).is_none());
        }
        let mut request = self.request(MeRequest {});
        let second = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().append("authorization", second);
        let answer = self.gateway.me(request).await;
        assert!(self.record("Me", answer).is_none());
    }

    async fn write_wrongly(&mut self) {
        for (what, length) in [("a post that is too long", TOO_LONG), ("too big a post", TOO_BIG)] {
            let text = self.canaries.make(what);
            let text = text.repeat(length / text.len() + 1);
            let request = self.request(PublishRequest { request_id: request_id(), text });
            let answer = self.gateway.publish(request).await;
            assert!(self.record("Publish", answer).is_none());
        }
        let text = self.canaries.make("a post that is late");
        let mut request = self.request(PublishRequest { request_id: request_id(), text });
        request.set_timeout(Duration::from_nanos(1));
        let answer = self.gateway.publish(request).await;
        assert!(self.record("Publish", answer).is_none());
    }

    async fn change_password(&mut self) {
        let wrong = self.canaries.make("a wrong password");
        let weak = self.canaries.make_of("a weak new password", 6);
        let new = self.canaries.make("a new password");
        for (current, new, is_right) in [
            (wrong.clone(), new.clone(), false),
            (self.password.clone(), weak, false),
            (self.password.clone(), new.clone(), true),
        ] {
            let change = ChangePasswordRequest { current_password: current, new_password: new };
            let request = self.request(change);
            let answer = self.gateway.change_password(request).await;
            assert_eq!(self.record("ChangePassword", answer).is_some(), is_right);
        }
        self.password = new;
        let request = self.request(DeleteAccountRequest { password: wrong });
        let answer = self.gateway.delete_account(request).await;
        assert!(self.record("DeleteAccount", answer).is_none());
        assert!(self.log_in().await);
    }

    /// Guesses an account's password until the limit, and that of a missing account.
    async fn guess(&mut self, other: &Client<'_>) {
        let unknown = format!("{}@example.org", self.canaries.make("an unknown e-mail address"));
        for email in [&[unknown][..], &vec![other.email.clone(); GUESSES]].concat() {
            let password = self.canaries.make("a guess");
            let request = self.request(LoginRequest { login: email, password });
            let answer = self.gateway.login(request).await;
            assert!(self.record("Login", answer).is_none());
        }
    }

    /// Logs out, which ends the session, and logs in again.
    async fn log_out(&mut self) {
        let request = self.request(LogoutRequest {});
        let answer = self.gateway.logout(request).await;
        self.record("Logout", answer).unwrap();
        let request = self.request(MeRequest {});
        let answer = self.gateway.me(request).await;
        assert!(self.record("Me", answer).is_none());
        assert!(self.log_in().await);
    }

    async fn register(&mut self, registration: RegisterRequest) -> bool {
        let request = self.request(registration);
        let answer = self.gateway.register(request).await;
        self.record("Register", answer).is_some()
    }

    async fn log_in(&mut self) -> bool {
        let login = LoginRequest { login: self.email.clone(), password: self.password.clone() };
        let request = self.request(login);
        let answer = self.gateway.login(request).await;
        let Some(session) = self.record("Login", answer) else { return false };
        self.canaries.add("a session token", &session.token);
        self.token = session.token;
        true
    }

    fn registration(&self) -> RegisterRequest {
        RegisterRequest {
            request_id: request_id(),
            email: self.email.clone(),
            name: self.name.clone(),
            password: self.password.clone(),
            ..Default::default()
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        self.add_trace(request.metadata_mut());
        if !self.token.is_empty() {
            let bearer = format!("Bearer {}", self.token).parse().unwrap();
            request.metadata_mut().insert("authorization", bearer);
        }
        request
    }

    fn add_trace(&self, metadata: &mut MetadataMap) {
        metadata.insert("traceparent", self.traceparent.parse().unwrap());
    }

    /// Records the metadata of a response or error.
    fn record<A>(&mut self, method: &str, answer: Result<Response<A>, Status>) -> Option<A> {
        let (recorded, answer) = match answer {
            Ok(answer) => (format!("{:?}", answer.metadata()), Some(answer.into_inner())),
            Err(status) => {
                let details = String::from_utf8_lossy(status.details());
                (format!("{status:?} {} {details}", status.message()), None)
            }
        };
        self.recorded.push(format!("{method}: {recorded}"));
        answer
    }
}

fn request_id() -> String {
    Uuid::new_v4().to_string()
}
