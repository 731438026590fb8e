//! Rate limits by viewer and by client address. They reject excess calls before those cost more.
//!
//! The limits hold for one process, and all its workers share them. They are in memory only: a
//! restart resets them, and each of N replicas allows as many calls. Exact limits belong to the
//! services: the post service limits posts and comments, the user service limits password attempts
//! on one account.
//!
//! The limits of an address are checked first of all. The limits of a viewer are checked right
//! after authentication, before any other call that does not run beside it. Calls that undo something
//! (Unfollow, Unlike) or protect the caller (Block, Mute) have a high one: even those that change nothing
//! leave rows in the database. Deletions are not limited: they need a post or a comment.

mod address;
mod config;
mod keyed_state;
mod limit;
mod watches;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use microblog_chassis::{Connection, run_periodically};
use microblog_domain::UserId;
use opentelemetry::{KeyValue, global, metrics::AsyncInstrument};
use tonic::{Request, Status};

use self::{
    address::{ClientKey, FORWARDED_FOR},
    limit::Maintain,
    watches::Watches,
};
pub use self::{
    address::{NetworkError, TrustedProxies},
    config::Config,
};
pub(crate) use self::{limit::Limit, watches::WatchPermit};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// The period of the job that evicts idle keys.
const EVICTION_PERIOD: Duration = Duration::from_secs(10);

/// The limits of one process. Clones share them.
#[derive(Clone, Debug)]
pub struct Limits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    viewers: Viewers,
    logins: Limit<ClientKey>,
    registrations: PerAddress,
    availability: PerAddress,
    watches: Arc<Watches<UserId>>,
    change_streams: Arc<Watches<String>>,
    proxies: TrustedProxies,
    /// Whether the warning about an untrusted proxy was logged already.
    warned: AtomicBool,
}

/// A limit for each address, and one for all addresses together. The second one limits clients with
/// many addresses.
#[derive(Debug)]
struct PerAddress {
    each: Limit<ClientKey>,
    total: Limit<()>,
}

/// The limits for each viewer.
#[derive(Debug)]
pub(crate) struct Viewers {
    pub(crate) follows: Limit<UserId>,
    pub(crate) likes: Limit<UserId>,
    /// Posts and reposts.
    pub(crate) posts: Limit<UserId>,
    pub(crate) comments: Limit<UserId>,
    /// All other calls that may leave a row without a need for one.
    pub(crate) changes: Limit<UserId>,
    /// Calls that verify a password, except Login.
    pub(crate) passwords: Limit<UserId>,
}

impl Limits {
    /// Returns the limits of a process. Create them once, for all workers.
    pub fn new(config: &Config) -> Self {
        Self(Arc::new(Shared {
            viewers: Viewers {
                follows: Limit::new("follows", config.follows_per_minute, MINUTE),
                likes: Limit::new("likes", config.likes_per_minute, MINUTE),
                posts: Limit::new("posts", config.post_calls_per_minute, MINUTE),
                comments: Limit::new("comments", config.comment_calls_per_minute, MINUTE),
                changes: Limit::new("changes", config.change_calls_per_minute, MINUTE),
                passwords: Limit::new("passwords", config.password_calls_per_minute, MINUTE),
            },
            logins: Limit::new("log-ins", config.logins_per_minute, MINUTE),
            registrations: PerAddress {
                each: Limit::new("registrations", config.registrations_per_hour, HOUR),
                total: Limit::new(
                    "registrations in total",
                    config.registrations_per_hour_total,
                    HOUR,
                ),
            },
            availability: PerAddress {
                each: Limit::new(
                    "availability checks",
                    config.availability_checks_per_minute,
                    MINUTE,
                ),
                total: Limit::new(
                    "availability checks in total",
                    config.availability_checks_per_minute_total,
                    MINUTE,
                ),
            },
            watches: Watches::new("watches", config.max_watches_per_viewer),
            change_streams: Watches::new("change streams", config.max_change_streams_per_caller),
            proxies: config.trusted_proxies.clone().unwrap_or_default(),
            warned: AtomicBool::new(false),
        }))
    }

    /// Returns the limits for each viewer.
    pub(crate) fn viewers(&self) -> &Viewers {
        &self.0.viewers
    }

