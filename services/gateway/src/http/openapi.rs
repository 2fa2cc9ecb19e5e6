//! The OpenAPI 3.1 document: what the transcoder serves, generated from the descriptors and their
//! comments, and what is written by hand, merged from `by_hand.json`.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use prost_reflect::{EnumDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor};
use proto::Access;
use serde_json::{Map, Value, json};

use crate::contract::{Binding, Body, Contract, Method};

const BY_HAND: &str = include_str!("by_hand.json");

static DOCUMENT: LazyLock<Value> = LazyLock::new(generate);
static COMMENTS: LazyLock<HashMap<(String, Vec<i32>), String>> = LazyLock::new(read_comments);

/// Returns the document.
pub fn document() -> &'static Value {
    &DOCUMENT
}

fn generate() -> Value {
    let mut document: Value =
        serde_json::from_str(BY_HAND).expect("invariant: by_hand.json is JSON");
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    let mut schemas = Schemas::default();
    for method in Contract::get().methods() {
        for binding in &method.bindings {
            let path = binding.template.text().to_owned();
            let verb = binding.verb.as_str().to_ascii_lowercase();
            let operation = operation(method, binding, &mut schemas);
            let known = document["paths"][&path][&verb].take();
            document["paths"][&path][&verb] = merged(operation, known);
        }
    }
    let target = document["components"]["schemas"]
        .as_object_mut()
        .expect("invariant: by_hand.json has components.schemas");
    target.extend(schemas.finished());
    document
}

/// Lays what is written by hand over what is generated.
fn merged(mut generated: Value, by_hand: Value) -> Value {
    match (generated.as_object_mut(), by_hand) {
        (Some(target), Value::Object(entries)) => {
            for (name, value) in entries {
                let below = target.remove(&name).unwrap_or(Value::Null);
                target.insert(name, merged(below, value));
            }
            generated
        }
        (_, Value::Null) => generated,
        (_, value) => value,
    }
}

fn operation(method: &Method, binding: &Binding, schemas: &mut Schemas) -> Value {
    let input = method.input();
    let in_path: Vec<&str> = binding.template.variables().collect();
    let mut parameters: Vec<Value> = Vec::new();
    for name in &in_path {
        let description = input
            .get_field_by_name(name)
            .map(|field| comment(&field.parent_file(), field.path()));
        parameters.push(described(
            json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}),
            description.unwrap_or_default(),
        ));
    }
    let others = input
        .fields()
        .filter(|field| !in_path.contains(&field.name()));
    let mut operation = json!({
        "operationId": method.descriptor.name(),
        "tags": [method.domain()],
        "x-fovea-access": match method.access {
            Access::Public => "public",
            Access::Operator => "operator",
            Access::Worker => "worker",
            Access::Service | Access::Unspecified => "service",
        },
        "responses": {
            "200": {
                "description": "What the call answers.",
                "content": {"application/json": {"schema": schemas.message(&method.output())}},
            },
            "default": {"$ref": "#/components/responses/Problem"},
        },
    });
    if method.access == Access::Public {
        operation["x-fovea-role"] = method.role.name().into();
    }
    match binding.body {
        Body::Absent => {
            for field in others {
                let parameter = json!({
                    "name": field.name(), "in": "query", "schema": schemas.field(&field),
                });
                let description = comment(&field.parent_file(), field.path());
                parameters.push(described(parameter, description));
            }
        }
        Body::Whole => {
            let schema = schemas.object(&input, &in_path);
            let content = json!({"application/json": {"schema": schema}});
            operation["requestBody"] = json!({"required": true, "content": content});
        }
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    let comment = comment(&method.descriptor.parent_file(), method.descriptor.path());
    let (summary, rest) = match comment.split_once(". ") {
        Some((first, rest)) => (format!("{first}."), rest.to_owned()),
        None => (comment, String::new()),
    };
    operation["summary"] = summary.into();
    described(operation, rest)
}

