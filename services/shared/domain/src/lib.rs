//! Domain types shared by the services: ids and stamps, partitions, page sizes and page tokens, and
//! text rules. Pure: knows neither tonic nor Redis, and performs no input or output.

mod by_id;
mod id;
mod invalid;
mod page;
mod partition;
mod repairs;
mod request;
mod stamp;
pub mod text;
mod violations;

pub use by_id::{IdMap, IdSet};
pub use id::{CommentId, PostId, UserId};
pub use invalid::{Fields, Invalid};
pub use page::{PageSize, Scope, TokenError};
pub use partition::Partition;
pub use repairs::Repairs;
pub use request::RequestId;
pub use stamp::Stamp;
pub use violations::Violations;

/// Maximum number of ids of a batch read.
pub const BATCH_MAX: usize = 500;
