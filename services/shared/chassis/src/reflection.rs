//! Server reflection, v1 and v1alpha (for Python clients), so that clients need no `.proto` files.

use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};

const HEALTH: &str = "grpc.health.v1.Health";
const V1: &str = "grpc.reflection.v1.ServerReflection";
const V1ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Adds both versions to the routes of a service. Lists only the served services, although the
/// descriptors include all.
pub(crate) fn add(routes: Routes, service: &str) -> Result<Routes, Error> {
    let builder = || {
        let builder = Builder::configure()
            .register_encoded_file_descriptor_set(microblog_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(
                tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
            );
        [service, HEALTH, V1, V1ALPHA].into_iter().fold(builder, Builder::with_service_name)
    };
    Ok(routes.add_service(builder().build_v1()?).add_service(builder().build_v1alpha()?))
}
