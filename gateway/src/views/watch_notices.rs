//! WatchNotices: a stream of the viewer's new notices.

use microblog_domain::UserId;
use microblog_proto::{
    gateway::{self, WatchNoticesResponse},
    notice::{self, Notice},
};
use tonic::{Response, Status, Streaming};

use crate::{
    context::ViewContext,
    credentials::Credentials,
    hydration::notices::{NOTICES_PER_BATCH, NOTICES_PER_MESSAGE, viewed_notices},
    state::Gateway,
    watch::{Messages, Watched, watch},
};

const _: () = assert!(NOTICES_PER_MESSAGE <= NOTICES_PER_BATCH);

/// The method's name.
pub(crate) const METHOD: &str = "WatchNotices";

/// The stream of WatchNotices.
pub(crate) type NoticeUpdates = Messages<WatchNoticesResponse>;

/// Streams the viewer's new notices. The calls of [`watch`]: it opens notice.WatchNotices. The hydration
/// of a message costs those of [`viewed_notices`].
pub(crate) async fn watch_notices(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::WatchNoticesRequest,
) -> Result<NoticeUpdates, Status> {
    watch::<Notices>(gateway, credentials, request.since_token).await
}

/// The viewer's notices.
struct Notices;

impl Watched for Notices {
    const METHOD: &'static str = METHOD;
    const ENTRIES_MAX: usize = NOTICES_PER_MESSAGE;

    type Update = notice::WatchNoticesResponse;
    type Entry = Notice;
    type Message = WatchNoticesResponse;

    async fn open(
        gateway: &Gateway,
        viewer: UserId,
        since_token: String,
    ) -> Result<Response<Streaming<notice::WatchNoticesResponse>>, Status> {
        let request = notice::WatchNoticesRequest { user_id: viewer.get(), since_token };
        gateway.peers.notice().watch_notices(request).await
    }

    fn split(update: notice::WatchNoticesResponse) -> (Vec<Notice>, String) {
        (update.notices, update.since_token)
    }

    async fn message(
        gateway: &Gateway,
        viewer: UserId,
        notices: Vec<Notice>,
        since_token: String,
    ) -> Result<WatchNoticesResponse, Status> {
        let context = ViewContext::new(Some(viewer));
        let notices = viewed_notices(gateway, context, &notices).await?.into_iter().flatten();
        // Nobody learns of acts of accounts that they do not see.
        let notices = notices.filter(|notice| notice.unread).collect();
        Ok(WatchNoticesResponse { notices, since_token })
    }

    fn is_empty(message: &WatchNoticesResponse) -> bool {
        message.notices.is_empty()
    }

    fn heartbeat(since_token: String) -> WatchNoticesResponse {
        WatchNoticesResponse { notices: Vec::new(), since_token }
    }
}
