//! An exhaustive search of the cache protocol of the storage crate.
//!
//! The model has the database with its feed, two servers of the cache, writers, loaders, verifiers,
//! and what may happen to them: one failover of each store, one renewal of the history, crashes, lost
//! answers, late commands, evictions, FLUSHALL, deletion of the feed. Readers are not processes: the
//! invariants say for each state what a reader would get. The search looks at each state that a
//! scenario can reach. With all rules, no state violates an invariant. Without one rule, some state
//! does; the test shows the shortest way there with `--nocapture`.
//!
//! Assumptions: a database that was replaced answers with errors; a server of the cache executes a
//! function in one step, and its replica has an earlier state of it as a whole; the old primary
//! stays reachable after a failover of the cache, and each process may use either server in each
//! step, but the verifier in a round; whoever finds the database away is right, and no primary of the
//! cache is cut off then, and a writer that could not apply its change unlinks the entries before the
//! database goes away; FLUSHALL deletes entries and mark together; the feed keeps a row for longer
//! than a replica lags that is promoted; a history ends once. The cache has one primary in
//! each round of a verifier, so each round that writes a mark marks all primaries.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod cache;
mod database;
mod invariants;
mod loader;
mod rules;
mod search;
mod system;
mod verifier;
mod writer;

use std::time::Instant;

use rules::{Rule, Rules};
use search::{Report, search};
use system::{Call, Scenario, System};

/// More than any scenario has.
const STATES_MAX: usize = 1_000_000;

/// Operations 0 and 1 on the first item, 2 and 3 on the second one or on both.
const fn call(items: u8, operation: u8) -> Call {
    Call { items, operation }
}

const ONE: &[Call] = &[call(0b01, 0)];
const TWO: &[Call] = &[call(0b01, 0), call(0b01, 1)];
const REPEATED: &[Call] = &[call(0b01, 0), call(0b01, 0)];
const OTHER: &[Call] = &[call(0b01, 2)];
const OTHER_ITEM: &[Call] = &[call(0b10, 2)];
const BOTH_ITEMS: &[Call] = &[call(0b11, 3)];

const QUIET: Scenario = Scenario {
    items: 1,
    writers: [ONE, &[]],
    creates: false,
    loaders: 1,
    verifiers: 0,
    crashes: false,
    lost_answers: false,
    late: false,
    evictions: false,
    flushes: false,
    cache_failover: false,
    old_primary: false,
    database_failover: None,
    renewal: false,
    expiry: false,
    feed_deleted: false,
    away: false,
    restarts: false,
};
const CREATES: Scenario = Scenario { creates: true, evictions: true, ..QUIET };
const VERIFIED: Scenario = Scenario { verifiers: 1, ..QUIET };
const TWO_WRITERS: Scenario = Scenario { writers: [TWO, OTHER], ..QUIET };
const LOST_ANSWERS: Scenario = Scenario { lost_answers: true, ..QUIET };
const REPETITION: Scenario = Scenario {
    writers: [REPEATED, ONE],
    crashes: true,
    lost_answers: true,
    late: true,
    evictions: true,
    ..VERIFIED
};
const TWO_ITEMS: Scenario = Scenario { items: 2, writers: [ONE, OTHER_ITEM], ..VERIFIED };
const CACHE_FAILOVER: Scenario = Scenario { cache_failover: true, old_primary: true, ..VERIFIED };
const CACHE_FAILOVER_EXPIRY: Scenario = Scenario { expiry: true, ..CACHE_FAILOVER };
const DATABASE_FAILOVER: Scenario = Scenario { database_failover: Some(1), ..VERIFIED };
const TWO_VERIFIERS: Scenario = Scenario { verifiers: 2, ..DATABASE_FAILOVER };
const FLUSHED_VERIFIERS: Scenario =
    Scenario { flushes: true, database_failover: Some(0), ..TWO_VERIFIERS };
const LOST_CHANGE: Scenario = Scenario { writers: [ONE, OTHER], ..DATABASE_FAILOVER };
const RENEWAL: Scenario = Scenario { renewal: true, ..VERIFIED };
const DATABASE_FAILOVER_EXPIRY: Scenario = Scenario { expiry: true, ..DATABASE_FAILOVER };
const FLUSHED: Scenario = Scenario { flushes: true, restarts: true, crashes: true, ..VERIFIED };
const FLUSHED_DELETED: Scenario = Scenario { feed_deleted: true, ..FLUSHED };
const FLUSHED_FAILOVER: Scenario = Scenario { flushes: true, restarts: true, ..CACHE_FAILOVER };
const AWAY: Scenario = Scenario { away: true, expiry: true, ..VERIFIED };
const AWAY_FAILOVER: Scenario = Scenario { database_failover: Some(1), ..AWAY };
const RENEWED: Scenario = Scenario { feed_deleted: true, ..CACHE_FAILOVER };

