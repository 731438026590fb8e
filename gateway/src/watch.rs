//! Streams of what is new for a viewer, driven by the caller. The gateway reads from the service only
//! when the caller's connection asks for the next message. Does not depend on any view.
//!
//! Entries from the service may have waited on the way since before an Unfollow or a Block was
//! confirmed. So each message is hydrated when the HTTP/2 server asks for it. The server sends a message
//! when the caller's flow-control window has room for some of it, and takes one more before it waits for
//! room. So up to two messages exist ahead, beside those that fit into the window. HTTP/1.1 has no such
//! window: there, up to some hundred kilobytes wait in buffers.

use std::time::Duration;

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use microblog_chassis as chassis;
use microblog_domain::UserId;
use tokio::time::{Instant, timeout_at};
use tonic::{Response, Status, Streaming};

use crate::{
    callers, context::authenticate, credentials::Credentials, errors, limits::WatchPermit,
    state::Gateway,
};

/// The fields of a service's request that the caller controls.
const FIELDS: errors::Fields = &[("since_token", "since_token")];

/// The stream of a method.
pub(crate) type Messages<T> = BoxStream<'static, Result<T, Status>>;

/// A list whose new entries are streamed.
pub(crate) trait Watched: 'static {
    /// The method's name.
    const METHOD: &'static str;
    /// How many entries fit into one message, whatever their size.
    const ENTRIES_MAX: usize;

    /// A message of the service's stream.
    type Update: Send + 'static;
    /// An entry before hydration.
    type Entry: Send + Sync;
    /// A message to the caller.
    type Message: Send;

    /// Returns whether a message need not be sent, unless it is the first one.
    fn is_empty(_: &Self::Message) -> bool {
        false
    }

    /// Returns a message without entries.
    fn heartbeat(since_token: String) -> Self::Message;

    /// Opens the service's stream.
    fn open(
        gateway: &Gateway,
        viewer: UserId,
        since_token: String,
    ) -> impl Future<Output = Result<Response<Streaming<Self::Update>>, Status>> + Send;

    /// Returns the entries of an update, and its since token.
    fn split(update: Self::Update) -> (Vec<Self::Entry>, String);

    /// Returns the message with the entries as the viewer sees them now.
    fn message(
        gateway: &Gateway,
        viewer: UserId,
        entries: Vec<Self::Entry>,
        since_token: String,
    ) -> impl Future<Output = Result<Self::Message, Status>> + Send;
}

/// Streams the new entries of a list. 2 calls at the start: user.Authenticate, then the one that opens
/// the service's stream. Each message costs user.Authenticate ∥ its hydration. An idle stream costs
/// user.Authenticate every `--session-check-ms`, and no call for its heartbeats. For a service caller,
/// user.GetUser or user.GetAccount takes the place of user.Authenticate.
pub(crate) async fn watch<W: Watched>(
    gateway: &Gateway,
    credentials: Credentials,
    since_token: String,
) -> Result<Messages<W::Message>, Status> {
    let viewer = authenticate(gateway, credentials.clone()).await?;
    let permit = gateway.limits.acquire_watch(viewer)?;
    chassis::context::watch()?;
    let updates = errors::stream(W::open(gateway, viewer, since_token.clone()), FIELDS).await?;
    let now = Instant::now();
    let watch = Watch::<W> {
        gateway: gateway.clone(),
        credentials,
        credentials_checked_at: now,
        session_checked_at: now,
        is_first: true,
        viewer,
        updates,
        pending: Pending { entries: Vec::new(), token: String::new(), since_token },
        _permit: permit,
    };
    Ok(stream::try_unfold(watch, Watch::step).boxed())
}

/// An open stream.
struct Watch<W: Watched> {
    gateway: Gateway,
    credentials: Credentials,
    /// When the rights of a service caller were checked last.
    credentials_checked_at: Instant,
    session_checked_at: Instant,
    is_first: bool,
    viewer: UserId,
    updates: Streaming<W::Update>,
    pending: Pending<W::Entry>,
    /// Counts the stream towards the viewer's limit while it is open.
    _permit: WatchPermit<UserId>,
}

/// What an idle stream has next.
enum Next<Update> {
    Update(Update),
    Heartbeat,
    /// The service ends the stream.
    End,
}

/// The part of the last update that is not sent yet.
struct Pending<Entry> {
    entries: Vec<Entry>,
    /// The since token of that update.
    token: String,
    /// The since token of the last update that is sent completely.
    since_token: String,
}

