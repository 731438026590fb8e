//! The methods of the gateway on the command line: names, descriptions and fields.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
    error::{ContextKind, ContextValue},
};
use microblog_chassis::json;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor};

const GATEWAY_SERVICE: &str = "microblog.gateway.v1.GatewayService";
const CHANGE_SERVICE: &str = "microblog.gateway.v1.ChangeService";

/// Parses a method. Other commands do not decode the descriptors, because it is lazy.
#[derive(Clone)]
pub(super) struct Parser;

impl TypedValueParser for Parser {
    type Value = MethodDescriptor;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<MethodDescriptor, Error> {
        let names = PossibleValuesParser::new(all().map(|method| possible_value(&method)));
        let find = |name: String| {
            all()
                .find(|method| possible_value(method).matches(&name, true))
                .ok_or("the method is not declared")
        };
        names.try_map(find).parse_ref(command, argument, value).map_err(|mut error| {
            // Too many to print. What remains is the most similar one.
            error.remove(ContextKind::ValidValue);
            let hint = "`microblog call --list` lists the methods".into();
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint]));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(all().map(|method| possible_value(&method))))
    }
}

fn all() -> impl Iterator<Item = MethodDescriptor> {
    json::methods(GATEWAY_SERVICE).chain(json::methods(CHANGE_SERVICE))
}

/// Returns the name on the command line, with longer ones as aliases.
fn possible_value(method: &MethodDescriptor) -> PossibleValue {
    let service = method.parent_service();
    let with_service = format!("{}/{}", service.name(), method.name());
    let value = if service.full_name() == GATEWAY_SERVICE {
        PossibleValue::new(method.name().to_owned()).alias(with_service)
    } else {
        PossibleValue::new(with_service)
    };
    value.alias(json::path(method)).help(first_sentence(method))
}

/// Returns the first sentence of the comment of a method.
fn first_sentence(method: &MethodDescriptor) -> String {
    let file = method.parent_file();
    let info = file.file_descriptor_proto().source_code_info.as_ref();
    let location = info.and_then(|info| info.location.iter().find(|at| at.path == method.path()));
    let comment = location.map_or("", |location| location.leading_comments());
    let words = comment.split_whitespace().collect::<Vec<_>>().join(" ");
    words.split_inclusive(". ").next().unwrap_or_default().trim_end().to_owned()
}

/// Returns a line for each method: its name, and the first sentence of its comment.
pub(super) fn list() -> String {
    let values: Vec<_> = all().map(|method| possible_value(&method)).collect();
    let width = values.iter().map(|value| value.get_name().len()).max().unwrap_or_default();
    let line = |value: &PossibleValue| {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        format!("{:<width$}  {help}", value.get_name())
    };
    values.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the fields of a message and of the messages in it, as `user {id, name}, page_size`.
pub(super) fn fields(message: &MessageDescriptor) -> String {
    let names = |message: &MessageDescriptor| {
        message.fields().map(|field| field.name().to_owned()).collect::<Vec<_>>().join(", ")
    };
    let text = |field: FieldDescriptor| match field.kind() {
        Kind::Message(inner) => format!("{} {{{}}}", field.name(), names(&inner)),
        _ => field.name().to_owned(),
    };
    message.fields().map(text).collect::<Vec<_>>().join(", ")
}