/// Searches a scenario and prints what it found.
fn searched(name: &str, scenario: Scenario, rules: Rules) -> Report<System> {
    let begun = Instant::now();
    let report = search(&System { scenario, rules }, STATES_MAX);
    println!("{name}: {} states in {:.1?}", report.states, begun.elapsed());
    if let Some((violation, steps)) = &report.counterexample {
        println!("{violation} after {} steps:", steps.len());
        for step in steps {
            println!("    {step}");
        }
    }
    report
}

/// Asserts that no state violates an invariant, and that the processes can finish.
fn assert_holds(name: &str, scenario: Scenario, rules: Rules) {
    let report = searched(name, scenario, rules);
    assert!(report.counterexample.is_none(), "{name}: an invariant is violated");
    assert!(report.complete, "{name}: more than {STATES_MAX} states");
    assert!(report.goals > 0, "{name}: the processes never finish");
}

/// Asserts that a scenario violates the invariant without the rule.
fn assert_needed(rule: Rule, scenario: Scenario, invariant: &str) {
    let name = format!("without {rule:?}");
    let report = searched(&name, scenario, Rules::ALL.without(rule));
    let (violation, _) = report.counterexample.expect("nothing fails");
    assert!(violation.starts_with(invariant), "{name}: {violation}");
}

/// Makes a test for each scenario with all rules.
macro_rules! scenarios {
    ($($name:ident: $scenario:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_holds(stringify!($name), $scenario, Rules::ALL);
        }
    )*};
}

/// Makes a test for each rule, with the scenario and the invariant that fails there without it.
macro_rules! needed_rules {
    ($($name:ident: $rule:ident, $scenario:expr, $invariant:literal;)*) => {$(
        #[test]
        fn $name() {
            assert_needed(Rule::$rule, $scenario, $invariant);
        }
    )*};
}

scenarios! {
    writers_and_a_loader: Scenario {
        verifiers: 1, crashes: true, lost_answers: true, evictions: true, ..TWO_WRITERS
    };
    writers_and_two_loaders: Scenario {
        writers: [ONE, OTHER], loaders: 2, crashes: true, lost_answers: true, evictions: true, ..VERIFIED
    };
    late_commands_and_commits: Scenario {
        writers: [ONE, OTHER], crashes: true, lost_answers: true, late: true, evictions: true, ..VERIFIED
    };
    repeated_calls: REPETITION;
    writers_that_install: Scenario {
        writers: [ONE, OTHER], creates: true, crashes: true, lost_answers: true, evictions: true, ..VERIFIED
    };
    writers_that_install_and_late_commands: Scenario {
        creates: true, crashes: true, lost_answers: true, late: true, evictions: true, ..VERIFIED
    };
    installs_beside_a_failover_of_the_cache: Scenario { creates: true, ..CACHE_FAILOVER };
    installs_beside_a_failover_of_the_database: Scenario {
        writers: [ONE, OTHER], creates: true, ..DATABASE_FAILOVER
    };
    installs_beside_a_renewal: Scenario { creates: true, crashes: true, ..RENEWAL };
    a_transaction_of_two_items: Scenario { writers: [BOTH_ITEMS, OTHER_ITEM], crashes: true, ..TWO_ITEMS };
    two_verifiers: Scenario { writers: [ONE, OTHER], verifiers: 2, ..QUIET };
    a_feed_of_two_items: TWO_ITEMS;
    failover_of_the_cache: Scenario {
        crashes: true, lost_answers: true, late: true, evictions: true, ..CACHE_FAILOVER
    };
    failover_of_the_cache_with_expiry: CACHE_FAILOVER_EXPIRY;
    failover_of_the_cache_with_two_verifiers: Scenario { verifiers: 2, ..CACHE_FAILOVER };
    failover_of_the_database: Scenario {
        writers: [ONE, OTHER], database_failover: Some(2), crashes: true, ..VERIFIED
    };
    failover_of_the_database_with_two_verifiers: TWO_VERIFIERS;
    renewal: Scenario { writers: [ONE, OTHER], ..RENEWAL };
    renewal_with_lost_answers: Scenario { crashes: true, lost_answers: true, late: true, expiry: true, ..RENEWAL };
    failover_of_both: Scenario { database_failover: Some(1), old_primary: false, ..CACHE_FAILOVER };
    flushed: Scenario { writers: [ONE, OTHER], ..FLUSHED_DELETED };
    flushed_failover: FLUSHED_FAILOVER;
    failover_of_the_database_with_expiry: DATABASE_FAILOVER_EXPIRY;
    renewed: RENEWED;
    away: Scenario { writers: [ONE, OTHER], crashes: true, lost_answers: true, ..AWAY };
    away_beside_a_failover_of_the_database: AWAY_FAILOVER;
    away_beside_a_failover_of_the_cache: Scenario { cache_failover: true, ..AWAY };
}

