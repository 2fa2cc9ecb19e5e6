//! The page, the explanations of refusals, and what every answer tells a browser.

use http::StatusCode;

use crate::support::World;

#[tokio::test]
async fn the_page_and_its_parts_are_served_under_a_strict_policy() {
    let world = World::start().await;
    let page = world.get("/", "").await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let policy = page.header("content-security-policy");
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    for (name, kind) in [
        ("app.js", "text/javascript; charset=utf-8"),
        ("chart.js", "text/javascript; charset=utf-8"),
        ("theme.css", "text/css; charset=utf-8"),
        ("mark.svg", "image/svg+xml"),
    ] {
        let path = format!("/assets/{name}");
        let asset = world.get(&path, "").await;
        assert_eq!(
            (asset.status, asset.header("content-type").as_str()),
            (StatusCode::OK, kind)
        );
        let mut request = world.request("GET", &path, "", "");
        let etag = asset.headers["etag"].clone();
        request.headers_mut().insert("if-none-match", etag);
        assert_eq!(world.send(request).await.status, StatusCode::NOT_MODIFIED);
    }
    let text = page.text();
    let has_inline =
        text.contains("style=") || text.contains("onclick") || text.contains("<script>");
    assert!(!has_inline, "inline code would be blocked by the policy");
    assert_eq!(
        world.get("/assets/secret.txt", "").await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn every_type_of_a_problem_leads_to_its_explanation() {
    let world = World::start().await;
    let problem = world.get("/v1/runs", "").await.json();
    let address = problem["type"].as_str().unwrap();
    assert_eq!(address, "/errors/credentials-missing");
    let markdown = world.get(address, "").await;
    assert_eq!(
        markdown.header("content-type"),
        "text/markdown; charset=utf-8"
    );
    assert!(
        markdown
            .text()
            .starts_with("# CREDENTIALS_MISSING (gateway)"),
        "{}",
        markdown.text()
    );
    let mut request = world.request("GET", address, "", "");
    request
        .headers_mut()
        .insert("accept", "text/html".parse().unwrap());
    let page = world.send(request).await;
    assert!(
        page.text().contains("<code>fovea login</code>"),
        "{}",
        page.text()
    );
    assert_eq!(
        world.get("/errors/no-such-thing", "").await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn the_door_says_that_it_is_open() {
    let world = World::start().await;
    let answer = world.get("/healthz", "").await;
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (StatusCode::OK, "ok\n")
    );
}

#[tokio::test]
async fn more_requests_than_the_limit_are_refused_at_once() {
    let section = "[gateway]\nrequests_in_flight = 1";
    let world = World::answering(section, |call| match call.name.as_str() {
        "GetRun" => Err(crate::support::hang()),
        _ => Ok(vec![call.empty()]),
    })
    .await;
    let slow = world.get("/v1/runs/run_1", "fv_viewer");
    let begun = kit::testing::wait_for("the slow call has its place", || async {
        world.calls("GetRun").pop()
    });
    tokio::select! {
        _ = slow => panic!("the slow call hangs"),
        _ = async {
            begun.await;
            let refused = world.get("/v1/runs", "fv_viewer").await;
            assert_eq!(refused.reason(), "OVERLOADED");
            assert_eq!(refused.header("retry-after"), "1");
        } => {}
    }
}
