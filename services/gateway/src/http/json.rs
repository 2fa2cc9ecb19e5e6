//! JSON and query strings into messages, by descriptor.
//!
//! The walk is our own because its refusals must name the place: each is a JSON pointer and a rule,
//! and all of a request's are found at once. Names are the proto's own; well-known types are left
//! to `prost-reflect`.

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage,
    SerializeOptions, Value,
};
use serde_json::Value as Json;

/// Something in a request that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Where it is.
    pub place: Place,
    /// The rule.
    pub rule: String,
}

/// A place in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A JSON pointer into the body.
    Pointer(String),
    /// A query parameter.
    Parameter(String),
}

/// Returns the message as JSON with the proto's own names; fields at their default are written out,
/// absent messages are not.
pub fn written(message: &DynamicMessage) -> Result<Vec<u8>, serde_json::Error> {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .skip_default_fields(false);
    let mut bytes = Vec::with_capacity(256);
    message.serialize_with_options(&mut serde_json::Serializer::new(&mut bytes), &options)?;
    Ok(bytes)
}

/// Reads a body into a message.
pub fn read(descriptor: &MessageDescriptor, json: &Json) -> Result<DynamicMessage, Vec<Refusal>> {
    let mut reader = Reader::default();
    let message = reader.message(descriptor, json);
    if reader.refusals.is_empty() {
        Ok(message)
    } else {
        Err(reader.refusals)
    }
}

/// Sets fields from query parameters: scalars, enums, and lists of them by repetition.
pub fn read_query(
    message: &mut DynamicMessage,
    pairs: &[(String, String)],
    taken: &[&str],
) -> Result<(), Vec<Refusal>> {
    let mut refusals = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (name, text) in pairs {
        let mut refuse = |rule: String| {
            let place = Place::Parameter(name.clone());
            refusals.push(Refusal { place, rule });
        };
        let descriptor = message.descriptor();
        let Some(field) = descriptor.get_field_by_name(name) else {
            refuse(format!(
                "is unknown; expected {}",
                names(&descriptor, taken)
            ));
            continue;
        };
        if taken.contains(&name.as_str()) {
            refuse("is given by the path".to_owned());
            continue;
        }
        if field.is_map() || matches!(field.kind(), Kind::Message(_)) {
            refuse("can't be given as a query parameter".to_owned());
            continue;
        }
        if !field.is_list() && seen.contains(&name.as_str()) {
            refuse("is given twice".to_owned());
            continue;
        }
        seen.push(name);
        match scalar_from_text(&field.kind(), text) {
            Ok(value) if field.is_list() => {
                let list = message.get_field_mut(&field).as_list_mut();
                list.expect("invariant: a repeated field holds a list")
                    .push(value);
            }
            Ok(value) => message.set_field(&field, value),
            Err(rule) => refuse(rule),
        }
    }
    if refusals.is_empty() {
        Ok(())
    } else {
        Err(refusals)
    }
}

fn names(descriptor: &MessageDescriptor, taken: &[&str]) -> String {
    let mut names: Vec<String> = descriptor
        .fields()
        .filter(|field| !taken.contains(&field.name()))
        .filter(|field| !field.is_map() && !matches!(field.kind(), Kind::Message(_)))
        .map(|field| format!("'{}'", field.name()))
        .collect();
    match names.pop() {
        None => "no parameters".to_owned(),
        Some(last) if names.is_empty() => last,
        Some(last) => format!("{} or {last}", names.join(", ")),
    }
}

#[derive(Default)]
struct Reader {
    refusals: Vec<Refusal>,
    steps: Vec<String>,
}

impl Reader {
    fn refuse(&mut self, rule: impl Into<String>) {
        let pointer = self.steps.iter().fold(String::new(), |path, step| {
            path + "/" + &step.replace('~', "~0").replace('/', "~1")
        });
        self.refusals.push(Refusal {
            place: Place::Pointer(pointer),
            rule: rule.into(),
        });
    }

    fn within<T>(&mut self, step: impl Into<String>, read: impl FnOnce(&mut Self) -> T) -> T {
        self.steps.push(step.into());
        let value = read(self);
        self.steps.pop();
        value
    }