impl<W: Watched> Watch<W> {
    /// Returns the next message. The session is checked for each that has entries, so none is sent after
    /// its end.
    async fn step(mut self) -> Result<Option<(W::Message, Self)>, Status> {
        // The first message confirms the start, and has the token to resume from.
        let heartbeat_at = self.gateway.heartbeat_at().filter(|_| !self.is_first);
        loop {
            if self.pending.entries.is_empty() {
                let update = match self.next(heartbeat_at).await? {
                    Next::Update(update) => update,
                    Next::Heartbeat => {
                        let message = W::heartbeat(self.pending.since_token.clone());
                        return Ok(Some((message, self)));
                    }
                    Next::End => return Ok(None),
                };
                (self.pending.entries, self.pending.token) = W::split(update);
            }
            let (entries, since_token) = self.pending.take(W::ENTRIES_MAX);
            self.credentials = self.current_credentials()?;
            let message = W::message(&self.gateway, self.viewer, entries, since_token);
            let (session, message) = tokio::join!(self.authenticate(), message);
            session?;
            self.session_checked_at = Instant::now();
            self.credentials_checked_at = self.session_checked_at;
            let message = message?;
            if std::mem::take(&mut self.is_first) || !W::is_empty(&message) {
                return Ok(Some((message, self)));
            }
        }
    }

    /// Waits for an update of the service, or until a heartbeat is due. Meanwhile, the end of the session
    /// or of the service caller's rights ends the stream.
    async fn next(&mut self, heartbeat_at: Option<Instant>) -> Result<Next<W::Update>, Status> {
        loop {
            let check_at = self.credentials_checked_at + self.check_interval();
            let until = heartbeat_at.map_or(check_at, |at| at.min(check_at));
            match timeout_at(until, self.updates.message()).await {
                Ok(Ok(update)) => return Ok(update.map_or(Next::End, Next::Update)),
                Ok(Err(status)) => return Err(errors::map(status, FIELDS)),
                Err(_elapsed) if check_at <= Instant::now() => self.check().await?,
                Err(_elapsed) => return Ok(Next::Heartbeat),
            }
        }
    }

    fn check_interval(&self) -> Duration {
        let session_check = self.gateway.session_check;
        match &self.credentials {
            Credentials::Session(_) => session_check,
            Credentials::Caller(_) => session_check.min(callers::CHECK_INTERVAL),
        }
    }

    /// Checks the service caller's rights, and if it is due, the session or the viewer.
    async fn check(&mut self) -> Result<(), Status> {
        let current = self.current_credentials()?;
        let has_changed = current.has_changed(&self.credentials);
        self.credentials = current;
        self.credentials_checked_at = Instant::now();
        if has_changed || self.session_checked_at.elapsed() >= self.gateway.session_check {
            self.authenticate().await?;
            self.session_checked_at = Instant::now();
            self.credentials_checked_at = self.session_checked_at;
        }
        Ok(())
    }

    /// Checks the viewer's session, or that the service caller may act for the viewer.
    async fn authenticate(&self) -> Result<(), Status> {
        authenticate(&self.gateway, self.credentials.clone()).await.map(|_viewer| ())
    }

    fn current_credentials(&self) -> Result<Credentials, Status> {
        self.credentials.current(self.gateway.callers.as_ref(), W::METHOD)
    }
}

impl<Entry> Pending<Entry> {
    /// Removes and returns up to `max` entries, with the since token of their message. All but the last
    /// part of an update keep the previous token: a stream that breaks in between repeats all of it.
    fn take(&mut self, max: usize) -> (Vec<Entry>, String) {
        let rest = self.entries.split_off(self.entries.len().min(max));
        let entries = std::mem::replace(&mut self.entries, rest);
        if self.entries.is_empty() {
            self.since_token.clone_from(&self.token);
        }
        (entries, self.since_token.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_last_part_of_an_update_keep_the_previous_token() {
        let (token, since_token) = ("new".to_owned(), "old".to_owned());
        let mut pending = Pending { entries: vec![5, 4, 3, 2, 1], token, since_token };
        for (entries, token) in
            [(&[5, 4][..], "old"), (&[3, 2], "old"), (&[1], "new"), (&[], "new")]
        {
            assert_eq!(pending.take(2), (entries.to_vec(), token.to_owned()));
        }
    }
}
