//! Who may call which method: reads the options of `microblog/common/v1/access.proto`. Fails if a
//! method of an internal service declares nothing, or declares two options.

use std::{collections::BTreeMap, error::Error};

use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, MethodDescriptor, ServiceDescriptor,
};

/// The declaration of a method. The generated code refers to it as `crate::Access`.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    Actor(String),
    Viewer(String),
    Public,
    Credentials,
    System,
}

/// The declarations of all methods, except those of the front door.
pub(crate) struct Contract {
    methods: BTreeMap<String, Access>,
}

impl Contract {
    /// Reads the declarations.
    pub(crate) fn read(pool: &DescriptorPool) -> Result<Self, Box<dyn Error>> {
        let options = Options::find(pool).ok_or("access.proto has no such options")?;
        let mut methods = BTreeMap::new();
        for service in pool.services() {
            let declared = options.declared(&service)?;
            if options.is_front_door(&service) != declared.is_empty() {
                let name = service.full_name();
                return Err(
                    format!("{name}: must be a front door or declare access, not both").into()
                );
            }
            methods.extend(declared);
        }
        Ok(Self { methods })
    }

    /// Returns the declaration of a method.
    pub(crate) fn of(&self, path: &str) -> Option<&Access> {
        self.methods.get(path)
    }

    /// Returns all declarations with the paths of their methods.
    pub(crate) fn methods(&self) -> impl Iterator<Item = (&str, &Access)> {
        self.methods.iter().map(|(path, access)| (path.as_str(), access))
    }
}

/// The extensions of `access.proto`.
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

    /// Returns the declarations of a service's methods. Either all methods have one, or none.
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
