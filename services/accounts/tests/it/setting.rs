//! A running accounts service and those who call it.

use std::time::Duration;

use kit::auth::{Caller, Identity, Principal, Role, SignLayer};
use kit::bus::{Cursor, Envelope, Fact};
use kit::fault::{Fault, Kind};
use kit::id::{Id, Workspace};
use kit::service::{Channel, Context};
use kit::testing::{TestDatabase, TestFleet, TestNats, wait_for};
use kit::time::Clock;
use proto::fovea::accounts::v1 as wire;
use proto::fovea::accounts::v1::account_service_client::AccountServiceClient;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

pub type Client = AccountServiceClient<Channel>;

/// One fleet with accounts running in it.
pub struct Setting {
    pub fleet: TestFleet,
    /// Calls as the service `gateway`, for itself.
    pub gateway: Client,
    pub caller: Context,
    running: Option<(CancellationToken, JoinHandle<Result<(), Fault>>)>,
    _nats: TestNats,
    _database: TestDatabase,
}

/// Somebody with a key, as the gateway passes their calls on.
pub struct Somebody {
    pub secret: String,
    pub workspace: Id<Workspace>,
    pub principal: String,
    pub role: wire::Role,
    pub client: Client,
}

impl Setting {
    /// Starts accounts in this database, for the first time.
    pub async fn start(database: TestDatabase) -> Self {
        Box::pin(Self::start_all(database)).await
    }

    async fn start_all(database: TestDatabase) -> Self {
        let nats = TestNats::start().await;
        let fleet = TestFleet::in_database(&nats, &database);
        let caller = fleet.context("gateway").await;
        let gateway = Client::new(caller.channel("accounts").unwrap());
        let mut setting = Self {
            fleet,
            gateway,
            caller,
            running: None,
            _nats: nats,
            _database: database,
        };
        setting.run().await;
        setting
    }

    /// Starts the service, and waits until it answers.
    pub async fn run(&mut self) {
        let context = Box::pin(self.fleet.context(accounts::NAME)).await;
        let stop = context.shutdown().clone();
        let serving = tokio::spawn(accounts::serve(context));
        self.running = Some((stop, serving));
        wait_for("accounts answers", || async {
            let mut gateway = self.gateway.clone();
            gateway
                .list_workspaces(wire::ListWorkspacesRequest::default())
                .await
                .ok()
        })
        .await;
    }

    /// Stops the service as a supervisor does.
    pub async fn stop(&mut self) {
        let (stop, serving) = self.running.take().unwrap();
        stop.cancel();
        serving.await.unwrap().unwrap();
    }

    pub fn clock(&self) -> &Clock {
        self.fleet.clock()
    }

    pub fn admin_key_file(&self) -> std::path::PathBuf {
        self.fleet
            .config()
            .fleet()
            .data
            .join(accounts::ADMIN_KEY_FILE)
    }

    pub async fn authenticate(&self, secret: &str) -> Result<wire::AuthenticateResponse, Status> {
        let request = wire::AuthenticateRequest {
            secret: secret.to_owned(),
        };
        self.gateway
            .clone()
            .authenticate(request)
            .await
            .map(Response::into_inner)
    }

    /// Does what the gateway does: authenticates a secret and calls with what it means.
    pub async fn as_key(&self, secret: &str) -> Somebody {
        let found = self.authenticate(secret).await.unwrap();
        let workspace: Id<Workspace> = found.workspace_id.parse().unwrap();
        let principal: Principal = found.principal.parse().unwrap();
        let role = match found.role() {
            wire::Role::Viewer => Role::Viewer,
            wire::Role::Editor => Role::Editor,
            wire::Role::Admin => Role::Admin,
            wire::Role::Owner => Role::Owner,
            wire::Role::Worker => Role::Worker,
            wire::Role::Operator => Role::Operator,
            wire::Role::Unspecified => panic!("a key without a role"),
        };
        Somebody {
            secret: secret.to_owned(),
            workspace,
            role: found.role(),
            client: self.client_as(&Caller::new(Identity::member(workspace, principal, role))),
            principal: found.principal,
        }
    }

    pub fn client_as(&self, caller: &Caller) -> Client {
        let signer = self.caller.signer().clone();
        let sign = SignLayer::with_identity(signer, caller.identity().clone());
        let address = self.fleet.config().fleet().service_url("accounts").unwrap();
        Client::new(Channel::to(&address, &sign).unwrap())
    }

    /// The operator, by the key in the file.
    pub async fn operator(&self) -> Somebody {
        let text = std::fs::read_to_string(self.admin_key_file()).unwrap();
        self.as_key(text.trim()).await
    }

    /// A new workspace with an owner; returns the owner.
    pub async fn owner_of_new(&self, slug: &str) -> Somebody {
        let mut operator = self.operator().await;
        let answer = operator
            .client
            .create_workspace(new_workspace(slug))
            .await
            .unwrap();
        self.as_key(&answer.into_inner().key_secret).await
    }

    /// Adds somebody with this role.
    pub async fn add(
        &self,
        by: &Somebody,
        email: &str,
        role: wire::Role,
    ) -> (wire::Member, Somebody) {
        let answer = by
            .client
            .clone()
            .add_member(new_member(email, role))
            .await
            .unwrap();
        let answer = answer.into_inner();
        (
            answer.member.unwrap(),
            self.as_key(&answer.key_secret).await,
        )
    }

    /// Returns the facts of this kind that were told in a workspace, at least `count`.
    pub async fn told<M: Fact>(&self, workspace: Id<Workspace>, count: usize) -> Vec<M> {
        use futures::StreamExt;
        let facts = self
            .caller
            .bus()
            .follow_facts(Some(workspace), Cursor::Start);
        let mut facts = Box::pin(facts);
        let mut found = Vec::new();
        let reading = async {
            while found.len() < count {
                let followed = facts.next().await.unwrap();
                let envelope = Envelope::from_slice(&followed.payload).unwrap();
                if envelope.is::<M>() {
                    found.push(envelope.decode::<M>().unwrap());
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reading)
            .await
            .expect("the facts are told");
        found
    }
}

pub fn new_workspace(slug: &str) -> wire::CreateWorkspaceRequest {
    wire::CreateWorkspaceRequest {
        slug: slug.into(),
        name: "A team".into(),
        plan: wire::Plan::Unspecified.into(),
        owner_email: "Ada@Example.org".into(),
        owner_name: "Ada".into(),
    }
}

pub fn new_member(email: &str, role: wire::Role) -> wire::AddMemberRequest {
    wire::AddMemberRequest {
        email: email.into(),
        name: "Somebody".into(),
        role: role.into(),
    }
}

pub fn new_key(role: wire::Role) -> wire::CreateKeyRequest {
    wire::CreateKeyRequest {
        name: "laptop".into(),
        role: role.into(),
    }
}

pub fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, kind: Kind, reason: &str) -> Fault {
    let fault = Fault::from(answer.unwrap_err());
    assert_eq!(
        (fault.kind, fault.reason.as_ref()),
        (kind, reason),
        "{fault:?}"
    );
    fault
}
