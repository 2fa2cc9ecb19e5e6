//! The contract: messages, clients and servers generated from `fovea/**/*.proto`, and their descriptors.
//!
//! Paths follow the packages: `proto::fovea::runs::v1::Run`.

#[expect(
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    reason = "generated from the proto files"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/contract.rs"));
}

pub use generated::{fovea, google};

use prost_reflect::{DescriptorPool, MethodDescriptor};
use std::sync::LazyLock;

pub use fovea::Access;

/// The encoded `FileDescriptorSet` of the whole contract.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(DESCRIPTORS)
        .expect("invariant: the descriptors were encoded by the build")
});

/// Returns the contract's descriptors, for JSON, reflection and enumeration.
pub fn pool() -> &'static DescriptorPool {
    &POOL
}

/// Returns who may call a method: its `(fovea.access)` option.
pub fn access(method: &MethodDescriptor) -> Access {
    let number = option(method, "fovea.access").and_then(|value| value.as_enum_number());
    number
        .and_then(|number| Access::try_from(number).ok())
        .unwrap_or(Access::Unspecified)
}

/// Returns the least role a public caller needs: the `(fovea.role)` option, or `viewer`.
pub fn role(method: &MethodDescriptor) -> String {
    option(method, "fovea.role")
        .and_then(|value| value.as_str().map(str::to_owned))
        .filter(|role| !role.is_empty())
        .unwrap_or_else(|| "viewer".to_owned())
}

fn option(method: &MethodDescriptor, name: &str) -> Option<prost_reflect::Value> {
    let extension = pool().get_extension_by_name(name)?;
    let options = method.options();
    options
        .has_extension(&extension)
        .then(|| options.get_extension(&extension).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rpc_says_who_may_call_it() {
        for method in pool()
            .services()
            .flat_map(|service| service.methods().collect::<Vec<_>>())
        {
            assert_ne!(
                access(&method),
                Access::Unspecified,
                "{}",
                method.full_name()
            );
            let roles = ["viewer", "editor", "admin", "owner"];
            assert!(
                roles.contains(&role(&method).as_str()),
                "{}",
                method.full_name()
            );
        }
    }

    #[test]
    fn every_fact_ends_in_a_past_participle() {
        for message in pool().all_messages() {
            if !message.parent_file().name().ends_with("/events.proto") {
                continue;
            }
            let name = message.name();
            let participle = name.ends_with("ed") || name.ends_with("Lost");
            assert!(
                participle || message.is_map_entry() || name.ends_with("Entry"),
                "{name}"
            );
        }
    }
}
