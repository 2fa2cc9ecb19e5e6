//! A workspace can neither see nor infer another's data: every RPC by every road, enumerated from
//! the descriptors.

use gateway::contract::Contract;
use http::StatusCode;
use kit::auth::{Identity, Principal, Role};
use proto::Access;
use tonic::Code;

use crate::support::{KEYS, World, workspace};

/// Calls an RPC with an empty message by gRPC and returns its code.
async fn grpc_code(world: &World, path: &str, key: &str, identity: Option<&str>) -> Code {
    let mut request = world.request("POST", path, key, vec![0; 5]);
    let headers = request.headers_mut();
    headers.insert("content-type", "application/grpc".parse().unwrap());
    headers.insert("te", "trailers".parse().unwrap());
    if let Some(token) = identity {
        headers.insert(kit::auth::HEADER, token.parse().unwrap());
    }
    let answer = world.send_h2(request).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}");
    match answer.headers.get("grpc-status") {
        Some(code) => Code::from_bytes(code.as_bytes()),
        // The code of a call that a service has answered comes in the trailers.
        None => Code::Ok,
    }
}

#[tokio::test]
async fn every_rpc_without_credentials_is_unauthenticated() {
    let world = World::start().await;
    for method in Contract::get().methods() {
        for key in ["", "fv_wrong"] {
            let code = grpc_code(&world, &method.path, key, None).await;
            // The limit of wrong keys answers in the end; nothing else ever does.
            let is_refused = code == Code::Unauthenticated
                || (key == "fv_wrong" && code == Code::ResourceExhausted);
            assert!(is_refused, "{} {key}: {code:?}", method.path);
        }
        for binding in &method.bindings {
            let path = binding.template.text().replace(['{', '}'], "");
            let request = world.request(binding.verb.as_str(), &path, "", "");
            let answer = world.send(request).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(answer.reason(), "CREDENTIALS_MISSING");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
    }
    let reached = world.calls.lock().unwrap();
    assert!(
        reached.iter().all(|call| call.name == "Authenticate"),
        "{reached:?}"
    );
}

#[tokio::test]
async fn every_rpc_that_is_not_public_is_refused_to_a_plain_key() {
    let world = World::start().await;
    for method in Contract::get().methods() {
        if method.access == Access::Public {
            continue;
        }
        for key in ["fv_viewer", "fv_owner"] {
            let code = grpc_code(&world, &method.path, key, None).await;
            assert_eq!(code, Code::PermissionDenied, "{} {key}", method.path);
            for binding in &method.bindings {
                let path = binding.template.text().replace(['{', '}'], "");
                let request = world.request(binding.verb.as_str(), &path, key, "");
                let answer = world.send(request).await;
                assert_eq!(answer.reason(), "NOT_FOR_CALLER", "{path}");
            }
        }
    }
    for method in Contract::get().methods() {
        let name = method.descriptor.name();
        let reached = world.calls(name);
        assert!(reached.is_empty() || name == "Authenticate", "{name}");
    }
}

#[tokio::test]
async fn a_service_rpc_is_forwarded_to_nobody() {
    let world = World::start().await;
    let methods = Contract::get().methods().iter();
    for method in methods.filter(|method| method.access == Access::Service) {
        for (key, ..) in KEYS {
            let code = grpc_code(&world, &method.path, key, None).await;
            assert_eq!(code, Code::PermissionDenied, "{} {key}", method.path);
        }
    }
}

#[tokio::test]
async fn every_call_that_gets_through_carries_the_callers_own_workspace_and_role() {
    let world = World::start().await;
    let signer = world.gateway.signer();
    let forged = signer.sign(&Identity::service("billing"));
    let stolen = Identity::member(workspace(2), Principal::Service("x".into()), Role::Operator);
    for method in Contract::get().methods() {
        let (key, role, number) = match method.access {
            Access::Public => ("fv_other", Role::Owner, 2),
            Access::Worker => ("fv_worker", Role::Worker, 1),
            Access::Operator => ("fv_operator", Role::Operator, 1),
            Access::Service | Access::Unspecified => continue,
        };
        if method.owner == gateway::NAME {
            continue;
        }
        for token in [&forged, &signer.sign(&stolen)] {
            world.forget();
            let code = grpc_code(&world, &method.path, key, Some(token)).await;
            assert_eq!(code, Code::Ok, "{}", method.path);
            let calls = world.calls(method.descriptor.name());
            assert_eq!(calls.len(), 1, "{}", method.path);
            let identity = &calls[0].identity;
            assert_eq!(
                identity.workspace,
                Some(workspace(number)),
                "{}",
                method.path
            );
            assert_eq!(identity.role, role, "{}", method.path);
            assert_eq!(identity.on_behalf_of, None);
            for header in ["authorization", "cookie", kit::auth::HEADER] {
                assert!(!calls[0].headers.contains_key(header), "{header}");
            }
        }
    }
}

#[tokio::test]
async fn a_role_below_the_one_an_rpc_needs_is_refused_with_that_role() {
    let world = World::start().await;
    let answer = world.post("/v1/runs", "fv_viewer", "{}").await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert_eq!(answer.reason(), "ROLE_TOO_LOW");
    assert_eq!(answer.json()["metadata"]["role"], "editor");
    let answer = world.post("/v1/runs", "fv_editor", "{}").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
}

#[tokio::test]
async fn unknown_methods_are_unimplemented_and_unknown_routes_not_found() {
    let world = World::start().await;
    for path in [
        "/fovea.runs.v1.RunService/Fly",
        "/fovea.flights.v1.FlightService/Fly",
    ] {
        let code = grpc_code(&world, path, "fv_owner", None).await;
        assert_eq!(code, Code::Unimplemented, "{path}");
    }
    let answer = world.get("/v1/flights", "fv_owner").await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (StatusCode::NOT_FOUND, "ROUTE_UNKNOWN")
    );
    let answer = world
        .send(world.request("PUT", "/v1/runs", "fv_owner", ""))
        .await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.header("allow"), "GET, POST");
}
