//! Calls by clients that are no server of the system, and have its keys: the commands of those who
//! run it.

use tonic::{Request, Status, metadata::MetadataValue, service::Interceptor};

use super::{HEADER, Identity, KeyFile};

/// Says who acts in the calls of a client, if there are keys: an interceptor of tonic's.
#[derive(Clone, Debug)]
pub struct Signer {
    keys: Option<KeyFile>,
    identity: Identity,
}

impl Signer {
    /// Returns what signs with the keys of a file. Without one, nothing is added to a call.
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
