//! Workspaces and plans.

use kit::fault::Kind;
use kit::id::Id;
use kit::testing::TestDatabase;
use proto::fovea::accounts::v1 as wire;

use crate::setting::{Setting, new_workspace, refused};

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_is_made_with_its_owner_whose_key_works_at_once() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        assert_eq!(owner.role, wire::Role::Owner);
        let members = owner
            .client
            .clone()
            .list_members(wire::ListMembersRequest::default())
            .await;
        let members = members.unwrap().into_inner().members;
        assert_eq!(
            (members.len(), members[0].email.as_str()),
            (1, "ada@example.org")
        );
        let created = setting
            .told::<wire::WorkspaceCreated>(owner.workspace, 1)
            .await;
        assert_eq!(
            (created[0].slug.as_str(), created[0].plan()),
            ("team-a", wire::Plan::Free)
        );
        assert_eq!(
            setting.told::<wire::MemberAdded>(owner.workspace, 1).await[0].role(),
            wire::Role::Owner
        );
        let keys = setting.told::<wire::KeyCreated>(owner.workspace, 1).await;
        assert_eq!(keys[0].key_id, owner.principal);

        let mut operator = setting.operator().await.client;
        let again = operator.create_workspace(new_workspace("team-a")).await;
        refused(again, Kind::Conflict, "SLUG_TAKEN");
        let request = wire::GetWorkspaceRequest {
            workspace_id: owner.workspace.to_string(),
        };
        let found = setting
            .gateway
            .clone()
            .get_workspace(request)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(found.workspace.unwrap().slug, "team-a");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_of_another_form_is_refused_by_field() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let mut operator = setting.operator().await.client;
    let good = new_workspace("team-a");
    let odd = wire::CreateWorkspaceRequest {
        slug: "Team A".into(),
        ..good.clone()
    };
    let fault = refused(
        operator.create_workspace(odd).await,
        Kind::Invalid,
        "SLUG_INVALID",
    );
    assert_eq!(fault.violations[0].field, "slug");
    let odd = wire::CreateWorkspaceRequest {
        name: " ".into(),
        ..good.clone()
    };
    let fault = refused(
        operator.create_workspace(odd).await,
        Kind::Invalid,
        "NAME_INVALID",
    );
    assert_eq!(fault.violations[0].field, "name");
    let odd = wire::CreateWorkspaceRequest {
        owner_name: String::new(),
        ..good.clone()
    };
    let fault = refused(
        operator.create_workspace(odd).await,
        Kind::Invalid,
        "NAME_INVALID",
    );
    assert_eq!(fault.violations[0].field, "owner_name");
    let odd = wire::CreateWorkspaceRequest {
        owner_email: "nobody".into(),
        ..good.clone()
    };
    let fault = refused(
        operator.create_workspace(odd).await,
        Kind::Invalid,
        "EMAIL_INVALID",
    );
    assert_eq!(fault.violations[0].field, "owner_email");
    let odd = wire::CreateWorkspaceRequest { plan: 99, ..good };
    refused(
        operator.create_workspace(odd).await,
        Kind::Invalid,
        "PLAN_INVALID",
    );
    let all = operator
        .list_workspaces(wire::ListWorkspacesRequest::default())
        .await
        .unwrap();
    assert_eq!(all.into_inner().workspaces.len(), 1, "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_changes_once_and_is_known_at_the_next_sign_in() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let owner = setting.owner_of_new("team-a").await;
        let mut operator = setting.operator().await.client;
        let pro = wire::SetPlanRequest {
            workspace_id: owner.workspace.to_string(),
            plan: wire::Plan::Pro.into(),
        };
        for _ in 0..2 {
            let answer = operator.set_plan(pro.clone()).await.unwrap().into_inner();
            assert_eq!(answer.workspace.unwrap().plan(), wire::Plan::Pro);
        }
        assert_eq!(
            setting.authenticate(&owner.secret).await.unwrap().plan(),
            wire::Plan::Pro
        );
        let back = wire::SetPlanRequest {
            plan: wire::Plan::Free.into(),
            ..pro.clone()
        };
        operator.set_plan(back).await.unwrap();
        let told = setting
            .told::<wire::WorkspacePlanChanged>(owner.workspace, 2)
            .await;
        assert_eq!(
            (told[0].plan(), told[1].plan()),
            (wire::Plan::Pro, wire::Plan::Free)
        );

        let none = wire::SetPlanRequest {
            plan: 0,
            ..pro.clone()
        };
        refused(operator.set_plan(none).await, Kind::Invalid, "PLAN_INVALID");
        let nobody = Id::<kit::id::Workspace>::new(setting.clock().now()).to_string();
        let lost = wire::SetPlanRequest {
            workspace_id: nobody.clone(),
            ..pro
        };
        refused(
            operator.set_plan(lost).await,
            Kind::NotFound,
            "WORKSPACE_NOT_FOUND",
        );
        let lost = wire::GetWorkspaceRequest {
            workspace_id: nobody,
        };
        let answer = setting.gateway.clone().get_workspace(lost).await;
        refused(answer, Kind::NotFound, "WORKSPACE_NOT_FOUND");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workspaces_are_paged_from_the_oldest() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let mut operator = setting.operator().await.client;
    for number in 0..4 {
        setting.clock().advance(std::time::Duration::from_secs(1));
        operator
            .create_workspace(new_workspace(&format!("team-{number}")))
            .await
            .unwrap();
    }
    let mut slugs = Vec::new();
    let mut request = wire::ListWorkspacesRequest {
        page_size: 2,
        ..Default::default()
    };
    loop {
        let page = operator
            .list_workspaces(request.clone())
            .await
            .unwrap()
            .into_inner();
        slugs.extend(page.workspaces.into_iter().map(|workspace| workspace.slug));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(slugs, ["default", "team-0", "team-1", "team-2", "team-3"]);
    let odd = wire::ListWorkspacesRequest {
        page_token: "2".into(),
        ..Default::default()
    };
    refused(
        operator.list_workspaces(odd).await,
        Kind::Invalid,
        "PAGE_TOKEN_INVALID",
    );
    let odd = wire::ListWorkspacesRequest {
        page_size: -1,
        ..Default::default()
    };
    refused(
        operator.list_workspaces(odd).await,
        Kind::Invalid,
        "PAGE_SIZE_INVALID",
    );
}
