//! Service callers: other services that call the gateway, for themselves or for accounts.
//!
//! The file of `--callers-file` lists them, with hashes of their secrets or the names of their
//! certificates, their methods, and whether they may act for accounts. It has no secret itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use microblog_chassis::status;
use microblog_domain::UserId;
use microblog_files::{HotReload, TextFile, TextFileError};
use microblog_proto::{
    common::ErrorReason,
    gateway::{change_service_server, gateway_service_server},
};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tonic::{Code, Status};

use crate::limits::Limit;

/// Minimum interval between two checks of the file. With [`CHECK_INTERVAL`] of streams, the streams of a
/// caller that is removed from the file end within ten seconds, if their clients read.
const RELOAD_INTERVAL: Duration = Duration::from_secs(4);

/// How often an open stream of a service caller checks that the caller is still allowed.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(4);

const BYTES_MAX: u64 = 1024 * 1024;
/// Each rate limit takes some memory.
const CALLERS_MAX: usize = 1_000;
const NAME_BYTES_MAX: usize = 64;
/// As the user service's.
const ISSUER_BYTES_MAX: usize = 200;

/// The callers of `--callers-file`. Clones share them and their rate limits.
///
/// An unreadable or invalid file keeps the previous ones, with a warning in the log. A changed file
/// resets the rate limits.
#[derive(Clone)]
pub struct Callers(Arc<HotReload<TextFile<CallerSet>>>);

/// A service caller.
pub(crate) struct Caller {
    name: String,
    proofs: BTreeSet<Proof>,
    methods: BTreeSet<String>,
    issuers: BTreeSet<String>,
    acts_for: ActsFor,
    has_private_changes: bool,
    limit: Limit<()>,
}

type SecretHash = [u8; 32];

/// What shows who a caller is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    /// A secret with this hash.
    Secret(SecretHash),
    /// A certificate with this DNS name, which mutual TLS has verified.
    Certificate(String),
}

/// The callers of a file.
#[derive(Default)]
struct CallerSet {
    by_name: BTreeMap<String, Arc<Caller>>,
    by_certificate: BTreeMap<String, Arc<Caller>>,
}

/// The accounts that a caller may act for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ActsFor {
    /// None: its calls have no viewer.
    #[default]
    Nobody,
    /// Those with an external id of its issuers.
    Own,
    /// All.
    Anybody,
}

/// A caller that has shown who it is.
#[derive(Clone)]
pub(crate) struct AuthenticatedCaller {
    caller: Arc<Caller>,
    proof: Proof,
}

/// The content of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    callers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    secrets_sha256: Vec<String>,
    #[serde(default)]
    certificate_names: BTreeSet<String>,
    methods: BTreeSet<String>,
    #[serde(default)]
    issuers: BTreeSet<String>,
    #[serde(default)]
    acts_for: ActsFor,
    #[serde(default)]
    private_changes: bool,
    /// 0: no limit.
    #[serde(default)]
    calls_per_minute: u32,
}

impl Callers {
    /// Reads the callers of a file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, TextFileError> {
        let file = TextFile { path: path.into(), bytes_max: BYTES_MAX, parse };
        let callers = HotReload::new("service callers", file);
        let callers = callers.map_err(|unusable| unusable.problem)?;
        Ok(Self(Arc::new(callers.check_every(RELOAD_INTERVAL))))
    }

    /// Returns the caller with a name and a secret.
    pub(crate) fn authenticate(&self, name: &str, secret: &str) -> Option<AuthenticatedCaller> {
        // Equality need not take constant time: it compares hashes, which the sender cannot choose.
        let proof = Proof::Secret(Sha256::digest(secret).into());
        let caller = self.0.current().by_name.get(name)?.clone();
        caller.proofs.contains(&proof).then_some(AuthenticatedCaller { caller, proof })
    }

    /// Returns the caller with one of the names of a verified certificate.
    pub(crate) fn of_certificate(&self, names: &[String]) -> Option<AuthenticatedCaller> {
        if names.is_empty() {
            return None;
        }
        let callers = self.0.current();
        let name = names.iter().find(|name| callers.by_certificate.contains_key(*name))?;
        let caller = callers.by_certificate.get(name)?.clone();
        Some(AuthenticatedCaller { caller, proof: Proof::Certificate(name.clone()) })
    }

    /// Returns a caller with the rights that it has now, if the file still has it with its secret or
    /// certificate, and still permits a call.
    pub(crate) fn current(
        &self,
        caller: &AuthenticatedCaller,
        method: &str,
        viewer: Option<UserId>,
    ) -> Result<AuthenticatedCaller, Status> {
        let current = self.0.current().by_name.get(caller.name()).cloned();
        let current = current.filter(|current| current.proofs.contains(&caller.proof));
        let current = current.ok_or_else(caller_invalid)?;
        current.check(method, viewer)?;
        Ok(AuthenticatedCaller { caller: current, proof: caller.proof.clone() })
    }
}