    fn message(&mut self, descriptor: &MessageDescriptor, json: &Json) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        let Json::Object(entries) = json else {
            self.refuse(format!("must be an object, not {}", sort_of(json)));
            return message;
        };
        for (name, value) in entries {
            self.within(name, |reader| {
                let Some(field) = descriptor.get_field_by_name(name) else {
                    reader.refuse(unknown_field(descriptor, name));
                    return;
                };
                let rival = field.containing_oneof().and_then(|oneof| {
                    oneof
                        .fields()
                        .find(|other| other != &field && message.has_field(other))
                });
                if let Some(rival) = rival.filter(|_| !value.is_null()) {
                    reader.refuse(format!("can't be set together with '{}'", rival.name()));
                } else if let Some(value) = reader.field(&field, value) {
                    message.set_field(&field, value);
                }
            });
        }
        message
    }

    /// Returns nothing for `null`, which stands for an unset field, and for what is refused.
    fn field(&mut self, field: &FieldDescriptor, json: &Json) -> Option<Value> {
        if json.is_null() {
            return None;
        }
        if field.is_map() {
            return self.map(field, json);
        }
        if !field.is_list() {
            return self.single(&field.kind(), json);
        }
        let Json::Array(items) = json else {
            self.refuse(format!("must be an array, not {}", sort_of(json)));
            return None;
        };
        let mut list = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let value = self.within(index.to_string(), |reader| {
                reader.single(&field.kind(), item)
            });
            list.extend(value);
        }
        Some(Value::List(list))
    }

    fn map(&mut self, field: &FieldDescriptor, json: &Json) -> Option<Value> {
        let Json::Object(entries) = json else {
            self.refuse(format!("must be an object, not {}", sort_of(json)));
            return None;
        };
        let Kind::Message(entry) = field.kind() else {
            return None;
        };
        let (key_kind, value_kind) = (
            entry.map_entry_key_field().kind(),
            entry.map_entry_value_field().kind(),
        );
        let mut map = std::collections::HashMap::with_capacity(entries.len());
        for (name, item) in entries {
            self.within(name, |reader| match map_key(&key_kind, name) {
                Err(rule) => reader.refuse(rule),
                Ok(key) => {
                    if let Some(value) = reader.single(&value_kind, item) {
                        map.insert(key, value);
                    }
                }
            });
        }
        Some(Value::Map(map))
    }

    fn single(&mut self, kind: &Kind, json: &Json) -> Option<Value> {
        let read = match kind {
            Kind::Message(descriptor) if descriptor.package_name() == "google.protobuf" => {
                well_known(descriptor, json)
            }
            Kind::Message(descriptor) => {
                return Some(Value::Message(self.message(descriptor, json)));
            }
            _ => scalar(kind, json),
        };
        read.map_err(|rule| self.refuse(rule)).ok()
    }
}

fn unknown_field(descriptor: &MessageDescriptor, name: &str) -> String {
    let by_json_name = descriptor.get_field_by_json_name(name);
    match by_json_name {
        Some(field) => format!("is no field; write '{}'", field.name()),
        None => format!("is no field of {}", descriptor.name()),
    }
}

fn well_known(descriptor: &MessageDescriptor, json: &Json) -> Result<Value, String> {
    let example = match descriptor.name() {
        "Timestamp" => "an instant such as \"2026-11-30T16:00:00Z\"",
        "Duration" => "a time span in seconds such as \"90s\" or \"0.5s\"",
        _ => descriptor.name(),
    };
    DynamicMessage::deserialize(descriptor.clone(), json)
        .map(Value::Message)
        .map_err(|_| format!("must be {example}"))
}

