//! A fact of the tests' own, with the descriptor that a proto file would give.

use kit::bus;
use kit::id::{Id, Workspace};
use prost::{Message, Name};
use prost_reflect::DescriptorPool;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// `fovea.tests.v1.ThingHappened`.
#[derive(Clone, PartialEq, Message)]
pub struct ThingHappened {
    #[prost(string, tag = "1")]
    pub thing_id: String,
    #[prost(int64, tag = "2")]
    pub count: i64,
}

impl Name for ThingHappened {
    const NAME: &'static str = "ThingHappened";
    const PACKAGE: &'static str = "fovea.tests.v1";
}

pub fn install() {
    let field = |name: &str, number, kind: Type| FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional as i32),
        r#type: Some(kind as i32),
        ..FieldDescriptorProto::default()
    };
    let message = DescriptorProto {
        name: Some("ThingHappened".to_owned()),
        field: vec![
            field("thing_id", 1, Type::String),
            field("count", 2, Type::Int64),
        ],
        ..DescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("fovea/tests/v1/events.proto".to_owned()),
        package: Some("fovea.tests.v1".to_owned()),
        message_type: vec![message],
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    };
    let set = FileDescriptorSet { file: vec![file] };
    bus::install_descriptors(DescriptorPool::from_file_descriptor_set(set).unwrap());
}

pub fn workspace() -> Id<Workspace> {
    Id::new(kit::Clock::system().now())
}

pub fn happened(thing: &str, count: i64) -> ThingHappened {
    ThingHappened {
        thing_id: thing.to_owned(),
        count,
    }
}
