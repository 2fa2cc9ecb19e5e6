//! The RPCs: who may call, proto in, command or query, proto out.

use kit::auth::{Caller, Role, caller};
use kit::config::Secret;
use kit::fault::Fault;
use kit::id::{Entity, Id, Workspace as WorkspaceId};
use proto::fovea::accounts::v1 as wire;
use proto::fovea::accounts::v1::account_service_server::AccountService;
use tonic::{Request, Response, Status};

use crate::commands::{Accounts, NewWorkspace, SignIn, plan_to_wire, role_to_wire};
use crate::domain::{Key, Member, Plan, Workspace};
use crate::error::Error;
use crate::store::{self, AuditEntry};

/// Lines of a page where the caller doesn't say.
const PAGE_SIZE_DEFAULT: i64 = 50;
/// The most lines of a page.
const PAGE_SIZE_MAX: i64 = 1000;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl AccountService for Accounts {
    async fn authenticate(
        &self,
        request: Request<wire::AuthenticateRequest>,
    ) -> Answer<wire::AuthenticateResponse> {
        caller(&request)?.require_service()?;
        let found = Accounts::authenticate(self, &request.into_inner().secret).await?;
        answer(wire::AuthenticateResponse {
            workspace_id: found.workspace.to_string(),
            principal: found.key.to_string(),
            role: role_to_wire(found.role).into(),
            plan: plan_to_wire(found.plan).into(),
        })
    }

    async fn create_session(
        &self,
        request: Request<wire::CreateSessionRequest>,
    ) -> Answer<wire::CreateSessionResponse> {
        caller(&request)?.require_service()?;
        let request = request.into_inner();
        let sign_in = match (request.key_secret.as_str(), request.sign_in_token.as_str()) {
            (key, "") if !key.is_empty() => SignIn::Key(request.key_secret),
            ("", token) if !token.is_empty() => SignIn::Token(request.sign_in_token),
            _ => return Err(Error::CredentialAmbiguous.into()),
        };
        let (secret, holds_for) = Accounts::create_session(self, &sign_in).await?;
        answer(wire::CreateSessionResponse {
            session_secret: reveal(&secret),
            max_age_seconds: i32::try_from(holds_for.as_secs()).unwrap_or(i32::MAX),
        })
    }

    async fn end_session(
        &self,
        request: Request<wire::EndSessionRequest>,
    ) -> Answer<wire::EndSessionResponse> {
        caller(&request)?.require_service()?;
        Accounts::end_session(self, &request.into_inner().session_secret).await?;
        answer(wire::EndSessionResponse {})
    }

    async fn create_sign_in_token(
        &self,
        request: Request<wire::CreateSignInTokenRequest>,
    ) -> Answer<wire::CreateSignInTokenResponse> {
        let token = Accounts::create_sign_in_token(self, &caller(&request)?).await?;
        answer(wire::CreateSignInTokenResponse {
            token: reveal(&token),
        })
    }

    async fn get_self(
        &self,
        request: Request<wire::GetSelfRequest>,
    ) -> Answer<wire::GetSelfResponse> {
        let caller = caller(&request)?;
        let id = workspace_of(&caller)?;
        let found = store::workspace(self.store.read(), id).await?;
        let workspace = found.ok_or(Error::WorkspaceNotFound(id))?;
        answer(wire::GetSelfResponse {
            workspace: Some(workspace_to_wire(&workspace)),
            principal: caller.principal().to_string(),
            role: role_to_wire(caller.party().role).into(),
        })
    }

    async fn create_workspace(
        &self,
        request: Request<wire::CreateWorkspaceRequest>,
    ) -> Answer<wire::CreateWorkspaceResponse> {
        let caller = caller(&request)?;
        caller.require_operator()?;
        let request = request.into_inner();
        let plan = plan_of(request.plan)?;
        let command = NewWorkspace {
            slug: request.slug,
            name: request.name,
            plan,
            owner_email: request.owner_email,
            owner_name: request.owner_name,
        };
        let (workspace, made) = Accounts::create_workspace(self, &caller, &command).await?;
        answer(wire::CreateWorkspaceResponse {
            workspace: Some(workspace_to_wire(&workspace)),
            key: Some(key_to_wire(&made.key)),
            key_secret: reveal(&made.secret),
        })
    }

    async fn list_workspaces(
        &self,
        request: Request<wire::ListWorkspacesRequest>,
    ) -> Answer<wire::ListWorkspacesResponse> {
        caller(&request)?.require_operator()?;
        let request = request.into_inner();
        let (size, after) = (
            page_size(request.page_size)?,
            page_token(&request.page_token)?,
        );
        let rows = store::workspaces(self.store.read(), after.unwrap_or(FIRST), size + 1).await?;
        let (rows, next_page_token) = page(rows, size, |workspace| workspace.id);
        answer(wire::ListWorkspacesResponse {
            workspaces: rows.iter().map(workspace_to_wire).collect(),
            next_page_token,
        })
    }

    async fn set_plan(
        &self,
        request: Request<wire::SetPlanRequest>,
    ) -> Answer<wire::SetPlanResponse> {
        let caller = caller(&request)?;
        caller.require_operator()?;
        let request = request.into_inner();
        let id = Id::parse_field("workspace_id", &request.workspace_id)?;
        let plan = plan_of(request.plan)?.ok_or(Error::PlanInvalid)?;
        let workspace = Accounts::set_plan(self, &caller, id, plan).await?;
        answer(wire::SetPlanResponse {
            workspace: Some(workspace_to_wire(&workspace)),
        })
    }

    async fn get_workspace(
        &self,
        request: Request<wire::GetWorkspaceRequest>,
    ) -> Answer<wire::GetWorkspaceResponse> {
        caller(&request)?.require_service()?;
        let id = Id::parse_field("workspace_id", &request.into_inner().workspace_id)?;
        let found = store::workspace(self.store.read(), id).await?;
        let workspace = found.ok_or(Error::WorkspaceNotFound(id))?;
        answer(wire::GetWorkspaceResponse {
            workspace: Some(workspace_to_wire(&workspace)),
        })
    }

    async fn add_member(
        &self,
        request: Request<wire::AddMemberRequest>,
    ) -> Answer<wire::AddMemberResponse> {
        let caller = caller(&request)?;
        caller.require(Role::Admin)?;
        let request = request.into_inner();
        let role = role_of(request.role)?;
        let (email, name) = (&request.email, &request.name);
        let (member, made) = Accounts::add_member(self, &caller, email, name, role).await?;
        answer(wire::AddMemberResponse {
            member: Some(member_to_wire(&member)),
            key_secret: reveal(&made.secret),
        })
    }

    async fn list_members(
        &self,
        request: Request<wire::ListMembersRequest>,
    ) -> Answer<wire::ListMembersResponse> {
        let workspace = workspace_of(&caller(&request)?)?;
        let request = request.into_inner();
        let (size, after) = (
            page_size(request.page_size)?,
            page_token(&request.page_token)?,
        );
        let after = after.unwrap_or(Id::from_bytes([0; 16]));
        let rows = store::members(self.store.read(), workspace, after, size + 1).await?;
        let (rows, next_page_token) = page(rows, size, |member| member.user);
        answer(wire::ListMembersResponse {
            members: rows.iter().map(member_to_wire).collect(),
            next_page_token,
        })
    }

    async fn set_member_role(
        &self,
        request: Request<wire::SetMemberRoleRequest>,
    ) -> Answer<wire::SetMemberRoleResponse> {
        let caller = caller(&request)?;
        caller.require(Role::Admin)?;
        let request = request.into_inner();
        let user = Id::parse_field("user_id", &request.user_id)?;
        let role = role_of(request.role)?;
        let member = Accounts::set_member_role(self, &caller, user, role).await?;
        answer(wire::SetMemberRoleResponse {
            member: Some(member_to_wire(&member)),
        })
    }

    async fn remove_member(
        &self,
        request: Request<wire::RemoveMemberRequest>,
    ) -> Answer<wire::RemoveMemberResponse> {
        let caller = caller(&request)?;
        caller.require(Role::Admin)?;
        let user = Id::parse_field("user_id", &request.into_inner().user_id)?;
        Accounts::remove_member(self, &caller, user).await?;
        answer(wire::RemoveMemberResponse {})
    }

    async fn create_key(
        &self,
        request: Request<wire::CreateKeyRequest>,
    ) -> Answer<wire::CreateKeyResponse> {
        let caller = caller(&request)?;
        caller.require(Role::Admin)?;
        let request = request.into_inner();
        let role = role_of(request.role)?;
        let made = Accounts::create_key(self, &caller, &request.name, role).await?;
        answer(wire::CreateKeyResponse {
            key: Some(key_to_wire(&made.key)),
            secret: reveal(&made.secret),
        })
    }

    async fn list_keys(
        &self,
        request: Request<wire::ListKeysRequest>,
    ) -> Answer<wire::ListKeysResponse> {
        let caller = caller(&request)?;
        caller.require(Role::Admin)?;
        let workspace = caller.workspace()?;
        let request = request.into_inner();
        let (size, before) = (
            page_size(request.page_size)?,
            page_token(&request.page_token)?,
        );
        let before = before.unwrap_or(Id::from_bytes([0xff; 16]));
        let rows = store::keys(self.store.read(), workspace, before, size + 1).await?;
        let (rows, next_page_token) = page(rows, size, |key| key.id);
        answer(wire::ListKeysResponse {
            keys: rows.iter().map(key_to_wire).collect(),
            next_page_token,
        })
    }

    async fn revoke_key(
        &self,
        request: Request<wire::RevokeKeyRequest>,
    ) -> Answer<wire::RevokeKeyResponse> {
        let caller = caller(&request)?;
        caller.require(Role::Admin)?;
        let id = Id::parse_field("key_id", &request.into_inner().key_id)?;
        let key = Accounts::revoke_key(self, &caller, id).await?;
        answer(wire::RevokeKeyResponse {
            key: Some(key_to_wire(&key)),
        })
    }

    async fn list_audit_entries(
        &self,
        request: Request<wire::ListAuditEntriesRequest>,
    ) -> Answer<wire::ListAuditEntriesResponse> {
        let caller = caller(&request)?;
        caller.require(Role::Admin)?;
        let workspace = caller.workspace()?;
        let request = request.into_inner();
        let (size, before) = (
            page_size(request.page_size)?,
            page_token(&request.page_token)?,
        );
        let before = before.unwrap_or(Id::from_bytes([0xff; 16]));
        let rows = store::audit_entries(self.store.read(), workspace, before, size + 1).await?;
        let (rows, next_page_token) = page(rows, size, |entry| entry.id);
        answer(wire::ListAuditEntriesResponse {
            entries: rows.into_iter().map(audit_to_wire).collect(),
            next_page_token,
        })
    }
}

