//! Identity keys, with which commands sign their calls to services as the identity `system`.

use microblog_chassis::identity::{Identity, KeyFile, Signer};
use tonic::{service::interceptor::InterceptedService, transport::Channel};

/// A channel that signs calls with the identity `system`.
pub type SignedChannel = InterceptedService<Channel, Signer>;

/// Command-line option of the identity key file.
#[derive(Clone, Default, clap::Args)]
pub struct Keys {
    /// File with the identity keys of the services, the same as their --identity-key-file.
    #[arg(long, value_name = "FILE", env = "MICROBLOG_IDENTITY_KEY_FILE")]
    pub identity_key_file: Option<KeyFile>,
}

impl Keys {
    /// Returns a channel that signs its calls.
    pub fn sign(&self, channel: Channel) -> SignedChannel {
        let signer = Signer::new(self.identity_key_file.clone(), Identity::System);
        InterceptedService::new(channel, signer)
    }
}
