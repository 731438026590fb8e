//! The rules of the protocol. The search shows of each what breaks without it.

/// What the protocol prescribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A loader takes the lease before it reads the database.
    LeaseBeforeRead,
    /// A loader installs only while the lease is still its own.
    OwnLeaseOnly,
    /// A loader installs only what it read in the history of the key.
    InstallInOwnHistory,
    /// A loader reads the primary of the database.
    LoadFromPrimary,
    /// A lease collects the operations of writers.
    LeaseCollects,
    /// A change without an operation deletes a lease.
    RevisionEndsLease,
    /// An operation beyond what fits deletes a lease.
    OverflowEndsLease,
    /// An install replays what the lease collected.
    InstallReplays,
    /// An install with a missing operation installs nothing.
    GapEndsInstall,
    /// An operation changes an entry of the revision before only.
    OperationOnBeforeOnly,
    /// An entry that has the change already stays as it is.
    NewerLeftAlone,
    /// A writer applies after the commit.
    ApplyAfterCommit,
    /// A writer takes the lease on an item that it installs before it commits.
    LeaseBeforeCommit,
    /// A writer whose lease has ended applies its change.
    EndedLeaseApplies,
    /// A writer unlinks an item whose change was not confirmed.
    UnlinkUnconfirmed,
    /// An unlink deletes the lease, too.
    UnlinkDeletesLease,
    /// A writer applies the revision of an item that it leaves unchanged.
    UnchangedApplies,
    /// The key of an entry contains the history.
    HistoryInKey,
    /// Positions of the feed are given in the order of commits.
    FeedInOrder,
    /// A transaction commits only in the history that it read at its beginning, in which it applies.
    CommitInOwnHistory,
    /// A verifier begins from the mark of the server, not from its own position.
    BeginFromMark,
    /// A mark of another history counts as none.
    OtherHistoryFromStart,
    /// Without a mark, a verifier begins from where its last round ended, or else from the beginning
    /// of the feed, not from the end.
    NoMarkFromLastRound,
    /// Where the last round ended counts only for the server that it marked.
    LastRoundOfServer,
    /// A verifier reads the replication id before it reads the feed, and writes the mark for it.
    IdBeforeFeed,
    /// A verifier reads the history after the mark, not before.
    HistoryAfterMark,
    /// A round ends at a position that the verifier read in the history of the round, not earlier.
    EndInHistory,
    /// A verifier applies only on the server whose replication id it read: a reconnect ends the round.
    VerifyOneServer,
    /// A verifier renews the history if the feed no longer reaches back to where it begins.
    RenewIfDeleted,
    /// A verifier looks how far back the feed reaches after it has read the rows, not before.
    ReachAfterRows,
    /// The feed is deleted only up to where a round ended.
    DeleteVerifiedOnly,
    /// A mark has the time before the feed was read.
    MarkTimeBeforeFeed,
    /// A mark counts only on the server that has its replication id.
    TrustOwnId,
    /// A mark counts for a limited time.
    TrustExpires,
    /// The time of a mark is renewed without a round only while the database is away.
    KeepWhileAway,
    /// A writer removes the marks of other histories before it acknowledges.
    AcknowledgeInMarked,
    /// A verifier replaces only the mark that it has read.
    ReplaceReadMark,
    /// A mark counts only for entries that are read from the same server: a reconnect ends trust.
    TrustOneServer,
}

/// The rules that a search keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules(u64);

impl Rules {
    /// All rules.
    pub(crate) const ALL: Self = Self(u64::MAX);

    /// Returns the rules but `rule`.
    pub(crate) const fn without(self, rule: Rule) -> Self {
        Self(self.0 & !(1 << rule as u8))
    }

    /// Returns whether `rule` is kept.
    pub(crate) const fn has(self, rule: Rule) -> bool {
        self.0 >> rule as u8 & 1 == 1
    }
}
