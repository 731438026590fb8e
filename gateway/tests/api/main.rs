//! The system end to end: the gateway before the real services, on real Redis.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod account_lists;
mod account_refusals;
mod acts;
mod blocked;
mod cost;
mod deletions;
mod graph;
mod limits;
mod limits_by_address;
mod long_texts;
mod memory_limit;
mod mentions;
mod outages;
mod outages_of_posts;
mod own_posts;
mod paging;
mod past;
mod past_faults;
mod post_costs;
mod post_faults;
mod post_pages;
mod post_refusals;
mod posts;
mod process;
mod reactions;
mod refusals;
mod refused;
mod roots;
mod sessions;
mod stand_ins;
mod system;
mod tap;
mod timeline_acts;
mod timeline_costs;
mod timeline_faults;
mod timeline_pages;
mod timelines;
mod watching;
mod watching_slowly;
