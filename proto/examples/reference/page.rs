//! Puts the page together: contents, services with their calls, types. A request or response that
//! belongs to one call alone stands beside it; what several share has a heading of its own.

use std::{collections::HashSet, fmt::Write as _};

use microblog_proto::Access;
use prost_types::method_options::IdempotencyLevel;

use crate::{
    contract::{Enum, Field, Kind, Message, Method, Package, Service},
    prose,
};

/// Where the page is.
pub(crate) const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");

const INTRODUCTION: &str = "\
<!-- Made of the comments in microblog/ by `cargo run --package microblog-proto --example reference`:
     change those, and make it anew. -->

# All calls of microblog

This is the wire contract: each service with its calls, and what they take and answer. The same is \
in the comments of [`microblog/`](microblog), which this page is made of, and each server tells it \
by reflection. Applications call [GatewayService](#gatewayservice); the other services are behind \
it, for those who run it and for services of their own.

A field is its type's zero (0, `\"\"`, `false`, an empty list) unless it is set. *optional* ones tell \
that apart from being absent, and so does each that is a message. Of fields that are *one of* a \
group, one is set at most. In JSON, names are in camel case and 64-bit integers are strings. Every \
call may fail with one of the [error reasons](#commonv1errorreason).

Each call says whether it may be repeated (its `idempotency_level`), which proxies and clients may \
go by:

- *Reads only* (`NO_SIDE_EFFECTS`): as often as one likes.
- *May be repeated* (`IDEMPOTENT`): carried out twice, it comes to the same as once.
- *Not idempotent*: the second time it does something else, or is refused. So nobody repeats it \
but its caller.

Each call of the services behind the gateway says as well who may make it, which is checked where \
the servers have keys ([record 16](../services/decisions/0016-signed-caller-identity.md)). The system \
itself may make them all.
";

/// Returns the page.
pub(crate) fn write(packages: &[Package]) -> String {
    let page = Page { packages, beside: beside_their_call(packages) };
    let mut text = format!("{INTRODUCTION}\n## Contents\n\n");
    for package in packages {
        text += &page.contents(package);
    }
    for package in packages {
        for service in &package.services {
            text += &page.service(package, service);
        }
        text += &page.types(package);
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

struct Page<'a> {
    packages: &'a [Package],
    /// The messages that stand beside their call.
    beside: HashSet<&'a str>,
}

fn beside_their_call(packages: &[Package]) -> HashSet<&str> {
    let methods = packages.iter().flat_map(|package| &package.services).flat_map(|s| &s.methods);
    let own: HashSet<_> = methods.flat_map(|m| [m.request.as_str(), m.response.as_str()]).collect();
    let fields = packages.iter().flat_map(|package| &package.messages).flat_map(|m| &m.fields);
    let shared: HashSet<_> = fields.filter_map(|field| named(&field.kind)).collect();
    own.difference(&shared).copied().collect()
}

fn named(kind: &Kind) -> Option<&str> {
    match kind {
        Kind::Named(name) => Some(name),
        Kind::Scalar(_) => None,
    }
}

impl Page<'_> {
    fn contents(&self, package: &Package) -> String {
        let mut text = String::new();
        for service in &package.services {
            let links = service.methods.iter().map(|m| to_call(service, m)).collect::<Vec<_>>();
            let _ =
                writeln!(text, "- {}: {}", link(&service.name, &service.name), links.join(", "));
        }
        let messages = self.shared(package).map(|message| message.name.as_str());
        let names = messages.chain(package.enums.iter().map(|kind| kind.name.as_str()));
        let links: Vec<_> = names.map(|name| link(last(name), short(name))).collect();
        if !links.is_empty() {
            let title = types_title(package);
            let _ = writeln!(text, "- {}: {}", link(&title, &title), links.join(", "));
        }
        text
    }

    fn shared<'p>(&self, package: &'p Package) -> impl Iterator<Item = &'p Message> {
        package.messages.iter().filter(|message| !self.beside.contains(message.name.as_str()))
    }

    fn service(&self, package: &Package, service: &Service) -> String {
        let Service { name, comment, methods } = service;
        let directory = package.name.replace('.', "/");
        let mut text = format!(
            "\n## {name}\n\n`{0}.{name}`, in [`{directory}`]({directory}).\n\n{1}\n\n\
             | call | what it does | |\n| --- | --- | --- |\n",
            package.name,
            prose::paragraphs(comment)
        );
        for method in methods {
            let what = prose::first_sentence(&method.comment);
            let repeat = repeatable(method);
            let _ = writeln!(text, "| {} | {what} | {repeat} |", to_call(service, method));
        }
        for method in methods {
            text += &self.call(service, method);
        }
        text
    }

    fn call(&self, service: &Service, method: &Method) -> String {
        let comment = prose::paragraphs(&method.comment);
        let title = format!("\n### {}.{}\n\n{comment}\n\n", service.name, method.name);
        let stream = if method.is_streamed { " Answers with a stream of responses." } else { "" };
        let repeat = repeatable(method);
        let request = self.beside("Request", &method.name, &method.request);
        let response = self.beside("Response", &method.name, &method.response);
        let access = method.access.map(|access| format!(" {}.", callers(access)));
        let access = access.unwrap_or_default();
        format!("{title}*{repeat}.{access}*{stream}\n\n{request}\n{response}")
    }

    /// Returns what a call takes or answers, where it is not shared with others.
    fn beside(&self, what: &str, call: &str, name: &str) -> String {
        let found = self.packages.iter().flat_map(|p| &p.messages).find(|m| m.name == name);
        let Some(message) = found.filter(|_| self.beside.contains(name)) else {
            return format!("{what}: {}.\n", link(short(name), short(name)));
        };
        // That it belongs to the call can be seen, so only what is said beyond that.
        let comment = message.comment.trim().trim_start_matches(&format!("{what} of {call}"));
        let comment = prose::paragraphs(comment.trim_start_matches([':', ',', '.', ' ']));
        let title = format!("{what} `{}`", last(name));
        match (message.fields.as_slice(), comment.as_str()) {
            ([], "") => format!("{title}: empty.\n"),
            ([], comment) => format!("{title}, empty. {comment}\n"),
            (fields, "") => format!("{title}:\n\n{}", table(fields)),
            (fields, comment) => format!("{title}: {comment}\n\n{}", table(fields)),
        }
    }

    fn types(&self, package: &Package) -> String {
        let messages = self.shared(package).map(|message| {
            let Message { name, comment, fields } = message;
            let comment = prose::paragraphs(comment);
            format!("\n### {}\n\n{comment}\n\n{}", short(name), table(fields))
        });
        let enums = package.enums.iter().map(enumeration);
        let text: String = messages.chain(enums).collect();
        if text.is_empty() { text } else { format!("\n## {}\n{text}", types_title(package)) }
    }
}

