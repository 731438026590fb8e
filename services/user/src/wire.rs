//! Conversion between wire types and domain types, with validation of requests.
//!
//! Errors name all invalid fields of a request; of an import, which has thousands of names, only
//! the first.

use std::collections::HashSet;

use microblog_domain::{BATCH_MAX, Fields as _, Invalid, RequestId, UserId};
use microblog_proto::user as pb;

use crate::{
    address::{Address, ExternalId},
    email::Email,
    error::Error,
    external_accounts::EnsureRequest,
    import::{ImportEntry, ImportResult},
    login::Login,
    name::Name,
    password::Password,
    profile::{ProfileField, User},
    registration::RegistrationRequest,
    sessions::Session,
    steps::AccountRow,
    verify::Report,
};

/// The most names per import.
const IMPORT_MAX: usize = 5000;

/// Decodes a registration.
pub(crate) fn register(request: pb::RegisterRequest) -> Result<RegistrationRequest, Error> {
    let fields = (
        RequestId::parse("request_id", &request.request_id),
        Name::parse("name", &request.name),
        Email::parse("email", &request.email),
        Password::parse_new("password", &request.password),
        ProfileField::DisplayName.parse("display_name", &request.display_name),
    );
    let (id, name, email, password, display_name) = fields.all().map_err(Error::Invalid)?;
    Ok(RegistrationRequest { request: id.to_string(), name, email, password, display_name })
}

/// Decodes an import: unique names with their addresses, and the password, if any.
pub(crate) fn import_users(
    request: &pb::ImportUsersRequest,
) -> Result<(Vec<ImportEntry>, Option<Password>), Error> {
    let names = &request.names;
    at_most("names", IMPORT_MAX, names)?;
    let mut seen = HashSet::with_capacity(names.len());
    let mut entries = Vec::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        let field = format!("names[{i}]");
        let name = Name::parse(&field, name)?;
        if !seen.insert(name.unique()) {
            return Err(Invalid::new(field, "must be unique").into());
        }
        let email = Email::parse("email_domain", &format!("{name}@{}", request.email_domain));
        let email = email.map_err(|invalid| {
            Invalid::new(invalid.field, "must be a domain for e-mail addresses")
        })?;
        entries.push(ImportEntry { name, email });
    }
    let password = match request.password.as_str() {
        "" => None,
        text => Some(Password::parse_new("password", text)?),
    };
    Ok((entries, password))
}

/// Decodes names to resolve. Invalid ones are skipped: no account has them.
pub(crate) fn possible_names(names: &[String]) -> Result<Vec<Name>, Error> {
    at_most("names", BATCH_MAX, names)?;
    Ok(names.iter().filter_map(|name| Name::parse("names", name).ok()).collect())
}

/// Decodes a log-in.
pub(crate) fn login(request: &pb::LoginRequest) -> Result<(Login, Password), Error> {
    let login = Login::parse("login", &request.login);
    let password = Password::parse_given("password", &request.password);
    (login, password).all().map_err(Error::Invalid)
}

/// Decodes the account, its current password and the new one.
pub(crate) fn change_password(
    request: &pb::ChangePasswordRequest,
) -> Result<(UserId, Password, Password), Error> {
    let id = UserId::parse("user_id", request.user_id);
    let current = Password::parse_given("current_password", &request.current_password);
    let new = Password::parse_new("new_password", &request.new_password);
    (id, current, new).all().map_err(Error::Invalid)
}

/// Decodes the account to delete and its password, if it has one.
pub(crate) fn delete_user(
    request: &pb::DeleteUserRequest,
) -> Result<(UserId, Option<Password>), Error> {
    let id = UserId::parse("user_id", request.user_id);
    let password = match request.password.as_str() {
        "" => Ok(None),
        text => Password::parse_given("password", text).map(Some),
    };
    (id, password).all().map_err(Error::Invalid)
}

/// Decodes a request to find or make an account.
pub(crate) fn ensure_user(request: &pb::EnsureUserRequest) -> Result<EnsureRequest, Error> {
    let external =
        ExternalId::parse(("issuer", &request.issuer), ("external_id", &request.external_id));
    let name = Name::parse("name", &request.name);
    let display_name = ProfileField::DisplayName.parse("display_name", &request.display_name);
    match (external, name, display_name) {
        (Ok(external), Ok(name), Ok(display_name)) => {
            Ok(EnsureRequest { external, name, display_name })
        }
        (external, name, display_name) => {
            let mut invalids = external.err().unwrap_or_default();
            invalids.extend(name.err());
            invalids.extend(display_name.err());
            Err(Error::Invalid(invalids))
        }
    }
}

