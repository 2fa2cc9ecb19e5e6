//! People and what they may do.

use kit::fault::Kind;
use kit::testing::TestDatabase;
use proto::fovea::accounts::v1 as wire;
use wire::Role;

use crate::setting::{Setting, new_member, refused};

fn set_role(member: &wire::Member, role: Role) -> wire::SetMemberRoleRequest {
    wire::SetMemberRoleRequest {
        user_id: member.user_id.clone(),
        role: role.into(),
    }
}

fn remove(member: &wire::Member) -> wire::RemoveMemberRequest {
    wire::RemoveMemberRequest {
        user_id: member.user_id.clone(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_has_a_key_and_loses_it_when_they_are_removed() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        let (member, editor) = setting.add(&owner, "bob@example.org", Role::Editor).await;
        assert_eq!((member.role(), editor.role), (Role::Editor, Role::Editor));
        assert_eq!(editor.workspace, owner.workspace);
        let again = owner
            .client
            .clone()
            .add_member(new_member("BOB@example.org", Role::Viewer))
            .await;
        refused(again, Kind::Conflict, "MEMBER_EXISTS");

        owner
            .client
            .clone()
            .remove_member(remove(&member))
            .await
            .unwrap();
        let answer = setting.authenticate(&editor.secret).await;
        refused(answer, Kind::Unauthenticated, "KEY_REVOKED");
        let again = owner.client.clone().remove_member(remove(&member)).await;
        refused(again, Kind::NotFound, "MEMBER_NOT_FOUND");
        let removed = setting
            .told::<wire::MemberRemoved>(owner.workspace, 1)
            .await;
        assert_eq!(removed[0].user_id, member.user_id);
        let revoked = setting.told::<wire::KeyRevoked>(owner.workspace, 1).await;
        assert_eq!(revoked[0].key_id, editor.principal);
        // Who was removed can be asked back.
        setting.add(&owner, "bob@example.org", Role::Viewer).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_makes_a_member_of_more_than_they_are() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        let (_, admin) = setting.add(&owner, "admin@example.org", Role::Admin).await;
        let (bob, editor) = setting.add(&admin, "bob@example.org", Role::Editor).await;
        let mut admin = admin.client;
        let answer = admin
            .add_member(new_member("eve@example.org", Role::Owner))
            .await;
        refused(answer, Kind::Denied, "ROLE_ESCALATION");
        let answer = admin.set_member_role(set_role(&bob, Role::Owner)).await;
        refused(answer, Kind::Denied, "ROLE_ESCALATION");
        for role in [Role::Worker, Role::Operator, Role::Unspecified] {
            let answer = admin.add_member(new_member("eve@example.org", role)).await;
            refused(answer, Kind::Invalid, "ROLE_INVALID");
            let answer = admin.set_member_role(set_role(&bob, role)).await;
            refused(answer, Kind::Invalid, "ROLE_INVALID");
        }
        let mut editor = editor.client;
        let answer = editor
            .add_member(new_member("eve@example.org", Role::Viewer))
            .await;
        refused(answer, Kind::Denied, "ROLE_TOO_LOW");
        let answer = editor.remove_member(remove(&bob)).await;
        refused(answer, Kind::Denied, "ROLE_TOO_LOW");

        // An admin may be made and unmade by an owner, not by another admin.
        let raised = admin
            .set_member_role(set_role(&bob, Role::Admin))
            .await
            .unwrap();
        assert_eq!(raised.into_inner().member.unwrap().role(), Role::Admin);
        let answer = admin.set_member_role(set_role(&bob, Role::Viewer)).await;
        refused(answer, Kind::Denied, "ROLE_ESCALATION");
        let answer = admin.remove_member(remove(&bob)).await;
        refused(answer, Kind::Denied, "ROLE_ESCALATION");
        owner
            .client
            .clone()
            .set_member_role(set_role(&bob, Role::Viewer))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demotion_reaches_the_keys_a_person_has_at_once() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        let (member, admin) = setting.add(&owner, "bob@example.org", Role::Admin).await;
        owner
            .client
            .clone()
            .set_member_role(set_role(&member, Role::Viewer))
            .await
            .unwrap();
        assert_eq!(
            setting.authenticate(&admin.secret).await.unwrap().role(),
            Role::Viewer
        );
        // Their identity of a moment ago still says admin; what it asks for is refused all the same.
        let answer = admin
            .client
            .clone()
            .add_member(new_member("eve@example.org", Role::Viewer))
            .await;
        refused(answer, Kind::Denied, "ROLE_ESCALATION");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_owner_stays() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        let mut client = owner.client.clone();
        let members = client
            .list_members(wire::ListMembersRequest::default())
            .await
            .unwrap();
        let last = members.into_inner().members.remove(0);
        let answer = client.set_member_role(set_role(&last, Role::Admin)).await;
        refused(answer, Kind::Precondition, "LAST_OWNER");
        let answer = client.remove_member(remove(&last)).await;
        refused(answer, Kind::Precondition, "LAST_OWNER");
        client
            .set_member_role(set_role(&last, Role::Owner))
            .await
            .unwrap();

        let (_, second) = setting.add(&owner, "eve@example.org", Role::Owner).await;
        second
            .client
            .clone()
            .remove_member(remove(&last))
            .await
            .unwrap();
        let answer = setting.authenticate(&owner.secret).await;
        refused(answer, Kind::Unauthenticated, "KEY_REVOKED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_owners_that_remove_each_other_at_once_one_stays() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let first = setting.owner_of_new("team-a").await;
        let (second_member, second) = setting.add(&first, "eve@example.org", Role::Owner).await;
        let members = first
            .client
            .clone()
            .list_members(wire::ListMembersRequest::default())
            .await;
        let members = members.unwrap().into_inner().members;
        let first_member = members
            .iter()
            .find(|m| m.user_id != second_member.user_id)
            .unwrap();
        let (mut one, mut other) = (first.client.clone(), second.client.clone());
        let (a, b) = tokio::join!(
            one.remove_member(remove(&second_member)),
            other.remove_member(remove(first_member))
        );
        assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_was_done_is_in_the_audit_log() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        setting.clock().advance(std::time::Duration::from_secs(1));
        let (member, _) = setting.add(&owner, "bob@example.org", Role::Editor).await;
        setting.clock().advance(std::time::Duration::from_secs(1));
        owner
            .client
            .clone()
            .set_member_role(set_role(&member, Role::Viewer))
            .await
            .unwrap();
        setting.clock().advance(std::time::Duration::from_secs(1));
        owner
            .client
            .clone()
            .remove_member(remove(&member))
            .await
            .unwrap();
        let mut entries = Vec::new();
        let mut request = wire::ListAuditEntriesRequest {
            page_size: 3,
            ..Default::default()
        };
        loop {
            let page = owner
                .client
                .clone()
                .list_audit_entries(request.clone())
                .await
                .unwrap();
            let page = page.into_inner();
            entries.extend(page.entries);
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        let actions: Vec<_> = entries.iter().map(|entry| entry.action.as_str()).collect();
        assert_eq!(
            actions,
            [
                "RemoveMember",
                "SetMemberRole",
                "AddMember",
                "CreateWorkspace"
            ]
        );
        assert_eq!(
            (&entries[0].principal, &entries[0].subject),
            (&owner.principal, &member.user_id)
        );
        let (_, viewer) = setting.add(&owner, "eve@example.org", Role::Editor).await;
        let answer = viewer.client.clone().list_audit_entries(request).await;
        refused(answer, Kind::Denied, "ROLE_TOO_LOW");
    }
}