impl AuthenticatedCaller {
    /// Returns the caller's name.
    pub(crate) fn name(&self) -> &str {
        &self.caller.name
    }

    /// Returns whether both are of the same reading of the file.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.caller, &other.caller)
    }

    /// Counts a call, and checks that the caller may make it: RATE_LIMITED or CALLER_NOT_ALLOWED.
    pub(crate) fn authorize(&self, method: &str, viewer: Option<UserId>) -> Result<(), Status> {
        self.caller.limit.check(&())?;
        self.caller.check(method, viewer)
    }

    /// Checks that the caller may use external ids of an issuer.
    pub(crate) fn check_issuer(&self, issuer: &str) -> Result<(), Status> {
        let rejected = || not_allowed(format!("{} may not use this issuer", self.name()));
        self.has_issuer(issuer).then_some(()).ok_or_else(rejected)
    }

    /// Returns whether an issuer is one of the caller's.
    pub(crate) fn has_issuer(&self, issuer: &str) -> bool {
        self.caller.issuers.contains(issuer)
    }

    /// Returns whether the caller may see blocks and mutes in the change feed.
    pub(crate) fn may_see_private_changes(&self) -> bool {
        self.caller.has_private_changes
    }

    /// Returns whether the caller may only act for accounts with an external id of its issuers.
    pub(crate) fn acts_for_own(&self) -> bool {
        self.caller.acts_for == ActsFor::Own
    }
}

impl Caller {
    fn check(&self, method: &str, viewer: Option<UserId>) -> Result<(), Status> {
        if !self.methods.contains(method) {
            return Err(not_allowed(format!("{} may not call {method}", self.name)));
        }
        if viewer.is_some() && self.acts_for == ActsFor::Nobody {
            return Err(not_allowed(format!("{} may not act for accounts", self.name)));
        }
        Ok(())
    }
}

/// Returns the error for a call that a service caller may not make.
pub(crate) fn not_allowed(text: impl Into<String>) -> Status {
    status::with_reason(Code::PermissionDenied, ErrorReason::CallerNotAllowed, text)
}

/// Returns the error for an unknown caller and for a wrong secret.
pub(crate) fn caller_invalid() -> Status {
    let text = "no service caller has this name and secret";
    status::unauthenticated(ErrorReason::CallerInvalid, text)
}

/// Returns whether a method of the gateway only reads; `None` if it has no such method. One of the
/// change feed has its service before it: `ChangeService.Watch`.
pub(crate) fn is_read(method: &str) -> Option<bool> {
    let path = match method.split_once('.') {
        Some(("ChangeService", method)) => {
            format!("/{}/{method}", change_service_server::SERVICE_NAME)
        }
        _ => format!("/{}/{method}", gateway_service_server::SERVICE_NAME),
    };
    microblog_chassis::is_read(&path)
}

// For clap.
impl FromStr for Callers {
    type Err = TextFileError;

    fn from_str(path: &str) -> Result<Self, TextFileError> {
        Self::open(path)
    }
}

/// Parses the content of the file. Errors name no value that may be a secret.
fn parse(text: &str) -> Result<CallerSet, String> {
    let content: Content = serde_json::from_str(text).map_err(|error| {
        let text = error.to_string();
        // Has the value.
        let is_type = text.starts_with("invalid type");
        let place = format!("a value of the wrong type at line {}", error.line());
        if is_type { place } else { text }
    })?;
    if content.callers.len() > CALLERS_MAX {
        return Err(format!("has more than {CALLERS_MAX} callers"));
    }
    let mut callers = CallerSet::default();
    for entry in content.callers {
        let caller = Arc::new(entry.caller()?);
        let name = caller.name.clone();
        for proof in &caller.proofs {
            if let Proof::Certificate(certificate) = proof
                && callers.by_certificate.insert(certificate.clone(), caller.clone()).is_some()
            {
                return Err(format!("two callers have the certificate name {certificate}"));
            }
        }
        if callers.by_name.insert(name.clone(), caller).is_some() {
            return Err(format!("two callers have the name {name}"));
        }
    }
    Ok(callers)
}