const FIRST: Id<WorkspaceId> = Id::from_bytes([0; 16]);

fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

/// Returns the workspace of a caller who may look into it.
fn workspace_of(caller: &Caller) -> Result<Id<WorkspaceId>, Fault> {
    caller.require(Role::Viewer)?;
    caller.workspace()
}

/// The one place where a secret leaves: in the answer to who may have it.
fn reveal(secret: &Secret<String>) -> String {
    secret.expose().clone()
}

fn page_size(asked: i32) -> Result<i64, Fault> {
    match i64::from(asked) {
        0 => Ok(PAGE_SIZE_DEFAULT),
        asked if asked > 0 => Ok(asked.min(PAGE_SIZE_MAX)),
        _ => {
            let rule = "must not be below zero";
            Err(Fault::invalid_field(
                "PAGE_SIZE_INVALID",
                "accounts",
                "page_size",
                rule,
            ))
        }
    }
}

fn page_token<E: Entity>(text: &str) -> Result<Option<Id<E>>, Fault> {
    Id::parse_optional("page_token", text).map_err(|_| {
        let rule = "must come from the page before";
        Fault::invalid_field("PAGE_TOKEN_INVALID", "accounts", "page_token", rule)
    })
}

/// Cuts rows to a page; the row beyond it says whether there is another.
fn page<T, E: Entity>(mut rows: Vec<T>, size: i64, id: impl Fn(&T) -> Id<E>) -> (Vec<T>, String) {
    let has_more = rows.len() as i64 > size;
    rows.truncate(size as usize);
    let last = rows.last().filter(|_| has_more);
    let token = last.map(|row| id(row).to_string()).unwrap_or_default();
    (rows, token)
}

