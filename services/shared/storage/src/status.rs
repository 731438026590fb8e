//! What callers are told of a call that the stores could not answer.

use std::time::Duration;

use microblog_chassis::status;
use microblog_proto::common::ErrorReason;
use microblog_record as record;
use tonic::Status;

use crate::{reader::ReadError, writer::WriteError};

/// The delay after which a caller repeats a call for which there was no room.
const RETRY_DELAY: Duration = Duration::from_secs(1);

impl From<WriteError> for Status {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Overloaded => overloaded(),
            WriteError::Unavailable(_) => status::store_unavailable(),
            WriteError::Unknown(_) => status::not_recorded(),
            WriteError::Failed(_) => status::internal(),
        }
    }
}

impl From<ReadError> for Status {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Overloaded => overloaded(),
            ReadError::Database(error) => of_database(&error),
        }
    }
}

/// Returns the status of a read or a job that the database could not do.
pub fn of_database(error: &record::Error) -> Status {
    let cause = error as &dyn std::error::Error;
    match error {
        record::Error::Unavailable(_) | record::Error::Locked(_) => {
            tracing::warn!(error = cause, "database unavailable");
            status::store_unavailable()
        }
        _ => {
            tracing::error!(error = cause, "read rejected by the database");
            status::internal()
        }
    }
}

fn overloaded() -> Status {
    let text = "too many calls wait for the database";
    status::throttled(ErrorReason::Overloaded, text, RETRY_DELAY)
}