fn scalar(kind: &Kind, json: &Json) -> Result<Value, String> {
    let refuse = || Err(format!("must be {}, not {}", words(kind), sort_of(json)));
    match (kind, json) {
        (Kind::Bool, Json::Bool(value)) => Ok(Value::Bool(*value)),
        (Kind::Bool, _) => refuse(),
        (Kind::String, Json::String(text)) => Ok(Value::String(text.clone())),
        (Kind::String, _) => refuse(),
        (Kind::Bytes | Kind::Enum(_), Json::String(text)) => scalar_from_text(kind, text),
        (Kind::Enum(_), Json::Number(number)) => scalar_from_text(kind, &number.to_string()),
        // Written as `1e3` or `2.0`, a number is still whole.
        (kind, Json::Number(number)) if is_integer(kind) => match number.as_f64() {
            Some(value) if !number.is_i64() && !number.is_u64() && value.fract() == 0.0 => {
                scalar_from_text(kind, &format!("{value:.0}"))
            }
            _ => scalar_from_text(kind, &number.to_string()),
        },
        (Kind::Float | Kind::Double, Json::Number(number)) => {
            scalar_from_text(kind, &number.to_string())
        }
        (kind, Json::String(text)) if *kind != Kind::Bool => scalar_from_text(kind, text),
        _ => refuse(),
    }
}

/// Reads a scalar as query parameters and 64-bit JSON strings write it.
pub fn scalar_from_text(kind: &Kind, text: &str) -> Result<Value, String> {
    let shown: String = text.chars().take(40).collect();
    let refuse = || format!("'{shown}' is not {}", words(kind));
    match kind {
        Kind::Bool => text.parse().map(Value::Bool).map_err(|_| refuse()),
        Kind::String => Ok(Value::String(text.to_owned())),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
            text.parse().map(Value::I32).map_err(|_| refuse())
        }
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
            text.parse().map(Value::I64).map_err(|_| refuse())
        }
        Kind::Uint32 | Kind::Fixed32 => text.parse().map(Value::U32).map_err(|_| refuse()),
        Kind::Uint64 | Kind::Fixed64 => text.parse().map(Value::U64).map_err(|_| refuse()),
        Kind::Float => float(text)
            .map(|value| Value::F32(value as f32))
            .ok_or_else(refuse),
        Kind::Double => float(text).map(Value::F64).ok_or_else(refuse),
        Kind::Bytes => base64(text).ok_or_else(refuse),
        Kind::Enum(descriptor) => {
            let by_name = descriptor
                .get_value_by_name(text)
                .map(|value| value.number());
            let by_number = || {
                let number = text.parse::<i32>().ok()?;
                descriptor.get_value(number).map(|value| value.number())
            };
            let number = by_name.or_else(by_number);
            number.map(Value::EnumNumber).ok_or_else(refuse)
        }
        Kind::Message(_) => Err(refuse()),
    }
}

/// Refuses what only Rust takes for a number, such as `inf`.
fn float(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => text.parse().ok().filter(|value: &f64| value.is_finite()),
    }
}

fn base64(text: &str) -> Option<Value> {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    let bytes = STANDARD
        .decode(text)
        .or_else(|_| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')));
    bytes.ok().map(|bytes| Value::Bytes(bytes.into()))
}

fn map_key(kind: &Kind, text: &str) -> Result<MapKey, String> {
    scalar_from_text(kind, text)?
        .into_map_key()
        .ok_or_else(|| format!("'{text}' can't be a key"))
}

const fn is_integer(kind: &Kind) -> bool {
    !matches!(
        kind,
        Kind::Bool
            | Kind::String
            | Kind::Bytes
            | Kind::Float
            | Kind::Double
            | Kind::Enum(_)
            | Kind::Message(_)
    )
}

fn words(kind: &Kind) -> String {
    match kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::String => "a text".to_owned(),
        Kind::Bytes => "base64".to_owned(),
        Kind::Float | Kind::Double => "a number".to_owned(),
        Kind::Uint32 | Kind::Fixed32 => "a whole number from 0 to 4294967295".to_owned(),
        Kind::Uint64 | Kind::Fixed64 => "a whole number, not below 0".to_owned(),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => "a whole number of 32 bits".to_owned(),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "a whole number of 64 bits".to_owned(),
        Kind::Enum(descriptor) => {
            let names = descriptor.values().filter(|value| value.number() != 0);
            let names: Vec<_> = names.map(|value| value.name().to_owned()).collect();
            format!("one of {}", names.join(", "))
        }
        Kind::Message(descriptor) => descriptor.name().to_owned(),
    }
}

