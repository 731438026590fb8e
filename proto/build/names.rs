//! Names of services and methods in generated code and on the wire.

use prost_build::Service;

/// Returns a name in snake case, as in tonic's module names.
pub(crate) fn module(name: &str) -> String {
    let mut module = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !module.is_empty() {
            module.push('_');
        }
        module.push(letter.to_ascii_lowercase());
    }
    module
}

/// Returns a method's path: `/microblog.user.v1.UserService/GetUser`.
pub(crate) fn path(service: &Service, method: &str) -> String {
    format!("/{}.{}/{method}", service.package, service.proto_name)
}
