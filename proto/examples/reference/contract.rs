//! What the compiled protos say: packages with their services and types, each with its comment.
//! Knows nothing of pages.

use std::collections::HashMap;

use microblog_proto::{ACCESS, Access};
use prost::{DecodeError, Message as _};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
    method_options::IdempotencyLevel,
};

/// Where comments are: by the numbers of the fields that lead to an element of a file, as
/// `descriptor.proto` has them.
const MESSAGES: i32 = 4;
const ENUMS: i32 = 5;
const SERVICES: i32 = 6;
/// Of a message its fields, of an enum its values, of a service its methods.
const MEMBERS: i32 = 2;

pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) services: Vec<Service>,
    pub(crate) messages: Vec<Message>,
    pub(crate) enums: Vec<Enum>,
}

pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) methods: Vec<Method>,
}

pub(crate) struct Method {
    pub(crate) name: String,
    pub(crate) comment: String,
    /// The full name of a message, as all names of types.
    pub(crate) request: String,
    pub(crate) response: String,
    pub(crate) is_streamed: bool,
    pub(crate) idempotency: IdempotencyLevel,
    /// Who may call it; `None` where it is one of the front door.
    pub(crate) access: Option<Access>,
}

pub(crate) struct Message {
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) fields: Vec<Field>,
}

pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) kind: Kind,
    pub(crate) is_repeated: bool,
    pub(crate) is_optional: bool,
    pub(crate) one_of: Option<String>,
}

pub(crate) enum Kind {
    Scalar(String),
    Named(String),
}

pub(crate) struct Enum {
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) values: Vec<Value>,
}

pub(crate) struct Value {
    pub(crate) name: String,
    pub(crate) number: i32,
    pub(crate) comment: String,
}

/// Returns microblog's packages, those that others build on last.
pub(crate) fn read(descriptors: &[u8]) -> Result<Vec<Package>, DecodeError> {
    let mut packages: Vec<Package> = Vec::new();
    for file in FileDescriptorSet::decode(descriptors)?.file {
        if !file.package().starts_with("microblog.") {
            continue;
        }
        let file = File { comments: comments(&file), file };
        match packages.iter_mut().find(|package| package.name == file.file.package()) {
            Some(package) => file.add_to(package),
            None => {
                let name = file.file.package().to_owned();
                let (services, messages, enums) = Default::default();
                let mut package = Package { name, services, messages, enums };
                file.add_to(&mut package);
                packages.push(package);
            }
        }
    }
    packages.reverse();
    Ok(packages)
}

struct File {
    file: FileDescriptorProto,
    comments: HashMap<Vec<i32>, String>,
}

fn comments(file: &FileDescriptorProto) -> HashMap<Vec<i32>, String> {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    locations.map(|at| (at.path.clone(), at.leading_comments().to_owned())).collect()
}

impl File {
    fn add_to(&self, package: &mut Package) {
        let file = &self.file;
        let services = (0..).zip(&file.service).map(|(at, service)| self.service(at, service));
        package.services.extend(services);
        let messages = (0..).zip(&file.message_type).map(|(at, message)| self.message(at, message));
        package.messages.extend(messages);
        package.enums.extend((0..).zip(&file.enum_type).map(|(at, kind)| self.kind(at, kind)));
    }

    fn comment(&self, path: &[i32]) -> String {
        self.comments.get(path).cloned().unwrap_or_default()
    }

    fn full_name(&self, name: &str) -> String {
        format!("{}.{name}", self.file.package())
    }

    fn service(&self, at: i32, service: &ServiceDescriptorProto) -> Service {
        let method = |(member, method): (i32, &MethodDescriptorProto)| Method {
            name: method.name().to_owned(),
            comment: self.comment(&[SERVICES, at, MEMBERS, member]),
            request: of_type(method.input_type()),
            response: of_type(method.output_type()),
            is_streamed: method.server_streaming(),
            idempotency: method
                .options
                .as_ref()
                .map_or(IdempotencyLevel::IdempotencyUnknown, |o| o.idempotency_level()),
            access: access(&format!("/{}/{}", self.full_name(service.name()), method.name())),
        };
        Service {
            name: service.name().to_owned(),
            comment: self.comment(&[SERVICES, at]),
            methods: (0..).zip(&service.method).map(method).collect(),
        }
    }

    fn message(&self, at: i32, message: &DescriptorProto) -> Message {
        let field = |(member, field): (i32, &FieldDescriptorProto)| {
            let is_optional = field.proto3_optional();
            // A field that may be absent is the only one of a group that nobody wrote.
            let group = field.oneof_index.filter(|_| !is_optional);
            let group =
                group.and_then(|group| message.oneof_decl.get(usize::try_from(group).ok()?));
            Field {
                name: field.name().to_owned(),
                comment: self.comment(&[MESSAGES, at, MEMBERS, member]),
                kind: kind_of(field),
                is_repeated: field.label() == Label::Repeated,
                is_optional,
                one_of: group.map(|group| group.name().to_owned()),
            }
        };
        Message {
            name: self.full_name(message.name()),
            comment: self.comment(&[MESSAGES, at]),
            fields: (0..).zip(&message.field).map(field).collect(),
        }
    }

    fn kind(&self, at: i32, kind: &EnumDescriptorProto) -> Enum {
        let values = (0..).zip(&kind.value).map(|(member, value)| Value {
            name: value.name().to_owned(),
            number: value.number(),
            comment: self.comment(&[ENUMS, at, MEMBERS, member]),
        });
        Enum {
            name: self.full_name(kind.name()),
            comment: self.comment(&[ENUMS, at]),
            values: values.collect(),
        }
    }
}

fn access(path: &str) -> Option<Access> {
    ACCESS.iter().find(|(method, _)| *method == path).map(|(_, access)| *access)
}

fn kind_of(field: &FieldDescriptorProto) -> Kind {
    match field.r#type() {
        Type::Message | Type::Enum => Kind::Named(of_type(field.type_name())),
        scalar => Kind::Scalar(scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase()),
    }
}

/// Returns the name of a type without the dot that stands before it where it is referred to.
fn of_type(name: &str) -> String {
    name.trim_start_matches('.').to_owned()
}
