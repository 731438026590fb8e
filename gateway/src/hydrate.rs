//! The second step of a list view: the profiles of its accounts, and how they stand to the viewer.

use microblog_domain::UserId;
use microblog_proto::{
    gateway::ListedUser,
    relation::{self, Edge, Relation},
    user,
};
use tonic::Status;

use crate::{present, refusal, rpc::Gateway};

impl Gateway {
    /// Returns the entries as they are shown, without those whose accounts are gone. Two calls at
    /// once: user.BatchGetUsers, relation.BatchGetRelations (not for an anonymous viewer); none if
    /// there are no entries.
    pub(crate) async fn hydrate(
        &self,
        viewer: Option<UserId>,
        edges: Vec<Edge>,
    ) -> Result<Vec<ListedUser>, Status> {
        if edges.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<u64> = edges.iter().map(|edge| edge.user_id).collect();
        let (users, relations) =
            tokio::join!(self.profiles(ids.clone()), self.relations(viewer, ids));
        Ok(present::listed(edges, users?, &relations?))
    }

    async fn profiles(&self, user_ids: Vec<u64>) -> Result<Vec<user::User>, Status> {
        let request = user::BatchGetUsersRequest { user_ids };
        let response = self.peers.user().batch_get_users(request).await;
        Ok(response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner().users)
    }

    async fn relations(
        &self,
        viewer: Option<UserId>,
        target_ids: Vec<u64>,
    ) -> Result<Vec<Relation>, Status> {
        let Some(viewer) = viewer else { return Ok(Vec::new()) };
        let request = relation::BatchGetRelationsRequest {
            viewer_id: viewer.get(),
            target_ids,
            // A list shows follows only. What is not asked for costs nothing.
            include_blocks: false,
            include_mutes: false,
            include_newest_following_version: false,
        };
        let response = self.peers.relation().batch_get_relations(request).await;
        Ok(response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner().relations)
    }
}
