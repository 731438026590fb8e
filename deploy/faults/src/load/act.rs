//! What a client does: the calls, and their effects on the expected state.

use microblog_proto::gateway::{
    BlockRequest, CommentRequest, DeleteCommentRequest, DeletePostRequest, FollowRequest,
    LikeRequest, MuteRequest, PublishRequest, RegisterRequest, RepostRequest, UnblockRequest,
    UnfollowRequest, UnlikeRequest, UnmuteRequest, UpdateProfileRequest, UserRef,
    gateway_service_client::GatewayServiceClient, user_ref::Ref,
};
use microblog_proto::user::ProfileChanges;
use tonic::{Request, Status, metadata::MetadataMap, transport::Channel};

use super::client::PASSWORD;
use crate::model::{State, Subject, present};

/// A write. Texts are unique, and so are the names of accounts.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Register { name: String },
    Profile { bio: String },
    Follow(u64),
    Unfollow(u64),
    Block(u64),
    Unblock(u64),
    Mute(u64),
    Unmute(u64),
    Publish { text: String },
    Repost { post: u64, text: String },
    DeletePost { post: u64, text: String },
    Like(u64),
    Unlike(u64),
    Comment { post: u64, text: String },
    DeleteComment { post: u64, comment: u64, text: String },
}

impl Act {
    /// Returns the state of each subject afterwards.
    pub(super) fn effects(&self, actor: u64) -> Vec<(Subject, State)> {
        use Subject::{Account, Block, Comment, Follow, Like, Mute, Post, Profile};
        match self.clone() {
            Self::Register { name } => vec![(Account(name), present())],
            Self::Profile { bio } => vec![(Profile(actor), Some(bio))],
            Self::Follow(target) => vec![(Follow(actor, target), present())],
            Self::Unfollow(target) => vec![(Follow(actor, target), None)],
            Self::Block(target) => vec![
                (Block(actor, target), present()),
                (Follow(actor, target), None),
                (Follow(target, actor), None),
            ],
            Self::Unblock(target) => vec![(Block(actor, target), None)],
            Self::Mute(target) => vec![(Mute(actor, target), present())],
            Self::Unmute(target) => vec![(Mute(actor, target), None)],
            Self::Publish { text } | Self::Repost { text, .. } => {
                vec![(Post(actor, text), present())]
            }
            Self::DeletePost { text, .. } => vec![(Post(actor, text), None)],
            Self::Like(post) => vec![(Like(actor, post), present())],
            Self::Unlike(post) => vec![(Like(actor, post), None)],
            Self::Comment { post, text } => vec![(Comment(post, text), present())],
            Self::DeleteComment { post, text, .. } => vec![(Comment(post, text), None)],
        }
    }

    /// Returns the name or the text of what it creates.
    pub(super) fn creates(&self) -> Option<&str> {
        match self {
            Self::Register { name } => Some(name),
            Self::Publish { text } | Self::Repost { text, .. } | Self::Comment { text, .. } => {
                Some(text)
            }
            _ => None,
        }
    }

    /// Makes the call. Returns the id of what it created, or 0.
    pub(super) async fn call(
        self,
        gateway: &mut GatewayServiceClient<Channel>,
        metadata: MetadataMap,
        request_id: String,
    ) -> Result<u64, Status> {
        match self {
            Self::Register { name } => {
                let (email, password) = (format!("{name}@example.org"), PASSWORD.to_owned());
                let display_name = String::new();
                let request = RegisterRequest { request_id, email, name, password, display_name };
                let answer = gateway.register(with(metadata, request)).await?.into_inner();
                return Ok(answer.user.map(|user| user.id).unwrap_or_default());
            }
            Self::Publish { text } => {
                let request = PublishRequest { request_id, text };
                let answer = gateway.publish(with(metadata, request)).await?.into_inner();
                return Ok(answer.post.map(|post| post.id).unwrap_or_default());
            }
            Self::Repost { post: post_id, text } => {
                let request = RepostRequest { request_id, post_id, text };
                let answer = gateway.repost(with(metadata, request)).await?.into_inner();
                return Ok(answer.post.map(|post| post.id).unwrap_or_default());
            }
            Self::Comment { post: post_id, text } => {
                let request = CommentRequest { request_id, post_id, text, in_reply_to_id: 0 };
                let answer = gateway.comment(with(metadata, request)).await?.into_inner();
                return Ok(answer.comment.map(|comment| comment.id).unwrap_or_default());
            }
            Self::Profile { bio } => {
                let changes = ProfileChanges { bio: Some(bio), ..Default::default() };
                let request = UpdateProfileRequest { changes: Some(changes) };
                gateway.update_profile(with(metadata, request)).await.map(drop)
            }
            Self::Follow(id) => {
                gateway.follow(with(metadata, FollowRequest { user: by_id(id) })).await.map(drop)
            }
            Self::Unfollow(id) => {
                let request = UnfollowRequest { user: by_id(id) };
                gateway.unfollow(with(metadata, request)).await.map(drop)
            }
            Self::Block(id) => {
                gateway.block(with(metadata, BlockRequest { user: by_id(id) })).await.map(drop)
            }
            Self::Unblock(id) => {
                gateway.unblock(with(metadata, UnblockRequest { user: by_id(id) })).await.map(drop)
            }
            Self::Mute(id) => {
                gateway.mute(with(metadata, MuteRequest { user: by_id(id) })).await.map(drop)
            }
            Self::Unmute(id) => {
                gateway.unmute(with(metadata, UnmuteRequest { user: by_id(id) })).await.map(drop)
            }
            Self::DeletePost { post: post_id, .. } => {
                gateway.delete_post(with(metadata, DeletePostRequest { post_id })).await.map(drop)
            }
            Self::Like(post_id) => {
                gateway.like(with(metadata, LikeRequest { post_id })).await.map(drop)
            }
            Self::Unlike(post_id) => {
                gateway.unlike(with(metadata, UnlikeRequest { post_id })).await.map(drop)
            }
            Self::DeleteComment { post: post_id, comment: comment_id, .. } => {
                let request = DeleteCommentRequest { post_id, comment_id };
                gateway.delete_comment(with(metadata, request)).await.map(drop)
            }
        }?;
        Ok(0)
    }
}

fn by_id(id: u64) -> Option<UserRef> {
    Some(UserRef { r#ref: Some(Ref::Id(id)) })
}

fn with<T>(metadata: MetadataMap, message: T) -> Request<T> {
    Request::from_parts(metadata, Default::default(), message)
}
