//! Decodes and validates requests. Reports all invalid fields at once; of an import, which has
//! thousands, only the first.

use std::collections::HashSet;

use microblog_domain::{BATCH_MAX, FieldErrors, Invalid, RequestId, UserId};
use microblog_proto::user as pb;

use crate::{
    Email, Error, Login, Name, Password, ProfileField, import::ImportEntry,
    registration::RegistrationRequest,
};

/// The most names per import.
const IMPORT_MAX: usize = 5000;

pub(super) fn register(request: pb::RegisterRequest) -> Result<RegistrationRequest, Error> {
    let mut fields = FieldErrors::default();
    let id = fields.read(RequestId::parse("request_id", &request.request_id));
    let name = fields.read(Name::parse("name", &request.name));
    let email = fields.read(Email::parse("email", &request.email));
    let password = fields.read(Password::parse_new("password", &request.password));
    let display_name = fields.read(ProfileField::DisplayName.parse(&request.display_name));
    let request = id.zip(name).zip(email).zip(password).zip(display_name).map(
        |((((request, name), email), password), display_name)| RegistrationRequest {
            request: request.to_string(),
            name,
            email,
            password,
            display_name,
        },
    );
    fields.finish(request).map_err(Error::Invalid)
}

pub(super) fn import_users(
    request: &pb::ImportUsersRequest,
) -> Result<(Vec<ImportEntry>, Option<Password>), Error> {
    let names = &request.names;
    at_most(IMPORT_MAX, names)?;
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

/// Decodes names mentioned in a text. The text is not validated, so invalid names are skipped.
pub(super) fn possible_names(names: &[String]) -> Result<Vec<Name>, Error> {
    at_most(BATCH_MAX, names)?;
    Ok(names.iter().filter_map(|name| Name::parse("names", name).ok()).collect())
}

pub(super) fn login(request: &pb::LoginRequest) -> Result<(Login, Password), Error> {
    let mut fields = FieldErrors::default();
    let login = fields.read(Login::parse("login", &request.login));
    let password = fields.read(Password::parse_given("password", &request.password));
    fields.finish(login.zip(password)).map_err(Error::Invalid)
}

pub(super) fn change_password(
    request: &pb::ChangePasswordRequest,
) -> Result<(UserId, Password, Password), Error> {
    let mut fields = FieldErrors::default();
    let id = fields.read(UserId::parse("user_id", request.user_id));
    let given = Password::parse_given("current_password", &request.current_password);
    let current = fields.read(given);
    let new = fields.read(Password::parse_new("new_password", &request.new_password));
    fields
        .finish(id.zip(current).zip(new).map(|((id, current), new)| (id, current, new)))
        .map_err(Error::Invalid)
}

pub(super) fn delete_user(request: &pb::DeleteUserRequest) -> Result<(UserId, Password), Error> {
    let mut fields = FieldErrors::default();
    let id = fields.read(UserId::parse("user_id", request.user_id));
    let password = fields.read(Password::parse_given("password", &request.password));
    fields.finish(id.zip(password)).map_err(Error::Invalid)
}

pub(super) fn update_profile(
    request: &pb::UpdateProfileRequest,
) -> Result<(UserId, Vec<(ProfileField, String)>), Error> {
    let mut fields = FieldErrors::default();
    let id = fields.read(UserId::parse("user_id", request.user_id));
    let given = [
        (ProfileField::DisplayName, &request.display_name),
        (ProfileField::Bio, &request.bio),
        (ProfileField::AvatarUrl, &request.avatar_url),
        (ProfileField::Location, &request.location),
    ];
    let mut changes = Vec::new();
    for (part, text) in given {
        if let Some(text) = text.as_deref().and_then(|text| fields.read(part.parse(text))) {
            changes.push((part, text));
        }
    }
    fields.finish(id.map(|id| (id, changes))).map_err(Error::Invalid)
}

pub(super) fn user_id(value: u64) -> Result<UserId, Error> {
    Ok(UserId::parse("user_id", value)?)
}

fn at_most(max: usize, names: &[String]) -> Result<(), Invalid> {
    if names.len() > max {
        let problem = format!("must have at most {max} items, has {}", names.len());
        return Err(Invalid::new("names", problem));
    }
    Ok(())
}
