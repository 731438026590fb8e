//! From the wire's types to the domain's. Says of every field what is wrong with it, all at once;
//! of an import, which has thousands, only of the first.

use std::collections::HashSet;

use microblog_domain::{BATCH_MAX, Fields, Invalid, RequestId, UserId};
use microblog_proto::user as pb;

use crate::{Email, Error, Login, Name, Part, Password, import::Person, registration::Application};

/// The most names that an import takes.
const IMPORT_MAX: usize = 5000;

pub(super) fn register(request: pb::RegisterRequest) -> Result<Application, Error> {
    let mut fields = Fields::default();
    let id = fields.read(RequestId::parse("request_id", &request.request_id));
    let name = fields.read(Name::parse("name", &request.name));
    let email = fields.read(Email::parse("email", &request.email));
    let password = fields.read(Password::parse_new("password", &request.password));
    let display_name = fields.read(Part::DisplayName.parse(&request.display_name));
    let application = id.zip(name).zip(email).zip(password).zip(display_name).map(
        |((((request, name), email), password), display_name)| Application {
            request: request.to_string(),
            name,
            email,
            password,
            display_name,
        },
    );
    fields.finish(application).map_err(Error::Invalid)
}

pub(super) fn import_users(
    request: &pb::ImportUsersRequest,
) -> Result<(Vec<Person>, Option<Password>), Error> {
    let names = &request.names;
    at_most(IMPORT_MAX, names)?;
    let mut seen = HashSet::with_capacity(names.len());
    let mut people = Vec::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        let field = format!("names[{i}]");
        let name = Name::parse(&field, name)?;
        if !seen.insert(name.unique()) {
            return Err(Invalid::new(field, "must be there once only").into());
        }
        let email = Email::parse("email_domain", &format!("{name}@{}", request.email_domain));
        let email = email.map_err(|invalid| {
            Invalid::new(invalid.field, "must be a domain for e-mail addresses")
        })?;
        people.push(Person { name, email });
    }
    let password = match request.password.as_str() {
        "" => None,
        text => Some(Password::parse_new("password", text)?),
    };
    Ok((people, password))
}

/// Reads names of a text, which come from where nobody checks them: those that nobody can have are
/// nobody's, and no fault of the request.
pub(super) fn possible_names(names: &[String]) -> Result<Vec<Name>, Error> {
    at_most(BATCH_MAX, names)?;
    Ok(names.iter().filter_map(|name| Name::parse("names", name).ok()).collect())
}

pub(super) fn login(request: &pb::LoginRequest) -> Result<(Login, Password), Error> {
    let mut fields = Fields::default();
    let login = fields.read(Login::parse("login", &request.login));
    let password = fields.read(Password::parse_given("password", &request.password));
    fields.finish(login.zip(password)).map_err(Error::Invalid)
}

pub(super) fn change_password(
    request: &pb::ChangePasswordRequest,
) -> Result<(UserId, Password, Password), Error> {
    let mut fields = Fields::default();
    let id = fields.read(UserId::parse("user_id", request.user_id));
    let given = Password::parse_given("current_password", &request.current_password);
    let current = fields.read(given);
    let new = fields.read(Password::parse_new("new_password", &request.new_password));
    fields
        .finish(id.zip(current).zip(new).map(|((id, current), new)| (id, current, new)))
        .map_err(Error::Invalid)
}

pub(super) fn delete_user(request: &pb::DeleteUserRequest) -> Result<(UserId, Password), Error> {
    let mut fields = Fields::default();
    let id = fields.read(UserId::parse("user_id", request.user_id));
    let password = fields.read(Password::parse_given("password", &request.password));
    fields.finish(id.zip(password)).map_err(Error::Invalid)
}

pub(super) fn update_profile(
    request: &pb::UpdateProfileRequest,
) -> Result<(UserId, Vec<(Part, String)>), Error> {
    let mut fields = Fields::default();
    let id = fields.read(UserId::parse("user_id", request.user_id));
    let given = [
        (Part::DisplayName, &request.display_name),
        (Part::Bio, &request.bio),
        (Part::AvatarUrl, &request.avatar_url),
        (Part::Location, &request.location),
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
