//! The gRPC handlers: decode, call, encode.

use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use microblog_chassis::{self as chassis, status};
use microblog_domain::{Invalid, UserId};
use microblog_proto::notice::{self as pb, notice_service_server::NoticeService};
use microblog_storage::Tables;
use tonic::{Request, Response, Status};

use crate::{
    error::Error,
    lists::Notices,
    notice::KINDS,
    verify,
    watch::{self, Update},
    wire::{self, List, Mentions},
};

type RpcResult<T> = Result<Response<T>, Status>;

/// The handlers of `NoticeService`.
pub(crate) struct Rpc {
    pub(crate) notices: Notices,
    pub(crate) tables: Tables,
}

impl Rpc {
    async fn list(
        &self,
        request: &pb::ListNoticesRequest,
    ) -> Result<pb::ListNoticesResponse, Error> {
        let list = List::parse(request)?;
        let found = self.notices.list(list.user, &list.query).await?;
        Ok(list.response(found))
    }

    async fn mentions(
        &self,
        request: &pb::ListMentionsRequest,
    ) -> Result<pb::ListMentionsResponse, Error> {
        let list = Mentions::parse(request)?;
        let found = self.notices.mentions(list.user, list.below, list.count).await?;
        Ok(list.response(found))
    }
}

fn user(user_id: u64) -> Result<UserId, Error> {
    UserId::parse("user_id", user_id).map_err(|invalid| Error::Invalid(vec![invalid]))
}

#[tonic::async_trait]
impl NoticeService for Rpc {
    async fn list_notices(
        &self,
        request: Request<pb::ListNoticesRequest>,
    ) -> RpcResult<pb::ListNoticesResponse> {
        Ok(Response::new(self.list(&request.into_inner()).await?))
    }

    async fn list_mentions(
        &self,
        request: Request<pb::ListMentionsRequest>,
    ) -> RpcResult<pb::ListMentionsResponse> {
        Ok(Response::new(self.mentions(&request.into_inner()).await?))
    }

    async fn mark_seen(
        &self,
        request: Request<pb::MarkSeenRequest>,
    ) -> RpcResult<pb::MarkSeenResponse> {
        let pb::MarkSeenRequest { user_id, token } = request.into_inner();
        let user = user(user_id)?;
        let Some((kinds, position)) = wire::seen(user, "token", &token)? else {
            return Err(status::invalid([Invalid::new("token", "is required")]));
        };
        let notices = self.notices.clone();
        let work = async move { Ok(notices.mark_seen(user, kinds, position).await?) };
        chassis::mutate(work).await?;
        Ok(Response::new(pb::MarkSeenResponse {}))
    }

    type VerifyStream = BoxStream<'static, Result<pb::VerifyResponse, Status>>;

    async fn verify(&self, request: Request<pb::VerifyRequest>) -> RpcResult<Self::VerifyStream> {
        let user = match request.into_inner().user_id {
            0 => None,
            id => Some(user(id)?),
        };
        let reports = verify::reports(self.notices.clone(), self.tables.clone(), user);
        Ok(Response::new(reports.map_ok(wire::report).map_err(Status::from).boxed()))
    }

    type WatchNoticesStream = BoxStream<'static, Result<pb::WatchNoticesResponse, Status>>;

    async fn watch_notices(
        &self,
        request: Request<pb::WatchNoticesRequest>,
    ) -> RpcResult<Self::WatchNoticesStream> {
        let pb::WatchNoticesRequest { user_id, since_token } = request.into_inner();
        let user = user(user_id)?;
        let since = wire::since(user, &since_token)?;
        chassis::context::watch()?;
        let updates = watch::watch(self.notices.clone(), user, since);
        let message = move |update: Update| pb::WatchNoticesResponse {
            since_token: wire::seen_token(user, &KINDS, update.token),
            notices: update.notices.iter().map(|one| wire::encode(one, update.since)).collect(),
        };
        Ok(Response::new(updates.map_ok(message).map_err(Status::from).boxed()))
    }
}
