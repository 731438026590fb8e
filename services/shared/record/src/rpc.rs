//! The RPC `Restore`, which each service with a recorder has.

use std::{error::Error as _, sync::Arc};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use microblog_chassis::status;
use microblog_domain::{Partition, Stamp};
use microblog_keyspace::Change;
use microblog_proto::common::{ErrorReason, RestoreSource, RestoredPartition};
use tonic::{Code, Status};

use crate::{
    Error, RecordError, Recorder, Tables,
    recovery::{RECOVERED_TOGETHER, Source},
};

/// Restores all partitions, some at a time, and streams their results. Ends with the first error.
pub async fn restore<T: Tables + 'static>(
    recorder: Option<Arc<Recorder<T>>>,
    source: RestoreSource,
    force: bool,
) -> Result<BoxStream<'static, Result<RestoredPartition, Status>>, Status> {
    let Some(recorder) = recorder else {
        let text = "the service has no database: --database-url is not set";
        return Err(status::with_reason(Code::FailedPrecondition, ErrorReason::NoDatabase, text));
    };
    let source = match source {
        RestoreSource::Unspecified => Source::Database,
        RestoreSource::Redis => Source::Redis,
    };
    let begun = Arc::new(recorder.begin_restore(source, force).await.map_err(status)?);
    let restore = move |partition| {
        let (recorder, begun) = (recorder.clone(), begun.clone());
        async move {
            let is_restored = recorder.restore(&begun, partition).await.map_err(status)?;
            let damaged = recorder.damaged_rows(partition).await.map_err(status)?;
            let restored = encode(partition, is_restored, begun.position(partition));
            Ok(RestoredPartition { damaged, ..restored })
        }
    };
    Ok(stream::iter(Partition::all()).map(restore).buffer_unordered(RECOVERED_TOGETHER).boxed())
}

fn encode(partition: Partition, is_restored: bool, position: Change) -> RestoredPartition {
    // The last word of an entry is a stamp.
    let stamp = position.text.rsplit(' ').next().and_then(|stamp| stamp.parse().ok());
    RestoredPartition {
        number: partition.number().into(),
        restored: is_restored,
        recorded_version: position.version.to_string(),
        recorded_at: stamp.and_then(Stamp::new).map(|stamp| stamp.time().into()),
        ..RestoredPartition::default()
    }
}

fn status(error: RecordError) -> Status {
    let text = error.to_string();
    match error {
        RecordError::Redis(error) => error.into(),
        RecordError::Database(error) if !matches!(error, Error::OtherVersion(_)) => {
            let cause = error.source().map(ToString::to_string);
            tracing::error!(error = text, cause, "restore failed");
            if !error.is_unavailable() {
                return status::internal();
            }
            let text = "the database is unavailable; run the restore again: it goes on";
            status::with_reason(Code::Unavailable, ErrorReason::StoreUnavailable, text)
        }
        RecordError::Contended(_) | RecordError::Lost(_) => status::recovering(),
        RecordError::Database(_)
        | RecordError::NotEmpty(_)
        | RecordError::WouldErase(_)
        | RecordError::NotRecorded
        | RecordError::UnknownChange(_)
        | RecordError::RedisMismatch(_)
        | RecordError::DatabaseMismatch(_) => {
            status::with_reason(Code::FailedPrecondition, ErrorReason::NotRestorable, text)
        }
    }
}
