//! A workspace can neither see nor infer another's data: every RPC of the descriptors, every route, URL and blob.

use std::collections::BTreeMap;

use prost_reflect::{Kind, MethodDescriptor};
use proto::Access;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::fleet::Fleet;

/// Invariant of `ARCHITECTURE.md`: a workspace can neither see nor infer another's data.
#[test]
fn a_second_workspace_sees_nothing_of_the_first() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let fleet = Fleet::start();
    fleet.json(&["billing", "top-up", "5"]);
    let import = fleet.import_sample("secret-shapes", 24, 64);
    fleet.wait_for_worker("secret-shapes");
    let trained = fleet.run(&[
        "train",
        "--dataset",
        "secret-shapes",
        "--epochs",
        "1",
        "--imgsz",
        "64",
        "--batch",
        "8",
        "--name",
        "secret-run",
        "--project",
        "secret-project",
    ]);
    assert!(
        trained.status.success(),
        "{}",
        String::from_utf8_lossy(&trained.stderr)
    );
    let run = fleet.json(&["runs", "show", "secret-run"]);
    let endpoint = fleet.json(&["deploy", "last", "--name", "secret-endpoint"]);
    let images = fleet.json(&["datasets", "images", import["version_id"].as_str().unwrap()]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let ids: BTreeMap<&str, String> = BTreeMap::from([
        ("dataset_id", text(&import["dataset_id"])),
        ("version_id", text(&import["version_id"])),
        ("import_id", text(&import["id"])),
        ("run_id", text(&run["id"])),
        ("run_ids", text(&run["id"])),
        ("project_id", text(&run["project_id"])),
        ("model_id", text(&run["model_id"])),
        ("endpoint_id", text(&endpoint["id"])),
        ("image_id", text(&images["images"][0]["id"])),
    ]);
    let key = std::fs::read_to_string(fleet.data().join("admin.key")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(look_in_from_outside(&fleet, key.trim(), &ids, &images));
}

async fn look_in_from_outside(
    fleet: &Fleet,
    operator: &str,
    ids: &BTreeMap<&str, String>,
    images: &Value,
) {
    let http = Client::new();
    let made = http
        .post(format!("{}/v1/workspaces", fleet.url))
        .bearer_auth(operator)
        .json(&json!({
            "slug": "strangers", "name": "Strangers", "plan": "PLAN_PRO",
            "owner_email": "owner@strangers.example", "owner_name": "Owner",
        }))
        .send()
        .await
        .unwrap();
    assert!(made.status().is_success(), "{}", made.text().await.unwrap());
    let stranger = made.json::<Value>().await.unwrap()["key_secret"]
        .as_str()
        .unwrap()
        .to_owned();

    // Everything that names the first workspace's things must not come back from any call.
    let mut secrets: Vec<String> = ids.values().cloned().collect();
    secrets.extend(
        [
            "secret-shapes",
            "secret-run",
            "secret-project",
            "secret-endpoint",
        ]
        .map(String::from),
    );
    secrets.push(images["images"][0]["digest"].as_str().unwrap().to_owned());

    let mut looked = 0;
    for method in proto::pool()
        .services()
        .flat_map(|service| service.methods().collect::<Vec<_>>())
    {
        let Some((verb, path, body)) = request(&method, ids) else {
            continue;
        };
        looked += 1;
        let url = format!("{}{path}", fleet.url);
        let mut request = http.request(verb, &url).bearer_auth(&stranger);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        let name = method.full_name();
        match proto::access(&method) {
            Access::Public => {
                assert!(!status.is_server_error(), "{name}: {status} {text}");
                for secret in &secrets {
                    // A refusal repeats the id that was asked for and nothing else.
                    let is_repeated =
                        status == StatusCode::NOT_FOUND && path_or_body_names(&url, ids, secret);
                    let is_told = text.contains(secret.as_str()) && !is_repeated;
                    assert!(!is_told, "{name} tells {secret}: {status} {text}");
                }
                // A list that is narrowed to another's thing is empty; the thing itself isn't there.
                let place = path.split('?').next().unwrap_or_default();
                let names_a_thing = ids.values().any(|id| place.contains(id.as_str()));
                if names_a_thing {
                    assert!(status == StatusCode::NOT_FOUND, "{name}: {status} {text}");
                }
            }
            Access::Operator | Access::Worker | Access::Service | Access::Unspecified => {
                assert!(status.is_client_error(), "{name}: {status} {text}");
            }
        }
    }
    assert!(looked > 30, "only {looked} RPCs have a route");

    for (path, name) in [
        (format!("/v1/runs/{}/live", ids["run_id"]), "live"),
        (
            images["images"][0]["url"]
                .as_str()
                .unwrap()
                .split('?')
                .next()
                .unwrap()
                .to_owned(),
            "blob",
        ),
    ] {
        let answer = http
            .get(format!("{}{path}", fleet.url))
            .bearer_auth(&stranger)
            .send()
            .await
            .unwrap();
        assert!(
            answer.status().is_client_error(),
            "{name}: {}",
            answer.status()
        );
    }
    // Facts: only the stranger's own.
    let events = http
        .get(format!("{}/v1/events", fleet.url))
        .bearer_auth(&stranger)
        .header("last-event-id", "0")
        .send()
        .await
        .unwrap();
    assert!(events.status().is_success());
    let heard = hear(events).await;
    for secret in &secrets {
        assert!(!heard.contains(secret.as_str()), "an event tells {secret}");
    }
    for path in [
        "/v1/datasets",
        "/v1/runs",
        "/v1/models",
        "/v1/endpoints",
        "/v1/billing/balance",
    ] {
        let answer = http
            .get(format!("{}{path}", fleet.url))
            .send()
            .await
            .unwrap();
        assert_eq!(
            answer.status(),
            StatusCode::UNAUTHORIZED,
            "{path} without a key"
        );
    }
}

/// Reads what an event stream says within a moment.
async fn hear(mut events: reqwest::Response) -> String {
    let mut heard = Vec::new();
    let listen = async {
        while let Ok(Some(chunk)) = events.chunk().await {
            heard.extend_from_slice(&chunk);
        }
    };
    let _ = tokio::time::timeout(std::time::Duration::from_secs(2), listen).await;
    String::from_utf8_lossy(&heard).into_owned()
}

fn path_or_body_names(url: &str, ids: &BTreeMap<&str, String>, secret: &str) -> bool {
    url.contains(secret) || ids.values().any(|id| id == secret)
}

/// Returns the HTTP request of an RPC, with every id set to one of the first workspace's things.
fn request(
    method: &MethodDescriptor,
    ids: &BTreeMap<&str, String>,
) -> Option<(Method, String, Option<Value>)> {
    let extension = proto::pool().get_extension_by_name("google.api.http")?;
    let options = method.options();
    if !options.has_extension(&extension) {
        return None;
    }
    let rule = options.get_extension(&extension).into_owned();
    let rule = rule.as_message()?;
    let pattern = ["get", "put", "post", "delete", "patch"]
        .into_iter()
        .find_map(|verb| {
            let value = rule.get_field_by_name(verb)?;
            let path = value.as_str()?.to_owned();
            (!path.is_empty()).then(|| {
                (
                    Method::from_bytes(verb.to_uppercase().as_bytes()).unwrap(),
                    path,
                )
            })
        })?;
    let (verb, mut path) = pattern;
    let mut body = Map::new();
    let mut query = Vec::new();
    for field in method.input().fields() {
        let name = field.name().to_owned();
        let Some(id) = ids.get(name.as_str()) else {
            if field.kind() == Kind::String && path.contains(&format!("{{{name}}}")) {
                // Members, keys and workspaces: any id that isn't the stranger's.
                path = path.replace(&format!("{{{name}}}"), "usr_00000000000000000000000000");
            }
            continue;
        };
        let placeholder = format!("{{{name}}}");
        if path.contains(&placeholder) {
            path = path.replace(&placeholder, id);
        } else if verb == Method::GET || verb == Method::DELETE {
            query.push(format!("{name}={id}"));
        } else if field.is_list() {
            body.insert(name, json!([id]));
        } else {
            body.insert(name, json!(id));
        }
    }
    if !query.is_empty() {
        path = format!("{path}?{}", query.join("&"));
    }
    let has_body = verb != Method::GET && verb != Method::DELETE;
    Some((verb, path, has_body.then_some(Value::Object(body))))
}
