//! The service's Redis user may do what the service does, and nothing else.

use microblog_testkit::acl;

#[tokio::test]
async fn other_services_keys_and_unused_commands_are_refused() {
    acl::assert_confined("timeline").await;
}

#[tokio::test]
async fn the_acl_file_allows_what_the_sources_use_and_nothing_else() {
    acl::assert_exact("timeline", env!("CARGO_MANIFEST_DIR")).await;
}