impl Entry {
    fn caller(self) -> Result<Caller, String> {
        let Self { name, secrets_sha256, certificate_names, methods, .. } = self;
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_valid) {
            return Err(format!(
                "a caller's name must be 1 to {NAME_BYTES_MAX} of A-Z, a-z, 0-9, '-', '_' and '.'"
            ));
        }
        if let Some(unknown) = methods.iter().find(|method| is_read(method).is_none()) {
            return Err(format!("caller {name}: the gateway has no method {unknown}"));
        }
        let hash = |text: &String| {
            let mut hash = SecretHash::default();
            hex::decode_to_slice(text, &mut hash).map(|()| hash).map_err(|_| {
                format!("caller {name}: secrets_sha256 must have hashes of 64 hexadecimal digits")
            })
        };
        let secrets = secrets_sha256.iter().map(|text| hash(text).map(Proof::Secret));
        let mut proofs = secrets.collect::<Result<BTreeSet<_>, _>>()?;
        proofs.extend(certificate_names.into_iter().map(Proof::Certificate));
        if proofs.is_empty() {
            return Err(format!("caller {name} needs secrets_sha256 or certificate_names"));
        }
        let is_issuer = |issuer: &String| {
            (1..=ISSUER_BYTES_MAX).contains(&issuer.len())
                && issuer.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if !self.issuers.iter().all(is_issuer) {
            return Err(format!(
                "caller {name}: issuers must be 1 to {ISSUER_BYTES_MAX} ASCII characters, without \
                 spaces"
            ));
        }
        if self.acts_for == ActsFor::Own && self.issuers.is_empty() {
            return Err(format!("caller {name} acts for its own accounts, and needs issuers"));
        }
        let minute = Duration::from_secs(60);
        Ok(Caller {
            name,
            proofs,
            methods,
            issuers: self.issuers,
            acts_for: self.acts_for,
            has_private_changes: self.private_changes,
            limit: Limit::new("calls of this service caller", self.calls_per_minute, minute),
        })
    }
}

#[cfg(test)]
mod tests {
    use microblog_testkit::Files;

    use super::*;

    const SECRET: &str = "correct horse battery";

    fn hash(secret: &str) -> String {
        hex::encode(Sha256::digest(secret))
    }

    fn callers(content: &str) -> Result<Callers, String> {
        let files = Files::new();
        Callers::open(files.write("callers.json", content)).map_err(|error| error.to_string())
    }