fn role_of(number: i32) -> Result<Role, Error> {
    match wire::Role::try_from(number) {
        Ok(wire::Role::Viewer) => Ok(Role::Viewer),
        Ok(wire::Role::Editor) => Ok(Role::Editor),
        Ok(wire::Role::Admin) => Ok(Role::Admin),
        Ok(wire::Role::Owner) => Ok(Role::Owner),
        Ok(wire::Role::Worker) => Ok(Role::Worker),
        Ok(wire::Role::Operator) => Ok(Role::Operator),
        Ok(wire::Role::Unspecified) | Err(_) => Err(Error::RoleInvalid {
            rule: "must be set to one that is known".to_owned(),
        }),
    }
}

fn plan_of(number: i32) -> Result<Option<Plan>, Error> {
    match wire::Plan::try_from(number) {
        Ok(wire::Plan::Unspecified) => Ok(None),
        Ok(wire::Plan::Free) => Ok(Some(Plan::Free)),
        Ok(wire::Plan::Pro) => Ok(Some(Plan::Pro)),
        Ok(wire::Plan::Enterprise) => Ok(Some(Plan::Enterprise)),
        Err(_) => Err(Error::PlanInvalid),
    }
}

fn workspace_to_wire(workspace: &Workspace) -> wire::Workspace {
    wire::Workspace {
        id: workspace.id.to_string(),
        slug: workspace.slug.clone(),
        name: workspace.name.clone(),
        plan: plan_to_wire(workspace.plan).into(),
        created_at: Some(workspace.created_at.into()),
    }
}

fn member_to_wire(member: &Member) -> wire::Member {
    wire::Member {
        user_id: member.user.to_string(),
        email: member.email.clone(),
        name: member.name.clone(),
        role: role_to_wire(member.role).into(),
        joined_at: Some(member.joined_at.into()),
    }
}

fn key_to_wire(key: &Key) -> wire::ApiKey {
    wire::ApiKey {
        id: key.id.to_string(),
        name: key.name.clone(),
        role: role_to_wire(key.role).into(),
        hint: key.hint.clone(),
        created_at: Some(key.created_at.into()),
        revoked_at: key.revoked_at.map(Into::into),
        last_used_at: key.last_used_at.map(Into::into),
    }
}

fn audit_to_wire(entry: AuditEntry) -> wire::AuditEntry {
    wire::AuditEntry {
        at: Some(entry.at.into()),
        principal: entry.principal,
        action: entry.action,
        subject: entry.subject,
    }
}
