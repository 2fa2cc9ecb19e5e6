//! A running billing and those who call it.

use std::time::Duration;

use kit::auth::{Caller, Identity, Principal, Role, SignLayer, act_for};
use kit::bus::{Cursor, Envelope, Fact};
use kit::fault::Fault;
use kit::id::{Id, Run, Workspace};
use kit::service::{Channel, Context};
use kit::testing::{TestDatabase, TestFleet, TestNats, wait_for};
use kit::time::Clock;
use proto::fovea::accounts::v1::Plan;
use proto::fovea::billing::v1 as wire;
use proto::fovea::billing::v1::billing_service_client::BillingServiceClient;
use proto::fovea::runs::v1 as runs;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::neighbours::{Accounts, Teller};

pub type Client = BillingServiceClient<Channel>;

/// Six cents an hour: what `cpu` costs on a new installation.
pub const CPU_MICROS: i64 = 60_000;

/// One fleet with billing running in it.
pub struct Setting {
    pub nats: TestNats,
    pub fleet: TestFleet,
    pub accounts: Accounts,
    pub teller: Teller,
    /// Calls as the service `projects`, for itself.
    pub projects: Client,
    pub workspace: Id<Workspace>,
    /// Not billing: the service that calls it.
    pub caller: Context,
    running: Option<(CancellationToken, JoinHandle<Result<(), Fault>>)>,
    _database: TestDatabase,
}

impl Setting {
    /// Starts billing in this database, with one workspace on the free plan.
    pub async fn start(database: TestDatabase) -> Self {
        Box::pin(Self::start_all(database)).await
    }

    async fn start_all(database: TestDatabase) -> Self {
        let nats = TestNats::start().await;
        let fleet = TestFleet::in_database(&nats, &database);
        let accounts = Accounts::default();
        accounts.serve(fleet.config().fleet().listen.accounts);
        let caller = fleet.context("projects").await;
        let teller = Teller::connect(&nats.url()).await;
        let projects = Client::new(caller.channel("billing").unwrap());
        let workspace = Id::new(fleet.clock().now());
        accounts.put(workspace, Plan::Free);
        let mut setting = Self {
            nats,
            fleet,
            accounts,
            teller,
            projects,
            workspace,
            caller,
            running: None,
            _database: database,
        };
        setting.run().await;
        setting
    }