    fn entry(rest: &str) -> String {
        let secret = hash(SECRET);
        format!(r#"{{"name": "search", "secrets_sha256": ["{secret}"], {rest}}}"#)
    }

    fn file(entries: &[String]) -> String {
        format!(r#"{{"callers": [{}]}}"#, entries.join(", "))
    }

    fn reason(result: Result<(), Status>) -> Option<ErrorReason> {
        result.err().map(|status| status::reason_of(&status).unwrap())
    }

    #[test]
    fn a_caller_has_its_secrets_only() {
        let two = entry(r#""methods": []"#).replace("[\"", &format!("[\"{}\", \"", hash("new")));
        let callers = callers(&file(&[two])).unwrap();
        for (name, secret, is_valid) in [
            ("search", SECRET, true),
            ("search", "new", true),
            ("search", "correct", false),
            ("search", "", false),
            ("other", SECRET, false),
            ("search", &hash(SECRET), false),
        ] {
            assert_eq!(callers.authenticate(name, secret).is_some(), is_valid, "{name}:{secret}");
        }
    }

    #[test]
    fn a_caller_has_its_certificates() {
        let both = entry(r#""methods": ["ViewUsers"], "certificate_names": ["search.test"]"#);
        let files = Files::new();
        let callers = Callers::open(files.write("callers.json", file(&[both]))).unwrap();
        let of = |names: &[&str]| {
            callers.of_certificate(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["other.test", "search.test"]).unwrap().name(), "search");
        assert!(of(&["other.test"]).is_none() && of(&[]).is_none());
        let caller = of(&["search.test"]).unwrap();
        let viewer = UserId::new(7).unwrap();
        let current = callers.current(&caller, "ViewUsers", Some(viewer)).map(drop);
        assert_eq!(reason(current), Some(ErrorReason::CallerNotAllowed));
    }

    #[test]
    fn a_caller_may_call_its_methods_and_act_as_listed() {
        let viewer = UserId::new(7);
        let not_allowed = Some(ErrorReason::CallerNotAllowed);
        for (acts_for, acting) in [("nobody", not_allowed), ("anybody", None)] {
            let rest = format!(r#""methods": ["ViewUsers"], "acts_for": "{acts_for}""#);
            let callers = callers(&file(&[entry(&rest)])).unwrap();
            let caller = callers.authenticate("search", SECRET).unwrap();
            assert_eq!(reason(caller.authorize("ViewUsers", None)), None);
            assert_eq!(reason(caller.authorize("ViewUsers", viewer)), acting);
            assert_eq!(reason(caller.authorize("Publish", None)), not_allowed);
            let current = callers.current(&caller, "ViewUsers", viewer);
            assert_eq!(reason(current.map(drop)), acting);
        }
    }

    #[test]
    fn a_caller_is_limited_and_others_are_not() {
        let limited = entry(r#""methods": ["ViewUsers"], "calls_per_minute": 2"#);
        let other = limited.replace("search", "other");
        let callers = callers(&file(&[limited, other])).unwrap();
        let [search, other] = ["search", "other"].map(|name| callers.authenticate(name, SECRET));
        let call = |caller: &Option<AuthenticatedCaller>| {
            reason(caller.as_ref().unwrap().authorize("ViewUsers", None))
        };
        assert_eq!([call(&search), call(&search)], [None, None]);
        assert_eq!(call(&search), Some(ErrorReason::RateLimited));
        assert_eq!(call(&other), None);
    }

    #[test]
    fn an_invalid_file_is_named_with_its_problem_and_without_secrets() {
        let valid = entry(r#""methods": []"#);
        let hash = hash(SECRET);
        for (content, problem) in [
            (String::new(), "EOF"),
            ("{}".into(), "missing field `callers`"),
            (file(&[entry(r#""methods": [], "issuers": "sso""#)]), "a value of the wrong type"),
            (
                file(&[entry(r#""methods": [], "issuers": [""]"#)]),
                "caller search: issuers must be 1 to 200",
            ),
            (
                file(&[entry(r#""methods": [], "acts_for": "own""#)]),
                "caller search acts for its own accounts, and needs issuers",
            ),
            (file(&[entry(r#""methods": [], "rights": 1"#)]), "unknown field `rights`"),
            (file(&[entry(r#""methods": [], "acts_for": "all""#)]), "unknown variant `all`"),
            (
                file(&[entry(r#""methods": ["Publsh"]"#)]),
                "search: the gateway has no method Publsh",
            ),
            (file(&[valid.clone(), valid.clone()]), "two callers have the name search"),
            (
                file(&[r#"{"name": "search", "methods": []}"#.to_owned()]),
                "caller search needs secrets_sha256 or certificate_names",
            ),
            (
                file(&["a", "b"].map(|name| {
                    format!(r#"{{"name": "{name}", "methods": [], "certificate_names": ["c"]}}"#)
                })),
                "two callers have the certificate name c",
            ),
            (file(&[valid.replace("search", "a:b")]), "a caller's name must be"),
            (file(&[valid.replace("search", "")]), "a caller's name must be"),
            (file(&[valid.replace(&hash, SECRET)]), "search: secrets_sha256 must have"),
            (
                file(&[valid.replace(&format!("[\"{hash}\"]"), &format!("\"{SECRET}\""))]),
                "a value of the wrong type at line 1",
            ),
        ] {
            let error = callers(&content).err().unwrap();
            assert!(error.contains(problem), "{content}: {error}");
            assert!(!error.contains(SECRET) && !error.contains(&hash), "{error}");
        }
    }

    #[test]
    fn reads_are_known() {
        assert_eq!(["ViewHome", "ViewPosts"].map(is_read), [Some(true); 2]);
        assert_eq!(["Publish", "Login", "Invented"].map(is_read), [Some(false), Some(false), None]);
    }
}