/// Decodes the external ids of an issuer, without repetitions and those that cannot exist.
pub(crate) fn external_ids(
    request: &pb::BatchResolveExternalIdsRequest,
) -> Result<Vec<ExternalId>, Error> {
    let pb::BatchResolveExternalIdsRequest { issuer, external_ids } = request;
    at_most("external_ids", BATCH_MAX, external_ids)?;
    let mut seen = HashSet::with_capacity(external_ids.len());
    let ids = ExternalId::parse_possible(("issuer", issuer), external_ids)?;
    Ok(ids.filter(|id| seen.insert(id.clone())).collect())
}

/// Encodes the account of an external id.
pub(crate) fn external_user((external, id): (ExternalId, UserId)) -> pb::ExternalUser {
    pb::ExternalUser { external_id: external.id().to_owned(), user_id: id.get() }
}

/// Decodes the fields to change; absent ones stay as they are.
pub(crate) fn update_profile(
    request: pb::UpdateProfileRequest,
) -> Result<(UserId, Vec<(ProfileField, String)>), Error> {
    let changes = request.changes.unwrap_or_default();
    let pb::ProfileChanges { display_name, bio, avatar_url, location } = changes;
    let parse = |name, field: ProfileField, text: Option<String>| {
        text.map(|text| Ok((field, field.parse(name, &text)?))).transpose()
    };
    let fields = (
        UserId::parse("user_id", request.user_id),
        parse("changes.display_name", ProfileField::DisplayName, display_name),
        parse("changes.bio", ProfileField::Bio, bio),
        parse("changes.avatar_url", ProfileField::AvatarUrl, avatar_url),
        parse("changes.location", ProfileField::Location, location),
    );
    let (id, display_name, bio, avatar_url, location) = fields.all().map_err(Error::Invalid)?;
    Ok((id, [display_name, bio, avatar_url, location].into_iter().flatten().collect()))
}

/// Decodes an account id.
pub(crate) fn user_id(value: u64) -> Result<UserId, Error> {
    Ok(UserId::parse("user_id", value)?)
}

/// Encodes the public part of an account.
pub(crate) fn user(user: User) -> pb::User {
    pb::User {
        id: user.id.get(),
        created_at: Some(user.id.created_at().into()),
        name: user.name,
        display_name: user.display_name,
        bio: user.bio,
        avatar_url: user.avatar_url,
        location: user.location,
    }
}

/// Encodes an account with its private part.
pub(crate) fn account(account: AccountRow) -> pb::Account {
    let (email, external) = match account.address {
        Address::External(external) => {
            let (issuer, external_id) = (external.issuer().to_owned(), external.id().to_owned());
            (String::new(), Some(pb::ExternalId { issuer, external_id }))
        }
        Address::Email(email) => (email.as_str().to_owned(), None),
    };
    pb::Account { user: Some(user(account.user)), email, external }
}

/// Encodes the account of a name.
pub(crate) fn named_user((name, id): (Name, UserId)) -> pb::NamedUser {
    pb::NamedUser { name: name.as_str().to_owned(), user_id: id.get() }
}

/// Encodes the result of an import.
pub(crate) fn imported(imported: ImportResult) -> pb::ImportUsersResponse {
    let number = |id: Option<UserId>| id.map_or(0, UserId::get);
    pb::ImportUsersResponse {
        user_ids: imported.ids.into_iter().map(number).collect(),
        created: imported.created as u32,
    }
}

/// Encodes a new session.
pub(crate) fn session(session: Session) -> pb::LoginResponse {
    pb::LoginResponse {
        token: session.token.reveal(),
        expires_at: Some(session.expires_at.into()),
        user: Some(user(session.user)),
    }
}

/// Encodes the result of a check.
pub(crate) fn report(report: Report) -> pb::VerifyResponse {
    pb::VerifyResponse {
        users_checked: report.checked,
        violations: report.violations.into_vec(),
        pending: report.pending.into_vec(),
    }
}

fn at_most(field: &str, max: usize, items: &[String]) -> Result<(), Invalid> {
    if items.len() > max {
        let problem = format!("must have at most {max} items, has {}", items.len());
        return Err(Invalid::new(field, problem));
    }
    Ok(())
}
