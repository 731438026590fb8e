//! How much one viewer, one address, or all addresses together, may ask for: what it takes to be refused early, before a
//! call costs more than it is worth.
//!
//! The limits are those of one process, shared by all of its workers, and kept nowhere else: a
//! restart forgets them, and of N replicas each lets as many through. What must hold exactly is
//! limited by the service that owns it: posts and comments by the post service, guesses at one
//! account's password by the user service.
//!
//! An address's limits are looked at before anything else; a viewer's as soon as the token is known
//! to be valid, and before what the call is about is looked up. What ends something (Unfollow,
//! Unlike, DeletePost) or protects its caller (Block, Mute) is not limited.

mod address;
mod cells;
mod config;
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
use microblog_chassis::PeriodicJob;
use microblog_domain::UserId;
use opentelemetry::{KeyValue, global, metrics::AsyncInstrument};
use tonic::{Request, Status};

use self::{
    address::{FORWARDED_FOR, Source},
    limit::Upkeep,
    watches::Watches,
};
pub use self::{
    address::{NetworkError, TrustedProxies},
    config::Config,
};
pub(crate) use self::{limit::Limit, watches::Watching};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Between two looks for callers that can be forgotten.
const SWEEP: Duration = Duration::from_secs(10);

/// The limits of one process. Clones share them.
#[derive(Clone, Debug)]
pub struct Limits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    viewers: Viewers,
    logins: Limit<Source>,
    registrations: PerAddress,
    availability: PerAddress,
    watches: Arc<Watches>,
    proxies: TrustedProxies,
    /// Whether the log says already that a proxy seems to be missing among them.
    warned: AtomicBool,
}

/// A limit on what comes from one address, and one on what comes from all of them: whoever has many
/// addresses is held by the second.
#[derive(Debug)]
struct PerAddress {
    each: Limit<Source>,
    total: Limit<()>,
}

/// The limits on what one viewer does.
#[derive(Debug)]
pub(crate) struct Viewers {
    pub(crate) follows: Limit<UserId>,
    pub(crate) likes: Limit<UserId>,
    /// Posts and reposts.
    pub(crate) posts: Limit<UserId>,
    pub(crate) comments: Limit<UserId>,
    /// Passwords given to prove who one is, beside log-ins.
    pub(crate) passwords: Limit<UserId>,
}

impl Limits {
    /// Returns the limits of a process: to be made once, for all of its workers.
    pub fn new(config: &Config) -> Self {
        Self(Arc::new(Shared {
            viewers: Viewers {
                follows: Limit::new("follows", config.follows_per_minute, MINUTE),
                likes: Limit::new("likes", config.likes_per_minute, MINUTE),
                posts: Limit::new("posts", config.post_calls_per_minute, MINUTE),
                comments: Limit::new("comments", config.comment_calls_per_minute, MINUTE),
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
            watches: Watches::new(config.max_watches_per_viewer),
            proxies: config.trusted_proxies.clone(),
            warned: AtomicBool::new(false),
        }))
    }

    /// Returns the limits on what one viewer does.
    pub(crate) fn viewers(&self) -> &Viewers {
        &self.0.viewers
    }

    /// Counts a log-in, or refuses it with RATE_LIMITED.
    pub(crate) fn admit_login<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.0.admit(&self.0.logins, request)
    }

    /// Counts a registration, or refuses it with RATE_LIMITED.
    pub(crate) fn admit_registration<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.0.admit_of_all(&self.0.registrations, request)
    }

    /// Counts a question of what is free to register, or refuses it with RATE_LIMITED.
    pub(crate) fn admit_availability_check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.0.admit_of_all(&self.0.availability, request)
    }

    /// Counts a stream of a viewer's until what is returned is dropped, or refuses it with
    /// WATCH_LIMIT.
    pub(crate) fn watch(&self, viewer: UserId) -> Result<Watching, Status> {
        self.0.watches.begin(viewer)
    }

    /// Has the limits looked at whenever metrics are collected, and returns the job that forgets, for
    /// ever, callers who have been quiet for long enough; `None` where nothing is limited. To be
    /// called once for each process, in a worker.
    pub(crate) fn job(&self) -> Option<BoxFuture<'static, ()>> {
        let limits = self.0.all().into_iter().any(Upkeep::limits);
        limits.then(|| {
            self.observe();
            sweep(self.clone()).boxed()
        })
    }

    fn observe(&self) {
        let meter = global::meter("microblog-gateway");
        let each = self.each(|limit| limit.refused());
        meter
            .u64_observable_counter("microblog.gateway.limits.refused")
            .with_unit("{call}")
            .with_description("Calls refused since their viewer or address makes too many")
            .with_callback(move |observer| each(observer))
            .build();
        let each = self.each(|limit| limit.remembered() as u64);
        meter
            .u64_observable_gauge("microblog.gateway.limits.callers")
            .with_unit("{caller}")
            .with_description("Viewers or addresses that are remembered, of 100,000 each, or watch")
            .with_callback(move |observer| each(observer))
            .build();
    }

    /// Returns what tells an observer a number of each limit.
    fn each<F: Fn(&dyn Upkeep) -> u64>(
        &self,
        read: F,
    ) -> impl Fn(&dyn AsyncInstrument<u64>) + use<F> {
        let limits = Arc::downgrade(&self.0);
        move |observer| {
            let Some(limits) = limits.upgrade() else { return };
            for limit in limits.all().into_iter().filter(|limit| limit.limits()) {
                observer.observe(read(limit), &[KeyValue::new("limit", limit.what())]);
            }
        }
    }
}

async fn sweep(limits: Limits) {
    let mut job = PeriodicJob::new("forgetting idle callers", SWEEP);
    loop {
        job.tick().await;
        limits.0.all().into_iter().for_each(Upkeep::forget_idle);
        job.record(Ok::<(), Infallible>(()));
    }
}

impl Shared {
    fn all(&self) -> [&dyn Upkeep; 11] {
        let Viewers { follows, likes, posts, comments, passwords } = &self.viewers;
        let Self { logins, registrations, availability, watches, .. } = self;
        [
            follows,
            likes,
            posts,
            comments,
            passwords,
            logins,
            &registrations.each,
            &registrations.total,
            &availability.each,
            &availability.total,
            &**watches,
        ]
    }

    /// Counts a call by its address, and among those of all addresses. Those that are too many for
    /// their address take nothing from others.
    fn admit_of_all<T>(&self, limits: &PerAddress, request: &Request<T>) -> Result<(), Status> {
        self.admit(&limits.each, request)?;
        limits.total.admit(&())
    }

    /// Counts a call by the address that it comes from. One from within the process has none, and
    /// nobody far away can make it.
    fn admit<T>(&self, limit: &Limit<Source>, request: &Request<T>) -> Result<(), Status> {
        let Some(peer) = request.remote_addr().map(|peer| peer.ip()) else { return Ok(()) };
        let caller = self.proxies.caller(peer, request.metadata());
        limit.admit(&caller.into()).inspect_err(|_| {
            let forwards = request.metadata().contains_key(FORWARDED_FOR);
            let believed = self.proxies.contains(peer.to_canonical());
            if forwards && !believed && !self.warned.swap(true, Ordering::Relaxed) {
                // Once: whoever likes can bring it about.
                tracing::warn!(
                    %peer,
                    "a caller that sends x-forwarded-for makes too many calls: a proxy belongs among \
                     --trusted-proxies"
                );
            }
        })
    }
}