/// The named schemas that operations refer to.
#[derive(Default)]
struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    /// Returns a reference to a message's schema, which is written at its first use.
    fn message(&mut self, descriptor: &MessageDescriptor) -> Value {
        let name = descriptor.full_name();
        match name {
            "google.protobuf.Timestamp" => {
                return json!({"type": "string", "format": "date-time"});
            }
            "google.protobuf.Duration" => {
                return json!({"type": "string", "pattern": "^-?[0-9]+(\\.[0-9]+)?s$"});
            }
            _ => {}
        }
        if !self.0.contains_key(name) {
            // Before the fields are read: a message may hold itself.
            self.0.insert(name.to_owned(), Value::Null);
            let schema = self.object(descriptor, &[]);
            let text = comment(&descriptor.parent_file(), descriptor.path());
            self.0.insert(name.to_owned(), described(schema, text));
        }
        json!({"$ref": format!("#/components/schemas/{name}")})
    }

    fn object(&mut self, descriptor: &MessageDescriptor, without: &[&str]) -> Value {
        let mut properties = Map::new();
        for field in descriptor.fields() {
            if without.contains(&field.name()) {
                continue;
            }
            let text = comment(&field.parent_file(), field.path());
            let schema = described(self.field(&field), text);
            properties.insert(field.name().to_owned(), schema);
        }
        json!({"type": "object", "properties": properties, "additionalProperties": false})
    }

    fn field(&mut self, field: &FieldDescriptor) -> Value {
        let kind = field.kind();
        if field.is_map() {
            let entry = kind.as_message().expect("invariant: a map has entries");
            let values = self.kind(&entry.map_entry_value_field().kind());
            return json!({"type": "object", "additionalProperties": values});
        }
        let single = self.kind(&kind);
        if field.is_list() {
            json!({"type": "array", "items": single})
        } else {
            single
        }
    }

    fn kind(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Bool => json!({"type": "boolean"}),
            Kind::String => json!({"type": "string"}),
            Kind::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
            Kind::Float => json!({"type": ["number", "string"], "format": "float"}),
            Kind::Double => json!({"type": ["number", "string"], "format": "double"}),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                json!({"type": "integer", "format": "int32"})
            }
            Kind::Uint32 | Kind::Fixed32 => {
                json!({"type": "integer", "format": "int64", "minimum": 0, "maximum": u32::MAX})
            }
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                json!({"type": ["string", "integer"], "format": "int64"})
            }
            Kind::Uint64 | Kind::Fixed64 => {
                json!({"type": ["string", "integer"], "format": "uint64"})
            }
            Kind::Enum(descriptor) => self.enumeration(descriptor),
            Kind::Message(descriptor) => self.message(descriptor),
        }
    }

    fn enumeration(&mut self, descriptor: &EnumDescriptor) -> Value {
        let name = descriptor.full_name();
        if !self.0.contains_key(name) {
            let values: Vec<_> = descriptor.values().collect();
            let names: Vec<_> = values.iter().map(|value| value.name()).collect();
            let mut text = comment(&descriptor.parent_file(), descriptor.path());
            for value in &values {
                let meaning = comment(&value.parent_file(), value.path());
                if !meaning.is_empty() {
                    text.push_str(&format!("\n\n`{}`: {meaning}", value.name()));
                }
            }
            let schema = described(json!({"type": "string", "enum": names}), text);
            self.0.insert(name.to_owned(), schema);
        }
        json!({"$ref": format!("#/components/schemas/{name}")})
    }

    fn finished(self) -> Map<String, Value> {
        self.0.into_iter().collect()
    }
}

fn described(mut schema: Value, text: String) -> Value {
    if !text.is_empty() {
        schema["description"] = text.into();
    }
    schema
}

fn comment(file: &FileDescriptor, path: &[i32]) -> String {
    let key = (file.name().to_owned(), path.to_owned());
    COMMENTS.get(&key).cloned().unwrap_or_default()
}

fn read_comments() -> HashMap<(String, Vec<i32>), String> {
    let mut comments = HashMap::new();
    for file in proto::pool().files() {
        let Some(info) = &file.file_descriptor_proto().source_code_info else {
            continue;
        };
        for location in &info.location {
            if let Some(text) = &location.leading_comments {
                let key = (file.name().to_owned(), location.path.clone());
                comments.insert(key, tidied(text));
            }
        }
    }
    comments
}

/// Returns a comment without the blanks that follow its slashes; lines of one paragraph are joined.
fn tidied(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end());
    let mut tidy = String::new();
    for line in lines {
        let is_drawing = line.starts_with(' ');
        if line.is_empty() {
            tidy.push_str("\n\n");
        } else if is_drawing {
            if !tidy.ends_with('\n') {
                tidy.push('\n');
            }
            tidy.push_str("    ");
            tidy.push_str(line);
        } else {
            if !tidy.is_empty() && !tidy.ends_with('\n') {
                tidy.push(' ');
            }
            tidy.push_str(line);
        }
    }
    tidy.trim().to_owned()
}
