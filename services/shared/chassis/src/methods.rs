//! Method metadata from the proto descriptors, by path. All unknown paths share one entry, so that
//! callers cannot add names to logs and traces.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::LazyLock,
};

use microblog_proto::ACCESS;
use prost_types::{FileDescriptorSet, MethodDescriptorProto, method_options::IdempotencyLevel};

/// A method of the proto, or the entry for unknown ones.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Method {
    /// `/microblog.user.v1.UserService/GetUser`.
    pub(crate) path: String,
    /// Client- or server-streaming: no default deadline applies.
    pub(crate) streaming: bool,
    /// Health check or reflection: not limited, not sampled, logged at DEBUG.
    pub(crate) is_infrastructure: bool,
    /// Whether callers must send a signed identity: true for services behind the gateway.
    pub(crate) requires_identity: bool,
    /// Index among all methods, from 0.
    pub(crate) index: usize,
    /// Whether a call with an unknown outcome may be retried.
    pub(crate) idempotency: Idempotency,
}

/// Effect of a retry, by the method's option `idempotency_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idempotency {
    /// It may have a second effect, or another response.
    None,
    /// It has no further effect (IDEMPOTENT).
    Idempotent,
    /// It has no effect, as the first call (NO_SIDE_EFFECTS).
    NoSideEffects,
}

impl Method {
    /// Returns the fully qualified name, without the leading slash:
    /// `microblog.user.v1.UserService/GetUser`.
    pub(crate) fn name(&self) -> &str {
        self.path.trim_start_matches('/')
    }

    /// Returns the service's name: `microblog.user.v1.UserService`.
    pub(crate) fn service(&self) -> &str {
        self.name().split('/').next().unwrap_or_default()
    }

    /// Returns whether the proto declares the method.
    pub(crate) fn is_known(&self) -> bool {
        *self != *UNKNOWN
    }
}

static METHODS: LazyLock<HashMap<String, Method>> = LazyLock::new(|| {
    let ours = microblog_proto::DESCRIPTORS;
    [ours, tonic_health::pb::FILE_DESCRIPTOR_SET]
        .into_iter()
        .chain([tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET])
        .chain([tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET])
        .flat_map(methods)
        .zip(0..)
        .map(|(method, index)| (method.path.clone(), Method { index, ..method }))
        .collect()
});

static UNKNOWN: LazyLock<Method> = LazyLock::new(|| {
    let (path, index) = ("/unknown".to_owned(), METHODS.len());
    let (streaming, is_infrastructure, requires_identity) = (false, false, false);
    Method {
        path,
        streaming,
        is_infrastructure,
        requires_identity,
        index,
        idempotency: Idempotency::None,
    }
});

/// Returns the number of methods, including the entry for unknown ones.
pub(crate) fn count() -> usize {
    METHODS.len() + 1
}

/// Returns the method with a path, or the entry for unknown ones.
pub(crate) fn find(path: &str) -> &'static Method {
    METHODS.get(path).unwrap_or_else(|| &UNKNOWN)
}

/// Returns whether the method with a path only reads; `None` if the proto does not declare it.
pub fn is_read(path: &str) -> Option<bool> {
    METHODS.get(path).map(|method| method.idempotency == Idempotency::NoSideEffects)
}

/// Returns the services of the package of a service, in order: a server may have several.
pub(crate) fn services_of_package(service: &str) -> BTreeSet<&'static str> {
    let package = |service: &str| service.rsplit_once('.').map(|(package, _)| package.to_owned());
    let services = METHODS.values().map(Method::service);
    services.filter(|one| package(one) == package(service)).collect()
}

/// Returns whether a service is behind the gateway.
pub(crate) fn is_internal(service: &str) -> bool {
    METHODS.values().any(|method| method.requires_identity && method.service() == service)
}

fn methods(descriptors: &[u8]) -> Vec<Method> {
    // Generated descriptors decode; if not, every method is unknown.
    let files: FileDescriptorSet = prost::Message::decode(descriptors).unwrap_or_default();
    let guarded: HashSet<_> = ACCESS.iter().map(|(path, _)| *path).collect();
    let mut methods = Vec::new();
    for file in files.file {
        for service in &file.service {
            methods.extend(service.method.iter().map(|method| {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                Method {
                    requires_identity: guarded.contains(path.as_str()),
                    path,
                    streaming: method.client_streaming() || method.server_streaming(),
                    is_infrastructure: file.package().starts_with("grpc."),
                    index: 0,
                    idempotency: idempotency(method),
                }
            }));
        }
    }
    methods
}

fn idempotency(method: &MethodDescriptorProto) -> Idempotency {
    match method.options.as_ref().map(|options| options.idempotency_level()) {
        Some(IdempotencyLevel::NoSideEffects) => Idempotency::NoSideEffects,
        Some(IdempotencyLevel::Idempotent) => Idempotency::Idempotent,
        Some(IdempotencyLevel::IdempotencyUnknown) | None => Idempotency::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_found_by_path() {
        let unary = find("/microblog.user.v1.UserService/GetUser");
        assert!(!unary.streaming && !unary.is_infrastructure);
        assert!(find("/microblog.relation.v1.RelationService/StreamFollowers").streaming);
        assert!(find("/grpc.health.v1.Health/Check").is_infrastructure);
        assert!(
            find("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo").is_infrastructure
        );
        assert!(find("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo").streaming);
        assert_eq!(unary.name(), "microblog.user.v1.UserService/GetUser");
        assert!(unary.is_known());
        assert!(!find("/microblog.user.v1.UserService/Invented").is_known());
    }

    #[test]
    fn only_internal_services_require_an_identity() {
        assert!(find("/microblog.user.v1.UserService/GetUser").requires_identity);
        assert!(!find("/microblog.gateway.v1.GatewayService/Me").requires_identity);
        assert!(!find("/grpc.health.v1.Health/Check").requires_identity);
        assert!(is_internal("microblog.user.v1.UserService"));
        assert!(!is_internal("microblog.gateway.v1.GatewayService"));
        assert!(!is_internal("grpc.health.v1.Health"));
    }

    #[test]
    fn a_package_may_have_several_services() {
        let of = |service| services_of_package(service).into_iter().collect::<Vec<_>>();
        let public = ["microblog.gateway.v1.ChangeService", "microblog.gateway.v1.GatewayService"];
        assert_eq!(of(public[1]), public);
        assert_eq!(of("microblog.user.v1.UserService"), ["microblog.user.v1.UserService"]);
        assert!(of("microblog.invented.v1.Service").is_empty());
    }

    #[test]
    fn idempotency_level_comes_from_the_proto() {
        let idempotency = |method: &str| find(&format!("/microblog.{method}")).idempotency;
        assert_eq!(idempotency("user.v1.UserService/GetUser"), Idempotency::NoSideEffects);
        assert_eq!(
            idempotency("relation.v1.RelationService/StreamFollowers"),
            Idempotency::NoSideEffects
        );
        assert_eq!(idempotency("post.v1.PostService/CreatePost"), Idempotency::Idempotent);
        assert_eq!(idempotency("timeline.v1.TimelineService/Deliver"), Idempotency::Idempotent);
        assert_eq!(idempotency("user.v1.UserService/Login"), Idempotency::None);
        assert_eq!(idempotency("user.v1.UserService/ChangePassword"), Idempotency::None);
        assert_eq!(idempotency("user.v1.UserService/Invented"), Idempotency::None);
        assert_eq!(
            find("/microblog.user.v1.UserService/GetUser").service(),
            "microblog.user.v1.UserService"
        );
    }
}
