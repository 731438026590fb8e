//! The access declarations in the protos.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use microblog_proto::{ACCESS, Access};
use prost::Message as _;
use prost_types::{FileDescriptorSet, method_options::IdempotencyLevel};

/// The methods that anyone may call. A new one must be added here: its response must be public, or
/// its request must have a password or a token.
const OPEN: [(&str, Access); 17] = [
    ("post.v1.PostService/BatchGetComments", Access::Public),
    ("post.v1.PostService/BatchGetPostCounts", Access::Public),
    ("post.v1.PostService/GetComment", Access::Public),
    ("post.v1.PostService/ListComments", Access::Public),
    ("post.v1.PostService/ListLikers", Access::Public),
    ("post.v1.PostService/ListUserComments", Access::Public),
    ("relation.v1.RelationService/BatchGetCounts", Access::Public),
    ("relation.v1.RelationService/ListEdgeIds", Access::Public),
    ("user.v1.UserService/Authenticate", Access::Credentials),
    ("user.v1.UserService/BatchGetUsers", Access::Public),
    ("user.v1.UserService/BatchResolveNames", Access::Public),
    ("user.v1.UserService/CheckAvailability", Access::Public),
    ("user.v1.UserService/GetUser", Access::Public),
    ("user.v1.UserService/GetUserByName", Access::Public),
    ("user.v1.UserService/Login", Access::Credentials),
    ("user.v1.UserService/Logout", Access::Credentials),
    ("user.v1.UserService/Register", Access::Credentials),
];

fn files() -> Vec<prost_types::FileDescriptorProto> {
    let files = FileDescriptorSet::decode(microblog_proto::DESCRIPTORS).unwrap().file;
    files.into_iter().filter(|file| file.package().starts_with("microblog.")).collect()
}

#[test]
fn every_internal_method_declares_its_callers() {
    let mut paths = Vec::new();
    for file in files().iter().filter(|file| file.package() != "microblog.gateway.v1") {
        for service in &file.service {
            let path = |name: &str| format!("/{}.{}/{name}", file.package(), service.name());
            paths.extend(service.method.iter().map(|method| path(method.name())));
        }
    }
    paths.sort();
    assert!(
        paths.iter().eq(ACCESS.iter().map(|(path, _)| path)),
        "an internal method declares no access"
    );
}

#[test]
fn open_methods_are_listed_here() {
    let is_open = |access: &Access| matches!(access, Access::Public | Access::Credentials);
    let open = ACCESS.iter().filter(|(_, access)| is_open(access));
    let open: Vec<_> =
        open.map(|(path, access)| (path.strip_prefix("/microblog.").unwrap(), *access)).collect();
    assert_eq!(open, OPEN);
}

#[test]
fn writing_methods_declare_an_actor() {
    let files = files();
    for (path, access) in ACCESS {
        let (service, name) = path.trim_start_matches('/').split_once('/').unwrap();
        let methods = files.iter().flat_map(|file| {
            let own = file
                .service
                .iter()
                .filter(|it| format!("{}.{}", file.package(), it.name()) == service);
            own.flat_map(|service| &service.method)
        });
        let method = methods.into_iter().find(|method| method.name() == name).unwrap();
        let level = method.options.as_ref().map(|options| options.idempotency_level());
        let reads = level == Some(IdempotencyLevel::NoSideEffects);
        assert!(reads || !matches!(access, Access::Public | Access::Viewer(_)), "{path}");
    }
}
