//! A workspace can neither see nor infer another.

use kit::fault::{Fault, Kind};
use kit::id::{Id, Key, User};
use kit::testing::TestDatabase;
use proto::fovea::accounts::v1 as wire;
use tonic::Status;

use crate::setting::{Setting, refused};

#[tokio::test(flavor = "multi_thread")]
async fn another_workspaces_people_and_keys_look_like_none() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let ours = setting.owner_of_new("team-a").await;
        let theirs = setting.owner_of_new("team-b").await;
        let (member, key) = setting
            .add(&theirs, "bob@example.org", wire::Role::Editor)
            .await;
        let mut client = ours.client.clone();

        let members = client
            .list_members(wire::ListMembersRequest::default())
            .await
            .unwrap();
        assert_eq!(members.into_inner().members.len(), 1);
        let keys = client
            .list_keys(wire::ListKeysRequest::default())
            .await
            .unwrap();
        assert_eq!(keys.into_inner().keys.len(), 1);
        let entries = client
            .list_audit_entries(wire::ListAuditEntriesRequest::default())
            .await;
        let entries = entries.unwrap().into_inner().entries;
        assert!(
            entries.iter().all(|entry| entry.subject != member.user_id),
            "{entries:?}"
        );

        let now = setting.clock().now();
        for user_id in [member.user_id.clone(), Id::<User>::new(now).to_string()] {
            let role = wire::Role::Viewer.into();
            let request = wire::SetMemberRoleRequest {
                user_id: user_id.clone(),
                role,
            };
            same_as_absent(
                client.set_member_role(request).await,
                "MEMBER_NOT_FOUND",
                &user_id,
            );
            let request = wire::RemoveMemberRequest {
                user_id: user_id.clone(),
            };
            same_as_absent(
                client.remove_member(request).await,
                "MEMBER_NOT_FOUND",
                &user_id,
            );
        }
        for key_id in [key.principal.clone(), Id::<Key>::new(now).to_string()] {
            let request = wire::RevokeKeyRequest {
                key_id: key_id.clone(),
            };
            same_as_absent(client.revoke_key(request).await, "KEY_NOT_FOUND", &key_id);
        }
        // The same address in both is two people: neither learns of the other.
        let (mine, _) = setting
            .add(&ours, "bob@example.org", wire::Role::Viewer)
            .await;
        assert_ne!(mine.user_id, member.user_id);
        assert_eq!(
            setting.authenticate(&key.secret).await.unwrap().role(),
            wire::Role::Editor
        );
    }
}

/// The refusal says the id that was asked for and nothing else.
fn same_as_absent<T: std::fmt::Debug>(answer: Result<T, Status>, reason: &str, id: &str) {
    let fault: Fault = refused(answer, Kind::NotFound, reason);
    assert_eq!(fault.metadata.len(), 1);
    assert!(fault.message.contains(id));
    assert!(fault.violations.is_empty());
}
