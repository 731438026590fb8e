//! Addresses: what identifies an account besides its name. Pure. `Debug` does not show the address.

use std::fmt;

use microblog_domain::Invalid;

use crate::email::Email;

/// The maximum length of an issuer and of an id in bytes.
const PART_BYTES_MAX: usize = 200;

/// The second unique identifier of an account: its e-mail address, or, for an account that another
/// system identifies, its external id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// An e-mail address.
    Email(Email),
    /// An id in another system. Such an account has no password, hence no sessions.
    External(ExternalId),
}

/// An account's id in another system: the issuer, a space, and the id that the issuer uses. Case
/// matters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ExternalId(String);

impl Address {
    /// Returns the address from its stored text, which was valid when it was stored. E-mail addresses have
    /// no space.
    pub(crate) fn stored(text: String) -> Self {
        match text.contains(' ') {
            true => Self::External(ExternalId(text)),
            false => Self::Email(Email::stored(text)),
        }
    }

    /// Returns the text to store: the address as registered.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Email(email) => email.as_str(),
            Self::External(external) => &external.0,
        }
    }

    /// Returns the unique form.
    pub(crate) fn unique(&self) -> String {
        match self {
            Self::Email(email) => email.unique(),
            Self::External(external) => external.0.clone(),
        }
    }
}

impl From<Email> for Address {
    fn from(email: Email) -> Self {
        Self::Email(email)
    }
}

impl ExternalId {
    /// Parses an issuer and an id, with the names of their fields: 1 to 200 ASCII characters each,
    /// without spaces and control characters.
    pub(crate) fn parse(issuer: (&str, &str), id: (&str, &str)) -> Result<Self, Vec<Invalid>> {
        let invalids: Vec<_> = [issuer, id].into_iter().filter_map(invalid_part).collect();
        match invalids.is_empty() {
            true => Ok(Self(format!("{} {}", issuer.1, id.1))),
            false => Err(invalids),
        }
    }

    /// Parses those of an issuer's ids that can exist, with the name of the issuer's field.
    pub(crate) fn parse_possible(
        issuer: (&str, &str),
        ids: &[String],
    ) -> Result<impl Iterator<Item = Self>, Invalid> {
        match invalid_part(issuer) {
            Some(invalid) => Err(invalid),
            None => Ok(ids.iter().filter_map(move |id| Self::parse(issuer, ("", id)).ok())),
        }
    }

    /// Returns the issuer.
    pub(crate) fn issuer(&self) -> &str {
        self.0.split(' ').next().unwrap_or_default()
    }

    /// Returns the issuer's id.
    pub(crate) fn id(&self) -> &str {
        self.0.split_once(' ').map_or("", |(_, id)| id)
    }
}

/// Returns the error of a field that can be no part of an external id.
fn invalid_part((field, text): (&str, &str)) -> Option<Invalid> {
    let is_valid = (1..=PART_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    let problem = format!("must be 1 to {PART_BYTES_MAX} ASCII characters, without spaces");
    (!is_valid).then(|| Invalid::new(field, problem))
}

// Personal data must not appear in logs.
impl fmt::Debug for ExternalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExternalId(…)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(issuer: &str, id: &str) -> Result<ExternalId, Vec<String>> {
        ExternalId::parse(("issuer", issuer), ("id", id))
            .map_err(|invalids| invalids.into_iter().map(|invalid| invalid.field).collect())
    }

    #[test]
    fn case_matters_in_external_ids_only() {
        let [lower, upper] = ["ann", "Ann"].map(|id| Address::External(parse("sso", id).unwrap()));
        assert_ne!(lower.unique(), upper.unique());
        let [lower, upper] = ["ann@example.org", "Ann@example.org"]
            .map(|text| Address::stored(text.to_owned()).unique());
        assert_eq!(lower, upper);
    }

    #[test]
    fn invalid_parts_are_named() {
        let long = "a".repeat(201);
        for text in ["", " ", "a b", "a\n", "\0", "李", &long] {
            assert_eq!(parse(text, "ann").unwrap_err(), ["issuer"], "{text:?}");
            assert_eq!(parse("sso", text).unwrap_err(), ["id"], "{text:?}");
            assert_eq!(parse(text, text).unwrap_err(), ["issuer", "id"], "{text:?}");
        }
    }

    #[test]
    fn an_external_id_does_not_show_in_debug() {
        let address = Address::External(parse("sso", "ann").unwrap());
        assert!(!format!("{address:?}").contains("ann"));
    }

    proptest! {
        #[test]
        fn stored_addresses_are_read_as_they_were(issuer in "[!-~]{1,200}", id in "[!-~]{1,200}") {
            let external = parse(&issuer, &id).unwrap();
            prop_assert_eq!((external.issuer(), external.id()), (&*issuer, &*id));
            let address = Address::External(external);
            prop_assert_eq!(Address::stored(address.as_str().to_owned()), address);
        }

        #[test]
        fn any_text_is_read_as_it_was(text in ".*") {
            let address = Address::stored(text.clone());
            prop_assert_eq!(address.as_str(), &text);
            let _ = address.unique();
        }
    }
}
