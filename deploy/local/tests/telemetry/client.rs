//! Test clients of the gateway that follow and publish.

use microblog_proto::gateway::{
    FollowRequest, LoginRequest, PublishRequest, RegisterRequest, UserRef, ViewHomeRequest,
    ViewPostRequest, gateway_service_client::GatewayServiceClient, user_ref::Ref,
};
use tonic::{
    Request,
    transport::{Channel, Endpoint},
};

const PASSWORD: &str = "correct horse battery";

/// A logged-in account.
pub(crate) struct Client {
    gateway: GatewayServiceClient<Channel>,
    token: String,
}

impl Client {
    /// Registers an account and logs in.
    pub(crate) async fn join(gateway: &str, name: &str) -> Self {
        let channel = Endpoint::from_shared(gateway.to_owned()).unwrap().connect_lazy();
        let mut gateway = GatewayServiceClient::new(channel);
        let (email, password) = (format!("{name}@example.org"), PASSWORD.to_owned());
        let registration = RegisterRequest {
            request_id: request_id(),
            name: name.to_owned(),
            email: email.clone(),
            password: password.clone(),
            ..RegisterRequest::default()
        };
        gateway.register(registration).await.unwrap();
        let login = LoginRequest { login: email, password };
        let token = gateway.login(login).await.unwrap().into_inner().token;
        Self { gateway, token }
    }

    pub(crate) async fn follow(&self, name: &str) {
        let user = Some(UserRef { r#ref: Some(Ref::Name(name.to_owned())) });
        let request = self.request(FollowRequest { user });
        self.gateway.clone().follow(request).await.unwrap();
    }

    /// Views the home timeline, and returns the number of posts.
    pub(crate) async fn home(&self) -> usize {
        let request = self.request(ViewHomeRequest { page_size: 20, ..Default::default() });
        self.gateway.clone().view_home(request).await.unwrap().into_inner().posts.len()
    }

    /// Publishes a post, optionally as part of a trace, and returns the post's id.
    pub(crate) async fn publish(&self, text: &str, traceparent: Option<&str>) -> u64 {
        let publish = PublishRequest { request_id: request_id(), text: text.to_owned() };
        let mut request = self.request(publish);
        if let Some(traceparent) = traceparent {
            request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
        }
        self.gateway.clone().publish(request).await.unwrap().into_inner().post.unwrap().id
    }

    /// Views a post as part of a trace.
    pub(crate) async fn view(&self, post_id: u64, traceparent: &str) {
        let mut request = self.request(ViewPostRequest { post_id });
        request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
        self.gateway.clone().view_post(request).await.unwrap();
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let bearer = format!("Bearer {}", self.token).parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        request
    }
}

fn request_id() -> String {
    uuid::Uuid::new_v4().to_string()
}
