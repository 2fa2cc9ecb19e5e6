//! Workspaces and their plans.

use kit::auth::{ApiKey, Caller, Principal, Role};
use kit::id::{Id, Workspace as WorkspaceId};
use kit::store::Tx;
use proto::fovea::accounts::v1 as wire;

use super::{Accounts, NewKey, make_key, plan_to_wire, role_to_wire};
use crate::domain::{Member, Plan, Workspace, check_slug, clean_email, clean_name};
use crate::error::Error;
use crate::store;

/// Describes a workspace to be made.
#[derive(Debug, Clone)]
pub struct NewWorkspace {
    pub slug: String,
    pub name: String,
    /// None for the configured default.
    pub plan: Option<Plan>,
    pub owner_email: String,
    pub owner_name: String,
}

impl Accounts {
    /// Makes a workspace with its first owner and a key for them.
    pub async fn create_workspace(
        &self,
        caller: &Caller,
        command: &NewWorkspace,
    ) -> Result<(Workspace, NewKey), Error> {
        let plan = command.plan.unwrap_or(self.default_plan);
        self.store
            .write(|tx| async move {
                let secret = ApiKey::generate();
                let principal = caller.principal();
                make_workspace(&tx, principal, command, plan, Role::Owner, secret).await
            })
            .await
    }

    /// Moves a workspace to another plan.
    pub async fn set_plan(
        &self,
        caller: &Caller,
        id: Id<WorkspaceId>,
        plan: Plan,
    ) -> Result<Workspace, Error> {
        self.store
            .write(|tx| async move {
                let found = store::workspace(&tx, id).await?;
                let mut workspace = found.ok_or(Error::WorkspaceNotFound(id))?;
                if workspace.plan != plan {
                    workspace.plan = plan;
                    store::set_plan(&tx, id, plan).await?;
                    store::audit(&tx, id, caller.principal(), "SetPlan", &id).await?;
                    let fact = wire::WorkspacePlanChanged {
                        workspace_id: id.to_string(),
                        plan: plan_to_wire(plan).into(),
                    };
                    tx.tell(Some(id), id, &fact).await?;
                }
                Ok(workspace)
            })
            .await
    }
}

/// Makes a workspace, its owner, and a key of this role with this secret.
pub(super) async fn make_workspace(
    tx: &Tx,
    principal: &Principal,
    command: &NewWorkspace,
    plan: Plan,
    key_role: Role,
    secret: ApiKey,
) -> Result<(Workspace, NewKey), Error> {
    check_slug(&command.slug)?;
    let workspace = Workspace {
        id: Id::new(tx.now()),
        slug: command.slug.clone(),
        name: clean_name("name", &command.name)?,
        plan,
        created_at: tx.now(),
    };
    let owner = Member {
        user: Id::new(tx.now()),
        workspace: workspace.id,
        email: clean_email("owner_email", &command.owner_email)?,
        name: clean_name("owner_name", &command.owner_name)?,
        role: Role::Owner,
        joined_at: tx.now(),
    };
    store::add_workspace(tx, &workspace)
        .await
        .map_err(|error| {
            if error.is_duplicate() {
                Error::SlugTaken(command.slug.clone())
            } else {
                error.into()
            }
        })?;
    let created = wire::WorkspaceCreated {
        workspace_id: workspace.id.to_string(),
        slug: workspace.slug.clone(),
        plan: plan_to_wire(plan).into(),
    };
    tx.tell(Some(workspace.id), workspace.id, &created).await?;
    store::add_member(tx, &owner).await?;
    let added = wire::MemberAdded {
        user_id: owner.user.to_string(),
        role: role_to_wire(Role::Owner).into(),
    };
    tx.tell(Some(workspace.id), owner.user, &added).await?;
    let key = make_key(tx, workspace.id, owner.user, &owner.name, key_role, secret).await?;
    store::audit(
        tx,
        workspace.id,
        principal,
        "CreateWorkspace",
        &workspace.id,
    )
    .await?;
    Ok((workspace, key))
}
