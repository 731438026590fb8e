//! The Redis ACL of the service: its user may run what the service uses, and nothing else.

use microblog_testkit::acl;

#[tokio::test]
async fn the_acl_denies_other_services_keys_and_unused_commands() {
    acl::assert_confined("notice").await;
}

#[tokio::test]
async fn the_acl_allows_exactly_the_used_commands() {
    acl::assert_exact("notice", env!("CARGO_MANIFEST_DIR")).await;
}