    /// Starts the service, and waits until it answers.
    pub async fn run(&mut self) {
        let context = Box::pin(self.fleet.context(billing::NAME)).await;
        let stop = context.shutdown().clone();
        let serving = tokio::spawn(billing::serve(context));
        self.running = Some((stop, serving));
        let member = self.member(Role::Viewer);
        wait_for("billing answers", || async {
            let mut client = self.projects.clone();
            client
                .list_prices(act_for(&member, wire::ListPricesRequest {}))
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

    /// Somebody with this role in the workspace.
    pub fn member(&self, role: Role) -> Caller {
        self.member_of(self.workspace, role)
    }

    pub fn member_of(&self, workspace: Id<Workspace>, role: Role) -> Caller {
        let user = Principal::User(Id::new(self.clock().now()));
        Caller::new(Identity::member(workspace, user, role))
    }

    /// A client that calls with this identity, as the gateway passes it on.
    pub fn client_as(&self, caller: &Caller) -> Client {
        let signer = self.caller.signer().clone();
        let sign = SignLayer::with_identity(signer, caller.identity().clone());
        let address = self.fleet.config().fleet().service_url("billing").unwrap();
        Client::new(Channel::to(&address, &sign).unwrap())
    }

    pub fn new_run(&self) -> Id<Run> {
        Id::new(self.clock().now())
    }

    pub async fn top_up(&self, micros: i64) -> wire::TopUpResponse {
        let request = wire::TopUpRequest {
            workspace_id: self.workspace.to_string(),
            amount_micros: micros,
            note: "bank transfer".into(),
            idempotency_key: String::new(),
        };
        self.projects
            .clone()
            .top_up(request)
            .await
            .unwrap()
            .into_inner()
    }

    pub fn hold_request(&self, run: Id<Run>, micros: i64) -> wire::HoldRequest {
        wire::HoldRequest {
            workspace_id: self.workspace.to_string(),
            run_id: run.to_string(),
            gpu_type: "cpu".into(),
            amount_micros: micros,
            price_per_hour_micros: CPU_MICROS,
            cap_micros: 0,
        }
    }

    pub async fn hold(&self, run: Id<Run>, micros: i64) -> Result<wire::HoldResponse, Fault> {
        let request = self.hold_request(run, micros);
        Ok(self.projects.clone().hold(request).await?.into_inner())
    }

    pub async fn release(&self, run: Id<Run>) {
        let request = wire::ReleaseHoldRequest {
            workspace_id: self.workspace.to_string(),
            run_id: run.to_string(),
        };
        self.projects.clone().release_hold(request).await.unwrap();
    }

    pub async fn balance(&self) -> wire::Balance {
        self.balance_of(self.workspace).await
    }

    pub async fn balance_of(&self, workspace: Id<Workspace>) -> wire::Balance {
        let member = self.member_of(workspace, Role::Viewer);
        let request = act_for(&member, wire::GetBalanceRequest {});
        let answer = self.projects.clone().get_balance(request).await.unwrap();
        answer.into_inner().balance.unwrap()
    }

    pub async fn charge(&self, run: Id<Run>) -> Option<wire::RunCharge> {
        let request = wire::GetRunChargeRequest {
            run_id: run.to_string(),
        };
        let request = act_for(&self.member(Role::Viewer), request);
        self.projects
            .clone()
            .get_run_charge(request)
            .await
            .ok()?
            .into_inner()
            .charge
    }

    /// Waits until a run's charge is as the test wants it.
    pub async fn charge_when(
        &self,
        what: &str,
        run: Id<Run>,
        is_so: impl Fn(&wire::RunCharge) -> bool,
    ) -> wire::RunCharge {
        wait_for(what, || async {
            self.charge(run).await.filter(|charge| is_so(charge))
        })
        .await
    }

    pub async fn checkpointed(&self, run: Id<Run>, seconds: u64) -> Envelope {
        self.tell(&checkpointed(run, seconds)).await
    }

    pub async fn paused(&self, run: Id<Run>, seconds: u64) -> Envelope {
        self.tell(&paused(run, seconds)).await
    }

    pub async fn completed(&self, run: Id<Run>, seconds: u64) -> Envelope {
        self.tell(&completed(run, seconds)).await
    }

    pub async fn queued(&self, run: Id<Run>) -> Envelope {
        let fact = runs::RunQueued {
            run_id: run.to_string(),
            ..Default::default()
        };
        self.tell(&fact).await
    }

    pub async fn tell<M: Fact>(&self, message: &M) -> Envelope {
        self.teller
            .tell(self.workspace, message, self.clock().now())
            .await
    }

    /// Waits until everything told so far was heard: a fact about another run comes out at the other end.
    pub async fn catch_up(&self) {
        let run = self.new_run();
        self.top_up(1_000_000).await;
        self.hold(run, 1_000_000).await.unwrap();
        self.completed(run, 0).await;
        self.charge_when("what was told is heard", run, |charge| charge.is_settled)
            .await;
    }

    /// Checks that the ledger balances to the micro-credit, whatever has happened.
    pub async fn check_ledger(&self) {
        check_ledger(&self.projects).await;
    }

    /// Returns the facts of this kind that billing told so far, at least `count`.
    pub async fn told<M: Fact>(&self, count: usize) -> Vec<M> {
        let mut stream = Box::pin(
            self.caller
                .bus()
                .follow_facts(Some(self.workspace), Cursor::Start),
        );
        let mut found = Vec::new();
        let reading = async {
            use futures::StreamExt;
            while found.len() < count {
                let followed = stream.next().await.unwrap();
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

pub async fn check_ledger(projects: &Client) {
    let sums = projects
        .clone()
        .check_ledger(wire::CheckLedgerRequest {})
        .await
        .unwrap();
    let sums = sums.into_inner();
    assert_eq!(sums.entry_sum_micros, 0, "{sums:?}");
    assert_eq!(sums.balance_sum_micros, 0, "{sums:?}");
    assert!(sums.broken_accounts.is_empty(), "{sums:?}");
}

fn span(seconds: u64) -> Option<prost_types::Duration> {
    Some(Duration::from_secs(seconds).try_into().unwrap())
}

pub fn checkpointed(run: Id<Run>, seconds: u64) -> runs::RunCheckpointed {
    runs::RunCheckpointed {
        run_id: run.to_string(),
        committed: span(seconds),
        ..Default::default()
    }
}

pub fn paused(run: Id<Run>, seconds: u64) -> runs::RunPaused {
    runs::RunPaused {
        run_id: run.to_string(),
        cause: "user".into(),
        committed: span(seconds),
    }
}

pub fn completed(run: Id<Run>, seconds: u64) -> runs::RunCompleted {
    runs::RunCompleted {
        run_id: run.to_string(),
        committed: span(seconds),
        ..Default::default()
    }
}

/// `round(price × time)` of a run on `cpu`, reckoned apart from the code under test.
pub fn cpu_cost(seconds: u64) -> i64 {
    let product = i128::from(CPU_MICROS) * i128::from(seconds);
    i64::try_from((product + 1800) / 3600).unwrap()
}
