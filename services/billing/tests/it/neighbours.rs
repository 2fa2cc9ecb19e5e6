//! The services beside billing, at their proto.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use async_nats::jetstream;
use kit::bus::{Envelope, Fact, subject};
use kit::id::{Id, Workspace};
use kit::time::Timestamp;
use proto::fovea::accounts::v1 as wire;
use proto::fovea::accounts::v1::account_service_server::{AccountService, AccountServiceServer};
use tonic::{Request, Response, Status};

/// Knows workspaces and their plans.
#[derive(Clone, Default)]
pub struct Accounts(Arc<Mutex<HashMap<String, wire::Plan>>>);

impl Accounts {
    /// Serves on this address until the test ends.
    pub fn serve(&self, address: SocketAddr) {
        let server = AccountServiceServer::new(self.clone());
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(server)
                .serve(address),
        );
    }

    pub fn put(&self, workspace: Id<Workspace>, plan: wire::Plan) {
        self.0.lock().unwrap().insert(workspace.to_string(), plan);
    }
}

macro_rules! accounts_that_only_tells_workspaces {
    ($($rpc:ident $request:ident $response:ident,)*) => {
        #[tonic::async_trait]
        impl AccountService for Accounts {
            async fn get_workspace(
                &self,
                request: Request<wire::GetWorkspaceRequest>,
            ) -> Result<Response<wire::GetWorkspaceResponse>, Status> {
                let id = request.into_inner().workspace_id;
                let plan = self.0.lock().unwrap().get(&id).copied();
                let plan = plan.ok_or_else(|| Status::not_found("no such workspace"))?;
                let workspace = wire::Workspace { id, plan: plan.into(), ..Default::default() };
                Ok(Response::new(wire::GetWorkspaceResponse { workspace: Some(workspace) }))
            }

            $(async fn $rpc(
                &self,
                _: Request<wire::$request>,
            ) -> Result<Response<wire::$response>, Status> {
                Err(Status::unimplemented("billing doesn't ask for this"))
            })*
        }
    };
}

accounts_that_only_tells_workspaces! {
    authenticate AuthenticateRequest AuthenticateResponse,
    create_session CreateSessionRequest CreateSessionResponse,
    end_session EndSessionRequest EndSessionResponse,
    create_sign_in_token CreateSignInTokenRequest CreateSignInTokenResponse,
    get_self GetSelfRequest GetSelfResponse,
    create_workspace CreateWorkspaceRequest CreateWorkspaceResponse,
    list_workspaces ListWorkspacesRequest ListWorkspacesResponse,
    set_plan SetPlanRequest SetPlanResponse,
    add_member AddMemberRequest AddMemberResponse,
    list_members ListMembersRequest ListMembersResponse,
    set_member_role SetMemberRoleRequest SetMemberRoleResponse,
    remove_member RemoveMemberRequest RemoveMemberResponse,
    create_key CreateKeyRequest CreateKeyResponse,
    list_keys ListKeysRequest ListKeysResponse,
    revoke_key RevokeKeyRequest RevokeKeyResponse,
    list_audit_entries ListAuditEntriesRequest ListAuditEntriesResponse,
}

/// Tells facts of other services straight into the stream: as late, as often and in whatever order a test wants.
pub struct Teller(jetstream::Context);

impl Teller {
    pub async fn connect(nats_url: &str) -> Self {
        kit::bus::install_descriptors(proto::pool().clone());
        let client = async_nats::connect(nats_url).await.unwrap();
        Self(jetstream::new(client))
    }

    /// Tells a fact that became true at `at`; returns it, to be told again.
    pub async fn tell<M: Fact>(
        &self,
        workspace: Id<Workspace>,
        message: &M,
        at: Timestamp,
    ) -> Envelope {
        let envelope =
            Envelope::seal("projects", Some(workspace), "the thing", message, at).unwrap();
        self.again(&envelope).await;
        envelope
    }

    /// Puts a fact into the stream once more; without its id in the header, so that the server lets it through.
    pub async fn again(&self, envelope: &Envelope) {
        let subject = subject(&envelope.name, envelope.workspace).unwrap();
        let payload = envelope.to_json().unwrap().into();
        let ack = self.0.publish(subject, payload).await.unwrap();
        ack.await.unwrap();
    }
}
