//! What the wire contract says of each method, by its path. Paths that it does not know are all
//! one method, so that nobody's inventions get into logs and traces.

use std::{collections::HashMap, sync::LazyLock};

use prost_types::FileDescriptorSet;

/// A method that a caller may ask for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Method {
    /// `/microblog.user.v1.UserService/GetUser`.
    pub(crate) path: String,
    /// Whether either side sends more than one message: then no deadline is assumed.
    pub(crate) streaming: bool,
    /// Health and reflection: never refused for load, and not worth a line in the log.
    pub(crate) inspection: bool,
    /// Its place among all methods, from 0 on.
    pub(crate) place: usize,
}

impl Method {
    /// Returns the path as OpenTelemetry has it: `microblog.user.v1.UserService/GetUser`.
    pub(crate) fn name(&self) -> &str {
        self.path.trim_start_matches('/')
    }

    /// Returns whether the wire contract knows it.
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
        .map(|(method, place)| (method.path.clone(), Method { place, ..method }))
        .collect()
});

static UNKNOWN: LazyLock<Method> = LazyLock::new(|| {
    let (path, place) = ("/unknown".to_owned(), METHODS.len());
    Method { path, streaming: false, inspection: false, place }
});

/// Returns how many methods there are, that of all unknown paths among them.
pub(crate) fn count() -> usize {
    METHODS.len() + 1
}

/// Returns what is known of the method with a path.
pub(crate) fn find(path: &str) -> &'static Method {
    METHODS.get(path).unwrap_or_else(|| &UNKNOWN)
}

fn methods(descriptors: &[u8]) -> Vec<Method> {
    // What the compiler wrote can be read; if not, every method is an unknown one.
    let files: FileDescriptorSet = prost::Message::decode(descriptors).unwrap_or_default();
    let mut methods = Vec::new();
    for file in files.file {
        for service in &file.service {
            methods.extend(service.method.iter().map(|method| Method {
                path: format!("/{}.{}/{}", file.package(), service.name(), method.name()),
                streaming: method.client_streaming() || method.server_streaming(),
                inspection: file.package().starts_with("grpc."),
                place: 0,
            }));
        }
    }
    methods
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_known_by_their_paths() {
        let unary = find("/microblog.user.v1.UserService/GetUser");
        assert!(!unary.streaming && !unary.inspection);
        assert!(find("/microblog.relation.v1.RelationService/StreamFollowers").streaming);
        assert!(find("/grpc.health.v1.Health/Check").inspection);
        assert!(find("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo").inspection);
        assert!(find("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo").streaming);
        assert_eq!(unary.name(), "microblog.user.v1.UserService/GetUser");
        assert!(unary.is_known());
        assert!(!find("/microblog.user.v1.UserService/Invented").is_known());
    }
}
