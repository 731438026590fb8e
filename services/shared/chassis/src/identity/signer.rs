//! Signer for clients that hold the keys but are no servers, such as operators' commands.

use tonic::{Request, Status, metadata::MetadataValue, service::Interceptor};

use super::{HEADER, Identity, KeyFile};

/// tonic interceptor that adds a signed identity to each call, if there are keys.
#[derive(Clone, Debug)]
pub struct Signer {
    keys: Option<KeyFile>,
    identity: Identity,
}

impl Signer {
    /// Returns a signer with the keys of a file. Without a file, it adds nothing.
    pub const fn new(keys: Option<KeyFile>, identity: Identity) -> Self {
        Self { keys, identity }
    }
}

impl Interceptor for Signer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(keys) = &self.keys
            && let Ok(mut value) = MetadataValue::try_from(keys.sign(self.identity).as_bytes())
        {
            value.set_sensitive(true);
            request.metadata_mut().insert(HEADER, value);
        }
        Ok(request)
    }
}
