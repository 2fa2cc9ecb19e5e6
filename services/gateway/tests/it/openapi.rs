//! The OpenAPI document: nothing public changes unseen.

use std::collections::BTreeSet;

use gateway::contract::Contract;
use serde_json::Value;

use crate::support::World;

#[tokio::test]
async fn the_document_is_served_and_is_the_recorded_one() {
    let world = World::start().await;
    let answer = world.get("/v1/openapi.json", "").await;
    let document = answer.json();
    insta::with_settings!({ sort_maps => true, prepend_module_to_snapshot => false }, {
        insta::assert_json_snapshot!("openapi", document);
    });
}

#[test]
fn every_rest_call_of_the_contract_is_described() {
    let document = gateway::http::openapi::document();
    for method in Contract::get().methods() {
        for binding in &method.bindings {
            let verb = binding.verb.as_str().to_ascii_lowercase();
            let operation = &document["paths"][binding.template.text()][&verb];
            assert!(
                operation["summary"].as_str().is_some_and(|s| s.len() > 10),
                "{}",
                method.path
            );
            assert!(operation["responses"]["200"].is_object(), "{}", method.path);
        }
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_operation_has_its_own_name() {
    let document = gateway::http::openapi::document();
    let mut references = BTreeSet::new();
    collect(document, &mut references);
    assert!(references.len() > 50);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(
            document.pointer(pointer).is_some_and(|v| !v.is_null()),
            "{reference}"
        );
    }
    let mut names = BTreeSet::new();
    for (path, verbs) in document["paths"].as_object().unwrap() {
        for (verb, operation) in verbs.as_object().unwrap() {
            if verb == "parameters" {
                continue;
            }
            let name = operation["operationId"].as_str();
            let name = name.unwrap_or_else(|| panic!("{verb} {path} has no name"));
            assert!(names.insert(name.to_owned()), "{name} is there twice");
        }
    }
}

fn collect(value: &Value, references: &mut BTreeSet<String>) {
    match value {
        Value::Object(entries) => {
            if let Some(reference) = entries.get("$ref").and_then(Value::as_str) {
                references.insert(reference.to_owned());
            }
            entries
                .values()
                .for_each(|value| collect(value, references));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
        _ => {}
    }
}
