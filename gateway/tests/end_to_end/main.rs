//! End-to-end tests: the gateway with real services and Redis.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod account_lists;
mod actions;
mod blocks;
mod call_recorder;
mod change_feed;
mod cost;
mod deletions;
mod error_precedence;
mod errors;
mod graph;
mod invalid_account_requests;
mod invalid_post_requests;
mod invalid_requests;
mod limits;
mod limits_by_address;
mod long_texts;
mod memory_limit;
mod mentions;
mod named_lists;
mod older_posts;
mod older_posts_errors;
mod outages;
mod outages_of_posts;
mod own_posts;
mod paging;
mod pending_sessions;
mod post_costs;
mod post_pages;
mod posts;
mod process;
mod reactions;
mod roots;
mod service_callers;
mod sessions;
mod stages;
mod suppressed_reposts;
mod system;
mod timeline_actions;
mod timeline_costs;
mod timeline_errors;
mod timeline_pages;
mod timelines;
mod watch_home;
mod watch_home_slow_reader;