needed_rules! {
    without_lease_before_read: LeaseBeforeRead, QUIET, "I1";
    without_own_lease_only: OwnLeaseOnly, QUIET, "I1";
    without_install_in_own_history: InstallInOwnHistory, DATABASE_FAILOVER, "I2";
    without_load_from_primary: LoadFromPrimary, QUIET, "I1";
    without_lease_collects: LeaseCollects, QUIET, "I1";
    without_revision_ends_lease: RevisionEndsLease, VERIFIED, "I3";
    without_overflow_ends_lease: OverflowEndsLease, TWO_WRITERS, "I1";
    without_install_replays: InstallReplays, QUIET, "I1";
    without_gap_ends_install: GapEndsInstall, TWO_WRITERS, "I1";
    without_operation_on_before_only: OperationOnBeforeOnly, TWO_WRITERS, "I2";
    without_newer_left_alone: NewerLeftAlone, QUIET, "I2";
    without_apply_after_commit: ApplyAfterCommit, QUIET, "I2";
    without_lease_before_commit: LeaseBeforeCommit, Scenario { writers: [ONE, OTHER], ..CREATES }, "I1";
    without_ended_lease_applies: EndedLeaseApplies, CREATES, "I1";
    without_unlink_unconfirmed: UnlinkUnconfirmed, LOST_ANSWERS, "I1";
    without_unlink_deletes_lease: UnlinkDeletesLease, LOST_ANSWERS, "I1";
    without_unchanged_applies: UnchangedApplies, REPETITION, "I1";
    without_history_in_key: HistoryInKey, DATABASE_FAILOVER, "I4";
    without_feed_in_order: FeedInOrder, TWO_ITEMS, "I3";
    without_begin_from_mark: BeginFromMark, CACHE_FAILOVER, "I3";
    without_other_history_from_start: OtherHistoryFromStart, FLUSHED_VERIFIERS, "I3";
    without_id_before_feed: IdBeforeFeed, CACHE_FAILOVER, "I3";
    without_verify_one_server: VerifyOneServer, CACHE_FAILOVER, "I3";
    without_mark_time_before_feed: MarkTimeBeforeFeed, CACHE_FAILOVER_EXPIRY, "I1";
    without_trust_own_id: TrustOwnId, CACHE_FAILOVER, "I1";
    without_end_in_history: EndInHistory, LOST_CHANGE, "I3";
    without_history_after_mark: HistoryAfterMark, RENEWED, "I1";
    without_trust_one_server: TrustOneServer, CACHE_FAILOVER, "I1";
    without_commit_in_own_history: CommitInOwnHistory, RENEWAL, "I2";
    without_renew_if_deleted: RenewIfDeleted, RENEWED, "I3";
    without_reach_after_rows: ReachAfterRows, RENEWED, "I3";
    without_delete_verified_only: DeleteVerifiedOnly, FLUSHED_DELETED, "I3";
    without_no_mark_from_last_round: NoMarkFromLastRound, FLUSHED, "I3";
    without_last_round_of_server: LastRoundOfServer, FLUSHED_FAILOVER, "I3";
    without_keep_while_away: KeepWhileAway, CACHE_FAILOVER_EXPIRY, "I1";
    without_acknowledge_in_marked: AcknowledgeInMarked, AWAY_FAILOVER, "I1";
    without_replace_read_mark: ReplaceReadMark, AWAY_FAILOVER, "I1";
    without_trust_expires: TrustExpires, CACHE_FAILOVER_EXPIRY, "I1";
}