const fn sort_of(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a truth value",
        Json::Number(_) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn descriptor(name: &str) -> MessageDescriptor {
        proto::pool().get_message_by_name(name).unwrap()
    }

    fn refusals(name: &str, json: &Json) -> Vec<(String, String)> {
        let refusals = read(&descriptor(name), json).unwrap_err();
        refusals
            .into_iter()
            .map(|refusal| match refusal.place {
                Place::Pointer(pointer) => (pointer, refusal.rule),
                Place::Parameter(name) => panic!("{name}"),
            })
            .collect()
    }

    #[test]
    fn a_body_becomes_the_message_it_describes() {
        let json = json!({
            "version_id": "dsv_1", "cost_cap_micros": "9007199254740993", "idempotency_key": null,
            "spec": {"model": "yolo11n", "epochs": 3, "seed": 7, "arguments": {"lr0": "0.01"}},
        });
        let message = read(&descriptor("fovea.runs.v1.StartRunRequest"), &json).unwrap();
        let typed: proto::fovea::runs::v1::StartRunRequest = message.transcode_to().unwrap();
        let spec = typed.spec.unwrap();
        assert_eq!(typed.cost_cap_micros, 9_007_199_254_740_993);
        assert_eq!(
            (spec.model.as_str(), spec.epochs, spec.seed),
            ("yolo11n", 3, 7)
        );
        assert_eq!(spec.arguments["lr0"], "0.01");
    }

    #[test]
    fn every_refusal_names_its_place_and_all_are_found_at_once() {
        let json = json!({
            "verson_id": "x", "gpuType": "cpu", "cost_cap_micros": 1.5,
            "spec": {"epochs": "many", "seed": -1, "arguments": {"a/b": 3}},
        });
        let mut found = refusals("fovea.runs.v1.StartRunRequest", &json);
        found.sort();
        let expected = [
            ("/cost_cap_micros", "'1.5' is not a whole number of 64 bits"),
            ("/gpuType", "is no field; write 'gpu_type'"),
            ("/spec/arguments/a~1b", "must be a text, not a number"),
            ("/spec/epochs", "'many' is not a whole number of 32 bits"),
            (
                "/spec/seed",
                "'-1' is not a whole number from 0 to 4294967295",
            ),
            ("/verson_id", "is no field of StartRunRequest"),
        ];
        assert_eq!(found, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn lists_durations_and_enums_are_checked_too() {
        let json =
            json!({"run_id": "r", "fence": 1, "committed": "soon", "artifacts": [{"kind": 1}]});
        let mut found = refusals("fovea.runs.v1.FinishAttemptRequest", &json);
        found.sort();
        assert_eq!(found[0].0, "/artifacts/0/kind");
        assert_eq!(found[1].0, "/committed");
        let found = refusals(
            "fovea.accounts.v1.CreateKeyRequest",
            &json!({"role": "BOSS"}),
        );
        assert!(found[0].1.contains("ROLE_VIEWER"), "{found:?}");
        assert_eq!(refusals("fovea.runs.v1.GetRunRequest", &json!([]))[0].0, "");
    }

    #[test]
    fn query_parameters_fill_scalars_lists_and_enums() {
        let pairs = |text: &str| {
            let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
            pairs
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .collect::<Vec<_>>()
        };
        let mut message = DynamicMessage::new(descriptor("fovea.runs.v1.CompareRunsRequest"));
        read_query(&mut message, &pairs("run_ids=a&run_ids=b"), &[]).unwrap();
        assert_eq!(written(&message).unwrap(), br#"{"run_ids":["a","b"]}"#);

        let mut message = DynamicMessage::new(descriptor("fovea.datasets.v1.ListImagesRequest"));
        read_query(
            &mut message,
            &pairs("split=SPLIT_VAL&page_size=5"),
            &["version_id"],
        )
        .unwrap();
        let query = pairs("page_size=x&version_id=v&size=1&page_size=5&page_size=6");
        let refusals = read_query(&mut message, &query, &["version_id"]).unwrap_err();
        let rules: Vec<_> = refusals.into_iter().map(|refusal| refusal.rule).collect();
        assert_eq!(
            rules,
            [
                "'x' is not a whole number of 32 bits",
                "is given by the path",
                "is unknown; expected 'split', 'page_size' or 'page_token'",
                "is given twice",
                "is given twice",
            ]
        );
    }
}
