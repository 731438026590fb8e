//! Method path and response type of each request type.

use microblog_proto::gateway::{
    FollowRequest, FollowResponse, LikeRequest, LikeResponse, PublishRequest, PublishResponse,
    UnfollowRequest, UnfollowResponse, UnlikeRequest, UnlikeResponse, ViewFollowersRequest,
    ViewFollowersResponse, ViewHomeRequest, ViewHomeResponse, ViewUserTimelineRequest,
    ViewUserTimelineResponse,
};
use prost::Message;

/// A request type with its method.
pub(super) trait Method: Message {
    /// The method's path.
    const PATH: &'static str;
    /// Whether an encoded response may be empty.
    const MAY_BE_EMPTY: bool;
    /// The response type.
    type Response: Message + Default;
}

macro_rules! methods {
    ($service:literal; $($name:literal: $request:ty => $response:ty, $may_be_empty:literal;)*) => {$(
        impl Method for $request {
            const PATH: &'static str = concat!("/microblog.", $service, "/", $name);
            const MAY_BE_EMPTY: bool = $may_be_empty;
            type Response = $response;
        }
    )*};
}

methods! {
    "gateway.v1.GatewayService";
    "ViewFollowers": ViewFollowersRequest => ViewFollowersResponse, false;
    "Follow": FollowRequest => FollowResponse, false;
    "Unfollow": UnfollowRequest => UnfollowResponse, false;
    "Publish": PublishRequest => PublishResponse, false;
    "ViewHome": ViewHomeRequest => ViewHomeResponse, false;
    "ViewUserTimeline": ViewUserTimelineRequest => ViewUserTimelineResponse, false;
    "Like": LikeRequest => LikeResponse, false;
    "Unlike": UnlikeRequest => UnlikeResponse, true;
}
