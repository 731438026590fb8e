//! The keys of the servers, for commands that call services past the gateway: what they do, the
//! system does.

use microblog_chassis::identity::{Identity, KeyFile, Signer};
use tonic::{service::interceptor::InterceptedService, transport::Channel};

/// A channel whose calls are the system's own.
pub type Signed = InterceptedService<Channel, Signer>;

/// Where the keys are, if there are any.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Keys {
    /// The file that the services have as their own --identity-key-file, if they have one.
    #[arg(long, value_name = "FILE", env = "MICROBLOG_IDENTITY_KEY_FILE")]
    pub identity_key_file: Option<KeyFile>,
}

impl Keys {
    /// Returns a channel to a service that they are shown to.
    pub fn sign(&self, channel: Channel) -> Signed {
        let signer = Signer::new(self.identity_key_file.clone(), Identity::System);
        InterceptedService::new(channel, signer)
    }
}
