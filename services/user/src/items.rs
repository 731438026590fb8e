//! What is cached of accounts: the public part, the sessions, and who has a name. Each is one entry with a
//! front and no records.

use futures::future::BoxFuture;
use microblog_domain::UserId;
use microblog_keyspace::Library;
use microblog_record::{
    Database, Error,
    sql::{number, read, statement},
};
use microblog_storage::{
    Contents, EntryLimits, Item, Loaded, library,
    transaction::{history_columns, row_history},
};
use prost::Message as _;
use sqlx::{Row as _, any::AnyRow};

use crate::{
    profile::User,
    steps::IdentifierRow,
    token::{Fingerprint, FingerprintStart},
};

/// A kind of item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AccountItem {
    /// The public part of an account, by its id.
    Profile,
    /// The sessions of an account, by its id.
    Sessions,
    /// Who has a name, by the digest of the name.
    Name,
}

impl AccountItem {
    const ALL: [Self; 3] = [Self::Profile, Self::Sessions, Self::Name];

    /// Returns the statement that loads an item by its id, the parameter. It has one row: the revision,
    /// the content, and the history of the database.
    pub(crate) fn load_text(self, is_embedded: bool) -> String {
        let history = history_columns(is_embedded);
        let (columns, table, key) = match self {
            Self::Profile => {
                let texts = ["name", "display_name", "bio", "avatar_url", "location"];
                let texts = texts.map(|column| format!("COALESCE({column}, '')")).join(", ");
                (format!("COALESCE(revision, 0), {texts}"), "accounts", "id")
            }
            Self::Sessions => {
                let session = "concat_ws(' ', token, used, expires)";
                let sessions =
                    format!("(SELECT string_agg({session}, ' ') FROM sessions WHERE account = $1)");
                let columns = format!("COALESCE(sessions_revision, 0), COALESCE({sessions}, '')");
                (columns, "accounts", "id")
            }
            Self::Name => {
                let columns = "COALESCE(revision, 0), COALESCE(value, ''), COALESCE(account, 0), \
                    COALESCE(held_until, 0)";
                (columns.to_owned(), "identifiers", "digest")
            }
        };
        format!(
            "SELECT {columns}, {history} FROM (SELECT 1 AS one) AS one LEFT JOIN {table} ON {key} = $1"
        )
    }

    /// Returns the number of columns before those of the history.
    const fn columns(self) -> usize {
        match self {
            Self::Profile => 6,
            Self::Sessions => 2,
            Self::Name => 4,
        }
    }

    fn front(self, row: &AnyRow, revision: u64) -> Result<Vec<u8>, sqlx::Error> {
        Ok(match self {
            _ if revision == 0 => Vec::new(),
            Self::Profile => Card {
                name: row.try_get(1)?,
                display_name: row.try_get(2)?,
                bio: row.try_get(3)?,
                avatar_url: row.try_get(4)?,
                location: row.try_get(5)?,
            }
            .encode_to_vec(),
            Self::Sessions => {
                let sessions: String = row.try_get(1)?;
                let sessions = Sessions::read(&sessions);
                sessions.ok_or_else(|| sqlx::Error::Decode("malformed session".into()))?.write()
            }
            Self::Name => NameOwner {
                text: row.try_get(1)?,
                account: read(row, 2)?,
                held_until_ms: read(row, 3)?,
            }
            .encode_to_vec(),
        })
    }
}

impl Item for AccountItem {
    const PREFIX: &'static str = "usr";
    const LIBRARY: Library = library("user");
    const SMALL: &'static [Self] = &Self::ALL;

