//! Rate limits per address in the launcher: off by default.

use std::process::Command;

use microblog_proto::gateway::{LoginRequest, gateway_service_client::GatewayServiceClient};
use tokio::runtime;
use tonic::{Code, transport::Endpoint};

use crate::launcher::{Launcher, PROGRAM};

const LIMIT: &str = "MICROBLOG_LOGINS_PER_MINUTE";

/// Returns how many of a number of failing log-ins are rate limited.
fn rate_limited(launcher: &Launcher, attempts: usize) -> usize {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let gateway = Endpoint::from_shared(launcher.url(0)).unwrap().connect_lazy();
        let mut gateway = GatewayServiceClient::new(gateway);
        let mut rate_limited = 0;
        for _ in 0..attempts {
            let failure = gateway.login(LoginRequest::default()).await.unwrap_err();
            rate_limited += usize::from(failure.code() == Code::ResourceExhausted);
        }
        rate_limited
    })
}

#[test]
fn limits_per_address_are_off_by_default_and_configurable() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.env_remove(LIMIT);
    let launcher = Launcher::start_by(command, &directory.path().join("unlimited"), &[]);
    assert_eq!(rate_limited(&launcher, 200), 0);

    let mut command = Command::new(PROGRAM);
    command.env(LIMIT, "3");
    let launcher = Launcher::start_by(command, &directory.path().join("limited"), &[]);
    assert_eq!(rate_limited(&launcher, 8), 5);
}
