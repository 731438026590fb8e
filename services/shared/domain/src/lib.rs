//! Domain types shared by the services: ids and stamps, partitions, page sizes and page tokens, and
//! text rules. Pure: knows neither tonic nor Redis, and performs no input or output.

mod id;
mod id_map;
mod invalid;
mod invariants;
pub mod mention;
mod order;
mod page_token;
mod partition;
mod request;
mod stamp;
pub mod text;

pub use id::{CommentId, PostId, UserId};
pub use id_map::{IdMap, IdSet, deduplicated};
pub use invalid::{Fields, Invalid};
pub use invariants::Violations;
pub use order::Order;
pub use page_token::{PageSize, Scope, TokenError};
pub use partition::Partition;
pub use request::RequestId;
pub use stamp::Stamp;

/// Maximum number of ids of a batch read.
pub const BATCH_MAX: usize = 500;