    /// Counts a call of Login, or rejects it with RATE_LIMITED.
    pub(crate) fn check_login<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.0.check(&self.0.logins, request)
    }

    /// Counts a call of Register, or rejects it with RATE_LIMITED.
    pub(crate) fn check_registration<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.0.check_with_total(&self.0.registrations, request)
    }

    /// Counts a call of CheckAvailability, or rejects it with RATE_LIMITED.
    pub(crate) fn check_availability<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.0.check_with_total(&self.0.availability, request)
    }

    /// Counts an open stream of a viewer until the permit is dropped, or rejects it with
    /// WATCH_LIMIT.
    pub(crate) fn acquire_watch(&self, viewer: UserId) -> Result<WatchPermit<UserId>, Status> {
        self.0.watches.acquire(viewer)
    }

    /// Counts an open stream of the change feed likewise, by the name of the service caller.
    pub(crate) fn acquire_change_stream(
        &self,
        caller: &str,
    ) -> Result<WatchPermit<String>, Status> {
        self.0.change_streams.acquire(caller.to_owned())
    }

    /// Registers the metrics of the limits, and returns the periodic job that evicts idle keys;
    /// `None` if all limits are disabled. Call it once for each process, in a worker.
    pub(crate) fn job(&self) -> Option<BoxFuture<'static, ()>> {
        let is_enabled = self.0.all().into_iter().any(Maintain::is_enabled);
        is_enabled.then(|| {
            self.register_metrics();
            let limits = self.clone();
            let evict = async move || {
                limits.0.all().into_iter().for_each(Maintain::evict_idle);
                Ok::<(), Infallible>(())
            };
            run_periodically("evicting idle callers", EVICTION_PERIOD, evict).boxed()
        })
    }

    fn register_metrics(&self) {
        let meter = global::meter("microblog-gateway");
        let observe = self.observer(|limit| limit.rejected());
        meter
            .u64_observable_counter("microblog.gateway.limits.rejected")
            .with_unit("{call}")
            .with_description("Calls rejected by a rate limit")
            .with_callback(move |observer| observe(observer))
            .build();
        let observe = self.observer(|limit| limit.tracked() as u64);
        meter
            .u64_observable_gauge("microblog.gateway.limits.callers")
            .with_unit("{caller}")
            .with_description(
                "Keys (viewers or addresses) with state; at most 100,000 for each rate limit",
            )
            .with_callback(move |observer| observe(observer))
            .build();
    }

    /// Returns a metrics callback that reports one number for each enabled limit.
    fn observer<F: Fn(&dyn Maintain) -> u64>(
        &self,
        read: F,
    ) -> impl Fn(&dyn AsyncInstrument<u64>) + use<F> {
        let limits = Arc::downgrade(&self.0);
        move |observer| {
            let Some(limits) = limits.upgrade() else { return };
            for limit in limits.all().into_iter().filter(|limit| limit.is_enabled()) {
                observer.observe(read(limit), &[KeyValue::new("limit", limit.name())]);
            }
        }
    }
}

impl Shared {
    fn all(&self) -> [&dyn Maintain; 13] {
        let Viewers { follows, likes, posts, comments, changes, passwords } = &self.viewers;
        let Self { logins, registrations, availability, watches, change_streams, .. } = self;
        [
            follows,
            likes,
            posts,
            comments,
            changes,
            passwords,
            logins,
            &registrations.each,
            &registrations.total,
            &availability.each,
            &availability.total,
            &**watches,
            &**change_streams,
        ]
    }

    /// Counts a call of an address, then of all addresses. A call that its address's limit rejects
    /// does not count towards the total.
    fn check_with_total<T>(&self, limits: &PerAddress, request: &Request<T>) -> Result<(), Status> {
        self.check(&limits.each, request)?;
        limits.total.check(&())
    }

    /// Counts a call of a client address. A call from within the process has no address and is not
    /// limited; no remote client can make one.
    fn check<T>(&self, limit: &Limit<ClientKey>, request: &Request<T>) -> Result<(), Status> {
        let connection = request.extensions().get::<Connection>();
        let Some(peer) = connection.and_then(|from| from.remote_addr) else { return Ok(()) };
        let peer = peer.ip();
        // A balancer of layer 4 passes on whatever header its client sends.
        let client = match connection.is_some_and(|from| from.is_unnamed) {
            true => peer.to_canonical(),
            false => self.proxies.client(peer, request.metadata()),
        };
        limit.check(&client.into()).inspect_err(|_| {
            let is_forwarded = request.metadata().contains_key(FORWARDED_FOR);
            let is_trusted = self.proxies.contains(peer.to_canonical());
            if is_forwarded && !is_trusted && !self.warned.swap(true, Ordering::Relaxed) {
                // Logged once: any client can cause it.
                tracing::warn!(
                    %peer,
                    "rate limit exceeded by a peer that sends x-forwarded-for: if it is a proxy, \
                     add it to --trusted-proxies"
                );
            }
        })
    }
}
