//! Bulk import of accounts by name: many registrations at once.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_domain::UserId;
use microblog_storage::WriteError;

use crate::{
    accounts::{Accounts, complete},
    email::Email,
    error::Error,
    identifier::IdentifierKind,
    name::Name,
    password::{Hash, Password},
    steps::{Call, Draft, Outcome},
};

/// The most registrations of an import that wait at a time: two groups.
const AT_ONCE: usize = 256;

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImportResult {
    /// The account of each name; `None` if another account has the address, or if the name is
    /// reserved after a deletion.
    pub(crate) ids: Vec<Option<UserId>>,
    /// The number of accounts created.
    pub(crate) created: usize,
}

/// A name to import, with its address.
#[derive(Clone, Debug)]
pub(crate) struct ImportEntry {
    /// The name.
    pub(crate) name: Name,
    /// The address.
    pub(crate) email: Email,
}

impl Accounts {
    /// Creates an account for each name that has none. Without a password, no log-in is possible.
    /// Idempotent, and safe with concurrent registrations of the same names. After an error, accounts that
    /// were created before stay.
    pub(crate) async fn import(
        &self,
        entries: Vec<ImportEntry>,
        password: Option<Password>,
    ) -> Result<ImportResult, Error> {
        let password = match password {
            Some(password) => self.hasher.permit().await?.hash(password).await?,
            None => Hash::none(),
        };
        let request = uuid::Uuid::new_v4().to_string();
        let writer = self.bulk_writer.clone();
        let register = move |ImportEntry { name, email }| {
            let (password, request) = (password.clone(), request.clone());
            let display_name = String::new();
            let draft = Draft { name, address: email.into(), password, display_name, request };
            let writer = writer.clone();
            async move { writer.write(Call::Register(Box::new(draft))).await }
        };
        complete(async move {
            let writes = stream::iter(entries.into_iter().map(register));
            let outcomes: Result<Vec<_>, WriteError> = writes.buffered(AT_ONCE).try_collect().await;
            let mut imported = ImportResult { ids: Vec::new(), created: 0 };
            for outcome in outcomes? {
                imported.ids.push(match outcome {
                    Outcome::Account(user) => {
                        imported.created += 1;
                        Some(user.id)
                    }
                    Outcome::Taken(IdentifierKind::Name, owner) => owner,
                    _ => None,
                });
            }
            Ok(imported)
        })
        .await
    }
}
