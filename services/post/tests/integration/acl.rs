//! The service's Redis user may execute what the service uses, and nothing else.

use microblog_testkit::acl;

#[tokio::test]
async fn other_services_keys_and_unused_commands_are_denied() {
    acl::assert_confined("post").await;
}

#[tokio::test]
async fn the_acl_file_allows_what_the_sources_use_and_nothing_else() {
    acl::assert_exact("post", env!("CARGO_MANIFEST_DIR")).await;
}
