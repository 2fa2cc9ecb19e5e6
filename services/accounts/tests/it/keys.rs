//! Keys.

use std::time::Duration;

use kit::fault::Kind;
use kit::id::{Id, Key};
use kit::testing::{TestDatabase, wait_for};
use proto::fovea::accounts::v1 as wire;
use wire::Role;

use crate::setting::{Setting, Somebody, new_key, refused};

async fn list(somebody: &Somebody) -> Vec<wire::ApiKey> {
    let request = wire::ListKeysRequest::default();
    somebody
        .client
        .clone()
        .list_keys(request)
        .await
        .unwrap()
        .into_inner()
        .keys
}

fn revoke(key_id: &str) -> wire::RevokeKeyRequest {
    wire::RevokeKeyRequest {
        key_id: key_id.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_shown_once_and_a_revoked_key_is_worthless() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        setting.clock().advance(Duration::from_secs(1));
        let made = owner
            .client
            .clone()
            .create_key(new_key(Role::Editor))
            .await
            .unwrap()
            .into_inner();
        let key = made.key.unwrap();
        assert!(made.secret.starts_with(&key.hint) && key.hint.len() < 10);
        let listed = list(&owner).await;
        assert_eq!(listed.len(), 2);
        assert_eq!(listed[0], key, "the newest first");
        assert!(!format!("{listed:?}").contains(&made.secret));
        assert_eq!(
            setting.authenticate(&made.secret).await.unwrap().role(),
            Role::Editor
        );

        let first = owner
            .client
            .clone()
            .revoke_key(revoke(&key.id))
            .await
            .unwrap()
            .into_inner();
        setting.clock().advance(Duration::from_secs(1));
        let again = owner
            .client
            .clone()
            .revoke_key(revoke(&key.id))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(first, again, "revoking twice is fine");
        refused(
            setting.authenticate(&made.secret).await,
            Kind::Unauthenticated,
            "KEY_REVOKED",
        );
        let told = setting.told::<wire::KeyRevoked>(owner.workspace, 1).await;
        assert_eq!(told[0].key_id, key.id);
        let nobody = Id::<Key>::new(setting.clock().now()).to_string();
        let answer = owner.client.clone().revoke_key(revoke(&nobody)).await;
        refused(answer, Kind::NotFound, "KEY_NOT_FOUND");
        let unnamed = wire::CreateKeyRequest {
            name: String::new(),
            ..new_key(Role::Viewer)
        };
        let answer = owner.client.clone().create_key(unnamed).await;
        refused(answer, Kind::Invalid, "NAME_INVALID");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_worth_no_more_than_its_maker() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        let (_, admin) = setting.add(&owner, "bob@example.org", Role::Admin).await;
        for role in [Role::Owner, Role::Operator, Role::Worker] {
            let answer = admin.client.clone().create_key(new_key(role)).await;
            refused(answer, Kind::Denied, "ROLE_ESCALATION");
        }
        for role in [Role::Operator, Role::Worker] {
            let answer = owner.client.clone().create_key(new_key(role)).await;
            refused(answer, Kind::Denied, "ROLE_ESCALATION");
        }
        let answer = admin
            .client
            .clone()
            .create_key(new_key(Role::Unspecified))
            .await;
        refused(answer, Kind::Invalid, "ROLE_INVALID");
        admin
            .client
            .clone()
            .create_key(new_key(Role::Admin))
            .await
            .unwrap();
        let answer = admin
            .client
            .clone()
            .revoke_key(revoke(&owner.principal))
            .await;
        refused(answer, Kind::Denied, "ROLE_ESCALATION");
        let (_, editor) = setting.add(&owner, "eve@example.org", Role::Editor).await;
        let answer = editor
            .client
            .clone()
            .create_key(new_key(Role::Viewer))
            .await;
        refused(answer, Kind::Denied, "ROLE_TOO_LOW");
        let answer = editor
            .client
            .clone()
            .list_keys(wire::ListKeysRequest::default())
            .await;
        refused(answer, Kind::Denied, "ROLE_TOO_LOW");

        let operator = setting.operator().await;
        let made = operator
            .client
            .clone()
            .create_key(new_key(Role::Worker))
            .await
            .unwrap();
        let worker = setting.as_key(&made.into_inner().secret).await;
        assert_eq!(worker.role, Role::Worker);
        let answer = worker
            .client
            .clone()
            .get_self(wire::GetSelfRequest {})
            .await;
        refused(answer, Kind::Denied, "ROLE_TOO_LOW");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_key_that_can_manage_or_operate_stays() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        let answer = owner
            .client
            .clone()
            .revoke_key(revoke(&owner.principal))
            .await;
        refused(answer, Kind::Precondition, "LAST_OWNER_KEY");
        let made = owner
            .client
            .clone()
            .create_key(new_key(Role::Owner))
            .await
            .unwrap();
        owner
            .client
            .clone()
            .revoke_key(revoke(&owner.principal))
            .await
            .unwrap();
        // The revoked key's identity of a moment ago is worth nothing here.
        let answer = owner.client.clone().create_key(new_key(Role::Owner)).await;
        refused(answer, Kind::Unauthenticated, "KEY_REVOKED");
        setting
            .authenticate(&made.into_inner().secret)
            .await
            .unwrap();

        let operator = setting.operator().await;
        operator
            .client
            .clone()
            .create_key(new_key(Role::Owner))
            .await
            .unwrap();
        let answer = operator
            .client
            .clone()
            .revoke_key(revoke(&operator.principal))
            .await;
        refused(answer, Kind::Precondition, "LAST_OPERATOR_KEY");
        operator
            .client
            .clone()
            .create_key(new_key(Role::Operator))
            .await
            .unwrap();
        operator
            .client
            .clone()
            .revoke_key(revoke(&operator.principal))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_minute_of_last_use_is_written_without_a_write_for_each_call() {
    for database in TestDatabase::all().await {
        let mut setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        for _ in 0..20 {
            setting.authenticate(&owner.secret).await.unwrap();
        }
        assert_eq!(
            list(&owner).await[0].last_used_at,
            None,
            "nothing is written yet"
        );
        let minute = setting.clock().now();
        wait_for("the minute is written", || async {
            setting.clock().advance(Duration::from_secs(1));
            let used = list(&owner).await[0].last_used_at?;
            (used.seconds - used.seconds % 60 == used.seconds).then_some(())
        })
        .await;
        setting.clock().advance(Duration::from_secs(300));
        setting.authenticate(&owner.secret).await.unwrap();
        // Also when the service is told to stop before the next write.
        setting.stop().await;
        setting.run().await;
        let used = list(&owner).await[0].last_used_at.unwrap();
        assert!(used.seconds * 1_000_000 >= minute.micros() + 240_000_000);
    }
}
