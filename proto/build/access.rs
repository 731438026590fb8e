//! Who may call which method, as `microblog/common/v1/access.proto` has it. Fails where a method of
//! a service behind the gateway does not say, or says two things.

use std::{collections::BTreeMap, error::Error};

use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, MethodDescriptor, ServiceDescriptor,
};

/// What a method declares. Its name is that of `crate::Access` in the generated code.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    Actor(String),
    Viewer(String),
    Public,
    Credentials,
    System,
}

/// What the methods of all services declare, but for those of the front door.
pub(crate) struct Contract {
    methods: BTreeMap<String, Access>,
}

impl Contract {
    /// Reads it.
    pub(crate) fn read(pool: &DescriptorPool) -> Result<Self, Box<dyn Error>> {
        let options = Options::find(pool).ok_or("the options of access.proto are not there")?;
        let mut methods = BTreeMap::new();
        for service in pool.services() {
            let declared = options.declared(&service)?;
            if options.is_front_door(&service) != declared.is_empty() {
                let name = service.full_name();
                return Err(format!("{name}: is to be a front door, or declare access").into());
            }
            methods.extend(declared);
        }
        Ok(Self { methods })
    }

    /// Returns what a method declares.
    pub(crate) fn of(&self, path: &str) -> Option<&Access> {
        self.methods.get(path)
    }

    /// Returns all that declare something, by their paths.
    pub(crate) fn methods(&self) -> impl Iterator<Item = (&str, &Access)> {
        self.methods.iter().map(|(path, access)| (path.as_str(), access))
    }
}

/// The options by their numbers.
struct Options {
    front_door: ExtensionDescriptor,
    access: ExtensionDescriptor,
    actor: ExtensionDescriptor,
}

impl Options {
    fn find(pool: &DescriptorPool) -> Option<Self> {
        let find = |name| pool.get_extension_by_name(&format!("microblog.common.v1.{name}"));
        Some(Self {
            front_door: find("front_door")?,
            access: find("access")?,
            actor: find("actor")?,
        })
    }

    fn is_front_door(&self, service: &ServiceDescriptor) -> bool {
        service.options().get_extension(&self.front_door).as_bool() == Some(true)
    }

    /// Returns what the methods of a service declare: all of them, or none.
    fn declared(
        &self,
        service: &ServiceDescriptor,
    ) -> Result<BTreeMap<String, Access>, Box<dyn Error>> {
        let mut declared = BTreeMap::new();
        for method in service.methods() {
            let path = format!("/{}/{}", service.full_name(), method.name());
            match self.access(&method).as_slice() {
                [] => {}
                [access] => drop(declared.insert(path, access.clone())),
                several => return Err(format!("{path}: declares {several:?}").into()),
            }
        }
        if !declared.is_empty() && declared.len() != service.methods().len() {
            let (all, some) = (service.methods().len(), declared.len());
            let name = service.full_name();
            return Err(format!("{name}: {some} of {all} methods declare who may call them").into());
        }
        Ok(declared)
    }

    fn access(&self, method: &MethodDescriptor) -> Vec<Access> {
        let access = match number(&method.options(), &self.access) {
            1 => Some(Access::Public),
            2 => Some(Access::Credentials),
            3 => Some(Access::System),
            _ => None,
        };
        let fields = method.input();
        let actors = fields.fields().filter_map(|field| {
            let name = field.name().to_owned();
            match number(&field.options(), &self.actor) {
                1 => Some(Access::Actor(name)),
                2 => Some(Access::Viewer(name)),
                _ => None,
            }
        });
        access.into_iter().chain(actors).collect()
    }
}

fn number(options: &DynamicMessage, option: &ExtensionDescriptor) -> i32 {
    options.get_extension(option).as_enum_number().unwrap_or_default()
}
