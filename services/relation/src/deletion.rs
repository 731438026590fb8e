//! Deletion of an account (`ForgetUser`). Its row is marked first, for good: it cannot get edges any more,
//! so its lists only shrink. A job of one replica at a time then ends its edges, some in each transaction;
//! after a crash, another one continues with those that remain.

use microblog_domain::UserId;
use microblog_record::{
    Database,
    sql::{number, statement},
};
use microblog_storage::{Lease, Tables, Writer};
use sqlx::any::AnyRow;

use crate::{
    error::Error,
    graph::{Edge, EdgeKind},
    group::Steps,
    steps::Step,
    tables::{ids_behind, read_edge},
};

/// The most edges that a transaction ends.
const EDGES: usize = 200;

/// The most accounts that are read at once.
const ACCOUNTS: usize = 100;

/// Ends all edges of the deleted accounts, if this replica is the one that does. Continues after an error;
/// returns the first one.
pub(crate) async fn end_edges(
    tables: &Tables,
    writer: &Writer<Steps>,
    lease: &Lease,
) -> Result<(), Error> {
    let database = tables.database().await?;
    let mut after = 0;
    let mut outcome = Ok(());
    while lease.take(database).await? {
        let users = ids_behind(database, "deletions", after, ACCOUNTS).await?;
        let Some(last) = users.last() else { break };
        after = last.get();
        for user in users {
            outcome = outcome.and(end_edges_of(database, writer, lease, user).await);
        }
    }
    outcome
}

async fn end_edges_of(
    database: &Database,
    writer: &Writer<Steps>,
    lease: &Lease,
    user: UserId,
) -> Result<(), Error> {
    for kind in EdgeKind::ALL {
        for column in ["source", "target"] {
            loop {
                let edges = edges(database, kind, column, user).await?;
                if edges.is_empty() {
                    break;
                }
                if !lease.take(database).await? {
                    return Ok(());
                }
                let steps = edges.into_iter().map(|edge| Step::End(kind, edge));
                writer.write(steps.collect()).await?;
            }
        }
    }
    writer.write(vec![Step::Deleted(user)]).await?;
    Ok(())
}

async fn edges(
    database: &Database,
    kind: EdgeKind,
    column: &str,
    user: UserId,
) -> Result<Vec<Edge>, Error> {
    let table = kind.table();
    let text = format!("SELECT source, target FROM {table} WHERE {column} = $1 LIMIT {EDGES}");
    let read = async {
        let query = statement(text).bind(number(user.get()));
        let rows = query.fetch_all(database.readers()).await?;
        rows.iter().map(|row: &AnyRow| read_edge(row, 0)).collect()
    };
    Ok(database.read("SELECT edges", read).await?)
}