    fn kind(self) -> &'static str {
        match self {
            Self::Profile => "profile",
            Self::Sessions => "sessions",
            Self::Name => "name",
        }
    }

    fn limits(self) -> EntryLimits {
        EntryLimits::without_sets(0)
    }

    fn load(self, database: &Database, id: u64) -> BoxFuture<'_, Result<Loaded, Error>> {
        let work = async move {
            let query = statement(self.load_text(database.is_embedded())).bind(number(id));
            let row = query.fetch_one(database.readers()).await?;
            let history = row_history(database, &row, self.columns())?;
            let revision = read(&row, 0)?;
            let contents =
                Contents { front: self.front(&row, revision)?.into(), records: Vec::new() };
            Ok(Loaded { history, revision, contents })
        };
        database.read("SELECT accounts", work)
    }
}

/// The public part of an account, as an entry has it.
#[derive(Clone, PartialEq, prost::Message)]
struct Card {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    display_name: String,
    #[prost(string, tag = "3")]
    bio: String,
    #[prost(string, tag = "4")]
    avatar_url: String,
    #[prost(string, tag = "5")]
    location: String,
}

/// Who has a name, as an entry has it.
#[derive(Clone, PartialEq, prost::Message)]
struct NameOwner {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(uint64, tag = "2")]
    account: u64,
    #[prost(uint64, tag = "3")]
    held_until_ms: u64,
}

/// Reads the public part of an account; `None` if there is no account.
pub(crate) fn read_profile(id: UserId, front: &[u8]) -> Option<User> {
    let Card { name, display_name, bio, avatar_url, location } = Card::decode(front).ok()?;
    (!name.is_empty()).then_some(User { id, name, display_name, bio, avatar_url, location })
}

/// Reads the row of a name; one that is free if there is none. It has no revision.
pub(crate) fn read_name(front: &[u8]) -> IdentifierRow {
    let NameOwner { text, account, held_until_ms } = NameOwner::decode(front).unwrap_or_default();
    IdentifierRow { text, account: UserId::new(account), held_until_ms, revision: 0 }
}

/// The sessions of an account, as an entry has them: for each the start of the fingerprint, the time of
/// its last use and of its end, in Unix ms (8 bytes each, big endian).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sessions(Vec<(FingerprintStart, u64, u64)>);

impl Sessions {
    const BYTES: usize = size_of::<FingerprintStart>() + 16;

    /// Reads the column of a row: for each session its token, use and end.
    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let session = |words: &[&str]| {
            let &[token, used, expires] = words else { return None };
            let token = Fingerprint::stored(token)?.start();
            Some((token, used.parse().ok()?, expires.parse().ok()?))
        };
        words.chunks(3).map(session).collect::<Option<_>>().map(Self)
    }

    fn write(&self) -> Vec<u8> {
        let bytes = |(token, used_ms, expires_ms): &(FingerprintStart, u64, u64)| {
            [&token[..], &used_ms.to_be_bytes(), &expires_ms.to_be_bytes()].concat()
        };
        self.0.iter().flat_map(bytes).collect()
    }

    /// Reads the sessions of an entry, in the order of their tokens.
    pub(crate) fn of_entry(front: &[u8]) -> Self {
        let mut sessions: Vec<_> = front.chunks_exact(Self::BYTES).filter_map(session).collect();
        sessions.sort_unstable();
        Self(sessions)
    }

    /// Returns those that have not expired.
    pub(crate) fn alive(mut self, now_ms: u64) -> Self {
        self.0.retain(|(_, _, expires_ms)| *expires_ms > now_ms);
        self
    }

    /// Returns the last use and the end of a session in an entry; `None` if there is no such session.
    pub(crate) fn find(front: &[u8], token: Fingerprint) -> Option<(u64, u64)> {
        let start = token.start();
        let mut entries = front.chunks_exact(Self::BYTES);
        let found = session(entries.find(|entry| entry.starts_with(&start))?);
        found.map(|(_, used_ms, expires_ms)| (used_ms, expires_ms))
    }
}

// Decodes a session of an entry.
fn session(bytes: &[u8]) -> Option<(FingerprintStart, u64, u64)> {
    let (start, numbers) = bytes.split_first_chunk()?;
    let (&[used, expires], []) = numbers.as_chunks() else { return None };
    Some((*start, u64::from_be_bytes(used), u64::from_be_bytes(expires)))
}
