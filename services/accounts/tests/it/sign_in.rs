//! Secrets, browser sessions, one-time tokens.

use std::time::Duration;

use kit::fault::Kind;
use kit::testing::TestDatabase;
use proto::fovea::accounts::v1 as wire;
use tonic::Status;

use crate::setting::{Setting, Somebody, new_key, refused};

async fn sign_in(
    setting: &Setting,
    key: &str,
    token: &str,
) -> Result<wire::CreateSessionResponse, Status> {
    let request = wire::CreateSessionRequest {
        key_secret: key.to_owned(),
        sign_in_token: token.to_owned(),
    };
    Ok(setting
        .gateway
        .clone()
        .create_session(request)
        .await?
        .into_inner())
}

async fn token(somebody: &Somebody) -> String {
    let request = wire::CreateSignInTokenRequest {};
    somebody
        .client
        .clone()
        .create_sign_in_token(request)
        .await
        .unwrap()
        .into_inner()
        .token
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_nobody_has_is_refused() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let operator = setting.operator().await;
    let mut forged = operator.secret.clone();
    forged.pop();
    for secret in [
        "",
        "hunter2",
        "fv_",
        "fvs_",
        &forged,
        &format!("{}0", operator.secret),
    ] {
        let fault = kit::Fault::from(setting.authenticate(secret).await.unwrap_err());
        assert_eq!(fault.kind, Kind::Unauthenticated, "{secret}");
    }
    let bearer = format!("Bearer {}", operator.secret);
    setting.authenticate(&bearer).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_acts_as_its_key_until_it_ends() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        let session = sign_in(&setting, &owner.secret, "").await.unwrap();
        assert_eq!(session.max_age_seconds, 7 * 24 * 3600);
        let found = setting.as_key(&session.session_secret).await;
        assert_eq!(
            (&found.principal, found.role),
            (&owner.principal, wire::Role::Owner)
        );

        let end = wire::EndSessionRequest {
            session_secret: session.session_secret.clone(),
        };
        setting
            .gateway
            .clone()
            .end_session(end.clone())
            .await
            .unwrap();
        setting.gateway.clone().end_session(end).await.unwrap();
        let answer = setting.authenticate(&session.session_secret).await;
        refused(answer, Kind::Unauthenticated, "SESSION_ENDED");

        let session = sign_in(&setting, &owner.secret, "")
            .await
            .unwrap()
            .session_secret;
        setting.clock().advance(Duration::from_secs(7 * 24 * 3600));
        let answer = setting.authenticate(&session).await;
        refused(answer, Kind::Unauthenticated, "SESSION_ENDED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_its_key() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        let made = owner
            .client
            .clone()
            .create_key(new_key(wire::Role::Viewer))
            .await
            .unwrap();
        let made = made.into_inner();
        let session = sign_in(&setting, &made.secret, "")
            .await
            .unwrap()
            .session_secret;
        let viewer = setting.as_key(&session).await;
        let token = token(&viewer).await;
        let request = wire::RevokeKeyRequest {
            key_id: made.key.unwrap().id,
        };
        owner.client.clone().revoke_key(request).await.unwrap();
        refused(
            setting.authenticate(&session).await,
            Kind::Unauthenticated,
            "SESSION_ENDED",
        );
        refused(
            sign_in(&setting, "", &token).await,
            Kind::Unauthenticated,
            "TOKEN_SPENT",
        );
        refused(
            sign_in(&setting, &made.secret, "").await,
            Kind::Unauthenticated,
            "KEY_REVOKED",
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_token_works_once_and_for_ten_minutes() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let operator = setting.operator().await;
        let once = token(&operator).await;
        let session = sign_in(&setting, "", &once).await.unwrap().session_secret;
        assert_eq!(setting.as_key(&session).await.role, wire::Role::Operator);
        refused(
            sign_in(&setting, "", &once).await,
            Kind::Unauthenticated,
            "TOKEN_SPENT",
        );

        let old = token(&operator).await;
        setting.clock().advance(Duration::from_secs(600));
        refused(
            sign_in(&setting, "", &old).await,
            Kind::Unauthenticated,
            "TOKEN_SPENT",
        );
        let operator = setting.operator().await;
        // A token is for signing in and nothing else.
        let token = token(&operator).await;
        refused(
            setting.authenticate(&token).await,
            Kind::Unauthenticated,
            "SECRET_UNKNOWN",
        );
        let (one, other) =
            tokio::join!(sign_in(&setting, "", &token), sign_in(&setting, "", &token));
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_names_one_credential() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let operator = setting.operator().await;
    let token = token(&operator).await;
    let both = sign_in(&setting, &operator.secret, &token).await;
    refused(both, Kind::Invalid, "CREDENTIAL_AMBIGUOUS");
    refused(
        sign_in(&setting, "", "").await,
        Kind::Invalid,
        "CREDENTIAL_AMBIGUOUS",
    );
    refused(
        sign_in(&setting, "nonsense", "").await,
        Kind::Unauthenticated,
        "SECRET_UNKNOWN",
    );
    refused(
        sign_in(&setting, "", "nonsense").await,
        Kind::Unauthenticated,
        "TOKEN_SPENT",
    );
    let session = sign_in(&setting, "", &token).await.unwrap().session_secret;
    // A session makes no further session: it would outlive its end.
    refused(
        sign_in(&setting, &session, "").await,
        Kind::Unauthenticated,
        "SECRET_UNKNOWN",
    );
}
