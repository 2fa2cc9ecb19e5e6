//! The first start, and those after it.

use std::os::unix::fs::PermissionsExt;

use kit::fault::Kind;
use kit::testing::{TestDatabase, TestFleet, TestNats};
use proto::fovea::accounts::v1 as wire;

use crate::setting::{Setting, new_workspace, refused};

#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_makes_a_workspace_and_an_operators_key_and_later_ones_nothing() {
    for database in TestDatabase::all().await {
        let mut setting = Setting::start(database).await;
        let file = setting.admin_key_file();
        assert_eq!(
            std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let operator = setting.operator().await;
        assert_eq!(operator.role, wire::Role::Operator);
        let answer = operator
            .client
            .clone()
            .get_self(wire::GetSelfRequest {})
            .await
            .unwrap();
        let workspace = answer.into_inner().workspace.unwrap();
        assert_eq!(
            (workspace.slug.as_str(), workspace.plan()),
            ("default", wire::Plan::Free)
        );
        let members = operator
            .client
            .clone()
            .list_members(wire::ListMembersRequest::default())
            .await;
        let members = members.unwrap().into_inner().members;
        assert_eq!((members.len(), members[0].role()), (1, wire::Role::Owner));
        let created = setting
            .told::<wire::WorkspaceCreated>(operator.workspace, 1)
            .await;
        assert_eq!(created[0].workspace_id, workspace.id);

        let before = std::fs::read_to_string(&file).unwrap();
        setting.stop().await;
        setting.run().await;
        assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
        let all = setting
            .gateway
            .clone()
            .list_workspaces(wire::ListWorkspacesRequest::default())
            .await;
        assert_eq!(all.unwrap().into_inner().workspaces.len(), 1);

        // A file that was removed on purpose isn't made anew: the key is still the old one.
        std::fs::remove_file(&file).unwrap();
        setting.stop().await;
        setting.run().await;
        assert!(!file.exists());
        setting.authenticate(before.trim()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_was_killed_after_writing_the_key_is_finished_by_the_next() {
    let nats = TestNats::start().await;
    let fleet = TestFleet::new(&nats);
    let data = &fleet.config().fleet().data;
    let secret = kit::auth::ApiKey::generate().secret.expose().clone();
    std::fs::create_dir_all(data).unwrap();
    std::fs::write(data.join(accounts::ADMIN_KEY_FILE), format!("{secret}\n")).unwrap();
    let context = fleet.context(accounts::NAME).await;
    let stop = context.shutdown().clone();
    let serving = tokio::spawn(accounts::serve(context));
    let caller = fleet.context("gateway").await;
    let gateway = crate::setting::Client::new(caller.channel("accounts").unwrap());
    let found = kit::testing::wait_for("the key works", || async {
        let request = wire::AuthenticateRequest {
            secret: secret.clone(),
        };
        gateway.clone().authenticate(request).await.ok()
    })
    .await;
    assert_eq!(found.into_inner().role(), wire::Role::Operator);
    stop.cancel();
    serving.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_default_plan_stops_the_start_and_names_the_key() {
    let nats = TestNats::start().await;
    let fleet = TestFleet::with(&nats, "sqlite", "[accounts]\ndefault_plan = 'gold'\n");
    let fault = accounts::serve(fleet.context(accounts::NAME).await)
        .await
        .unwrap_err();
    assert!(fault.is("CONFIGURATION_INVALID"), "{fault}");
    assert!(fault.message.contains("accounts.default_plan"), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_operator_may_do_what_is_the_operators() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let mut owner = setting.owner_of_new("team-a").await.client;
    let answer = owner.create_workspace(new_workspace("team-b")).await;
    refused(answer, Kind::Denied, "ROLE_TOO_LOW");
    let answer = owner
        .list_workspaces(wire::ListWorkspacesRequest::default())
        .await;
    refused(answer, Kind::Denied, "ROLE_TOO_LOW");
    let answer = owner.set_plan(wire::SetPlanRequest::default()).await;
    refused(answer, Kind::Denied, "ROLE_TOO_LOW");
    let answer = owner
        .get_workspace(wire::GetWorkspaceRequest::default())
        .await;
    refused(answer, Kind::Denied, "ROLE_TOO_LOW");
    let answer = owner
        .authenticate(wire::AuthenticateRequest::default())
        .await;
    refused(answer, Kind::Denied, "ROLE_TOO_LOW");
    let answer = owner
        .create_session(wire::CreateSessionRequest::default())
        .await;
    refused(answer, Kind::Denied, "ROLE_TOO_LOW");
    let answer = owner.end_session(wire::EndSessionRequest::default()).await;
    refused(answer, Kind::Denied, "ROLE_TOO_LOW");
}