fn enumeration(kind: &Enum) -> String {
    let comment = prose::paragraphs(&kind.comment);
    let mut text = format!("\n### {}\n\n{comment}\n\n", short(&kind.name));
    text += "| value | number | |\n| --- | --- | --- |\n";
    for value in &kind.values {
        let comment = prose::cell(&value.comment);
        let _ = writeln!(text, "| `{}` | {} | {comment} |", value.name, value.number);
    }
    text
}

fn table(fields: &[Field]) -> String {
    let mut text = "| field | type | |\n| --- | --- | --- |\n".to_owned();
    for field in fields {
        let comment = prose::cell(&field.comment);
        let _ = writeln!(text, "| `{}` | {} | {comment} |", field.name, typed(field));
    }
    text
}

fn typed(field: &Field) -> String {
    let kind = match &field.kind {
        Kind::Scalar(name) => format!("`{name}`"),
        Kind::Named(name) => match name.strip_prefix("google.protobuf.") {
            Some(known) => format!(
                "[{known}](https://protobuf.dev/reference/protobuf/google.protobuf/#{})",
                known.to_lowercase()
            ),
            None => link(last(name), short(name)),
        },
    };
    let label = match (field.is_repeated, field.is_optional) {
        (true, _) => "repeated ",
        (_, true) => "optional ",
        _ => "",
    };
    let group = field.one_of.as_ref().map(|group| format!(", one of `{group}`"));
    format!("{label}{kind}{}", group.unwrap_or_default())
}

fn repeatable(method: &Method) -> &'static str {
    match method.idempotency {
        IdempotencyLevel::NoSideEffects => "Reads only",
        IdempotencyLevel::Idempotent => "May be repeated",
        IdempotencyLevel::IdempotencyUnknown => "Not idempotent",
    }
}

fn callers(access: Access) -> String {
    match access {
        Access::Actor(field) => format!("For the user in `{field}`"),
        Access::Viewer(field) => format!("For the user in `{field}`, or anybody if it is 0"),
        Access::Public => "For anybody".to_owned(),
        Access::Credentials => "For anybody who has what it asks for".to_owned(),
        Access::System => "For the system alone".to_owned(),
    }
}

fn types_title(package: &Package) -> String {
    format!("Types of {}", package.name)
}

fn to_call(service: &Service, method: &Method) -> String {
    link(&method.name, &format!("{}.{}", service.name, method.name))
}

/// Returns a link to a heading, whose anchor GitHub makes of its letters, digits, `-` and `_`.
fn link(text: &str, heading: &str) -> String {
    let kept = |sign: &char| sign.is_alphanumeric() || "-_ ".contains(*sign);
    let anchor: String = heading.chars().filter(kept).collect();
    format!("[{text}](#{})", anchor.to_lowercase().replace(' ', "-"))
}

/// Returns `post.v1.Post` of `microblog.post.v1.Post`.
fn short(name: &str) -> &str {
    name.strip_prefix("microblog.").unwrap_or(name)
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
