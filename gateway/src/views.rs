//! The views. Each file reads from top to bottom: the calls, the skeleton, the hydration with the
//! rules for what the viewer must not see, and the presentation.

pub(crate) mod account_list;
pub(crate) mod changes;
pub(crate) mod notices;
pub(crate) mod post;
pub(crate) mod posts;
pub(crate) mod timeline;
pub(crate) mod user;
pub(crate) mod users;
pub(crate) mod watch_home;
pub(crate) mod watch_notices;
