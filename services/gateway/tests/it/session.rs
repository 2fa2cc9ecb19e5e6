//! Sessions of browsers: made, used, ended, and useless to other sites; and wrong keys, counted.

use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;

use crate::support::{Answer, World};

fn with(
    mut request: Request<Full<bytes::Bytes>>,
    headers: &[(&'static str, &str)],
) -> Request<Full<bytes::Bytes>> {
    for (name, value) in headers {
        request
            .headers_mut()
            .insert(*name, HeaderValue::from_str(value).unwrap());
    }
    request
}

async fn sign_in(world: &World, body: &str) -> Answer {
    world.post("/v1/session", "", body).await
}

#[tokio::test]
async fn a_key_becomes_a_cookie_that_scripts_and_other_sites_cannot_use() {
    let world = World::start().await;
    let answer = sign_in(&world, r#"{"key": "fv_owner"}"#).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text());
    assert_eq!(
        answer.header("set-cookie"),
        "fovea_session=fs_session; Path=/; HttpOnly; SameSite=Lax; Max-Age=60"
    );
    let cookie = ("cookie", "theme=dark; fovea_session=fs_session");
    let own = format!("http://{}", world.address);
    let get =
        |headers: &[(&'static str, &str)]| with(world.request("GET", "/v1/runs", "", ""), headers);
    let post = |headers: &[(&'static str, &str)]| {
        with(world.request("POST", "/v1/runs", "", "{}"), headers)
    };

    assert_eq!(world.send(get(&[cookie])).await.status, StatusCode::OK);
    let answer = world.send(post(&[cookie])).await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (403, "CROSS_ORIGIN")
    );
    let foreign = ("origin", "https://evil.example");
    assert_eq!(
        world.send(post(&[cookie, foreign])).await.reason(),
        "CROSS_ORIGIN"
    );
    assert!(world.calls("StartRun").is_empty());
    let answer = world.send(post(&[cookie, ("origin", &own)])).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let answer = world.send(post(&[cookie, ("x-fovea-request", "1")])).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let answer = world.send_h2(post(&[cookie, ("origin", &own)])).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
}

#[tokio::test]
async fn a_session_ends_when_its_browser_says_so() {
    let world = World::start().await;
    let own = format!("http://{}", world.address);
    let headers = [
        ("cookie", "fovea_session=fs_session"),
        ("origin", own.as_str()),
    ];
    let request = world.request("DELETE", "/v1/session", "", "");
    let answer = world.send(with(request, &headers)).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    let cookie = answer.header("set-cookie");
    assert!(
        cookie.starts_with("fovea_session=; ") && cookie.contains("Max-Age=0"),
        "{cookie}"
    );
    assert_eq!(
        world.calls("EndSession")[0].text("session_secret"),
        "fs_session"
    );
}

#[tokio::test]
async fn a_link_signs_in_once_and_goes_to_the_page() {
    let world = World::start().await;
    let answer = world.get("/sign-in?token=token", "").await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER);
    assert_eq!(answer.header("location"), "/");
    assert!(
        answer
            .header("set-cookie")
            .starts_with("fovea_session=fs_session; ")
    );
    let answer = world.get("/sign-in?token=used", "").await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    assert!(answer.text().contains("link-refused"));
}

#[tokio::test]
async fn a_cookie_is_secure_where_people_come_by_https() {
    let section = "[gateway]\ntrusted_proxies = ['127.0.0.1']";
    let world = World::answering(section, |call| Ok(vec![call.empty()])).await;
    let request = world.request("POST", "/v1/session", "", r#"{"key": "fv_owner"}"#);
    let answer = world
        .send(with(request, &[("x-forwarded-proto", "https")]))
        .await;
    assert!(answer.header("set-cookie").ends_with("; Secure"));
}

#[tokio::test]
async fn a_sign_in_needs_either_a_key_or_a_token_and_a_right_one() {
    let world = World::start().await;
    for body in ["{}", r#"{"key": "a", "token": "b"}"#] {
        assert_eq!(sign_in(&world, body).await.reason(), "REQUEST_INVALID");
    }
    assert_eq!(
        sign_in(&world, r#"{"password": "x"}"#).await.reason(),
        "BODY_MALFORMED"
    );
    assert_eq!(
        sign_in(&world, r#"{"key": "fv_wrong"}"#).await.reason(),
        "CREDENTIALS_INVALID"
    );
    let request = world.request("POST", "/v1/session", "", r#"{"key": "fv_owner"}"#);
    let answer = world
        .send(with(request, &[("origin", "https://evil.example")]))
        .await;
    assert_eq!(answer.reason(), "CROSS_ORIGIN");
}

#[tokio::test]
async fn an_address_that_guesses_is_stopped_and_its_neighbours_are_not() {
    let section = "[gateway]\nfailures_per_minute = 3\ntrusted_proxies = ['127.0.0.1']";
    let world = World::answering(section, |call| Ok(vec![call.empty()])).await;
    let from = |address: &str, key: &str| {
        let request = world.request("GET", "/v1/self", key, "");
        world.send(with(request, &[("x-forwarded-for", address)]))
    };
    for key in ["fv_1", "fv_2", "fv_3"] {
        assert_eq!(from("192.0.2.1", key).await.reason(), "CREDENTIALS_INVALID");
    }
    let asked = world.calls("Authenticate").len();
    let answer = from("192.0.2.1", "fv_4").await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (429, "TOO_MANY_FAILURES")
    );
    assert_eq!(answer.header("retry-after"), "60");
    assert_eq!(world.calls("Authenticate").len(), asked);
    assert_eq!(from("192.0.2.2", "fv_owner").await.status, StatusCode::OK);
    // What the client itself wrote before the proxy's entry is not believed.
    assert_eq!(
        from("192.0.2.9, 192.0.2.1", "fv_5").await.status.as_u16(),
        429
    );
}

#[tokio::test]
async fn a_right_key_is_asked_for_once_and_a_wrong_one_too() {
    let world = World::start().await;
    for _ in 0..5 {
        assert_eq!(
            world.get("/v1/self", "fv_owner").await.status,
            StatusCode::OK
        );
        assert_eq!(
            world.get("/v1/self", "fv_wrong").await.status,
            StatusCode::UNAUTHORIZED
        );
    }
    assert_eq!(world.calls("Authenticate").len(), 2);
    let request = with(
        world.request("GET", "/v1/self", "", ""),
        &[("authorization", "Basic x")],
    );
    assert_eq!(world.send(request).await.reason(), "CREDENTIALS_MALFORMED");
}
