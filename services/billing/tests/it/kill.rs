//! `kill -9` at any moment: a process of its own is killed again and again while money moves.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kit::auth::{Caller, Identity, Principal, Role, SignLayer, Signer, act_for};
use kit::config::Config;
use kit::id::{Id, Run, Workspace};
use kit::service::{Channel, Context};
use kit::testing::{TestDatabase, TestNats, free_port, wait_for};
use kit::time::Clock;
use proto::fovea::accounts::v1::Plan;
use proto::fovea::billing::v1 as wire;
use tokio_util::sync::CancellationToken;

use crate::neighbours::{Accounts, Teller};
use crate::setting::{Client, check_ledger, checkpointed, completed, cpu_cost, paused};

const CONFIG_VARIABLE: &str = "FOVEA_TEST_BILLING_CONFIG";
const CREDIT: i64 = 1_000_000;
const RUNS: u64 = 12;
const KILLS: usize = 8;

/// The process that is killed: this test binary, asked to run this one "test".
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process that another test starts and kills"]
async fn billing_in_a_process_of_its_own() {
    let Some(file) = kit::config::environment(CONFIG_VARIABLE) else {
        return;
    };
    let config = Config::load(Some(Path::new(&file))).unwrap();
    let stop = CancellationToken::new();
    let context = Context::start(config, billing::NAME, Clock::system(), stop)
        .await
        .unwrap();
    billing::serve(context).await.unwrap();
}

struct Process(Child);

impl Process {
    fn start(config: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "kill::billing_in_a_process_of_its_own",
            ])
            .env(CONFIG_VARIABLE, config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Process {
    /// SIGKILL, and nothing else.
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

struct Scene {
    client: Client,
    workspace: Id<Workspace>,
    member: Caller,
    _nats: TestNats,
    teller: Teller,
    config: PathBuf,
    clock: Clock,
}

impl Scene {
    async fn new(database: &TestDatabase, folder: &Path) -> Self {
        let nats = TestNats::start().await;
        let (port, accounts_port) = (free_port(), free_port());
        let text = format!(
            "[fleet]\ndata = '{}'\nnats_url = '{}'\ndatabase_url = '{}'\n\
             [fleet.listen]\nbilling = '127.0.0.1:{port}'\naccounts = '127.0.0.1:{accounts_port}'\n",
            folder.display(),
            nats.url(),
            database.url()
        );
        let config = folder.join("fovea.toml");
        std::fs::write(&config, text).unwrap();
        let clock = Clock::system();
        let signer = Signer::open(&folder.join("identity.key"), clock.clone()).unwrap();
        let sign = SignLayer::new(signer, "projects");
        let channel = Channel::to(&format!("http://127.0.0.1:{port}"), &sign).unwrap();
        let workspace = Id::new(clock.now());
        let accounts = Accounts::default();
        accounts.put(workspace, Plan::Free);
        accounts.serve(format!("127.0.0.1:{accounts_port}").parse().unwrap());
        let user = Principal::User(Id::new(clock.now()));
        Self {
            client: Client::new(channel),
            workspace,
            member: Caller::new(Identity::member(workspace, user, Role::Viewer)),
            teller: Teller::connect(&nats.url()).await,
            _nats: nats,
            config,
            clock,
        }
    }

    /// Repeats a top-up with its key until it is answered.
    async fn top_up(&self, key: String) {
        let request = wire::TopUpRequest {
            workspace_id: self.workspace.to_string(),
            amount_micros: CREDIT,
            note: String::new(),
            idempotency_key: key,
        };
        wait_for("the top-up is answered", || async {
            self.client.clone().top_up(request.clone()).await.ok()
        })
        .await;
    }

    /// Repeats a hold until it is answered.
    async fn hold(&self, run: Id<Run>) {
        let request = wire::HoldRequest {
            workspace_id: self.workspace.to_string(),
            run_id: run.to_string(),
            gpu_type: "cpu".into(),
            amount_micros: CREDIT / 2,
            price_per_hour_micros: 60_000,
            cap_micros: CREDIT,
        };
        wait_for("the hold is answered", || async {
            self.client.clone().hold(request.clone()).await.ok()
        })
        .await;
    }

    /// One run's life, with every fact told twice.
    async fn live(&self, number: u64) -> (Id<Run>, u64) {
        self.top_up(format!("top-up {number}")).await;
        let run = Id::new(self.clock.now());
        self.hold(run).await;
        let mut seconds = 0;
        for step in 1..=6 {
            seconds += 977 + number * 13;
            let now = self.clock.now();
            let told = self
                .teller
                .tell(self.workspace, &checkpointed(run, seconds), now)
                .await;
            self.teller.again(&told).await;
            if step == 3 {
                self.teller
                    .tell(self.workspace, &paused(run, seconds), now)
                    .await;
                self.hold(run).await;
            }
        }
        let end = self
            .teller
            .tell(self.workspace, &completed(run, seconds), self.clock.now())
            .await;
        self.teller.again(&end).await;
        (run, seconds)
    }

    async fn charge(&self, run: Id<Run>) -> Option<wire::RunCharge> {
        let request = wire::GetRunChargeRequest {
            run_id: run.to_string(),
        };
        let request = act_for(&self.member, request);
        self.client
            .clone()
            .get_run_charge(request)
            .await
            .ok()?
            .into_inner()
            .charge
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_micro_credit_is_lost_or_made_when_the_process_is_killed_at_any_moment() {
    for database in TestDatabase::all().await {
        let folder = tempfile::tempdir().unwrap();
        let scene = Scene::new(&database, folder.path()).await;
        let killing = async {
            for kill in 0..KILLS {
                let process = Process::start(&scene.config);
                // Not a wait for something: the moment of death is what varies.
                tokio::time::sleep(Duration::from_millis(350 + 170 * kill as u64)).await;
                drop(process);
            }
            Process::start(&scene.config)
        };
        let living = futures::future::join_all((0..RUNS).map(|number| scene.live(number)));
        let (_process, runs) = futures::future::join(killing, living).await;

        let mut spent = 0;
        for (run, seconds) in runs {
            let charge = wait_for("the run is settled", || async {
                scene.charge(run).await.filter(|charge| charge.is_settled)
            })
            .await;
            assert_eq!(charge.charged_micros, cpu_cost(seconds));
            assert_eq!((charge.held_micros, charge.owed_micros), (0, 0));
            spent += charge.charged_micros;
        }
        let request = act_for(&scene.member, wire::GetBalanceRequest {});
        let balance = scene
            .client
            .clone()
            .get_balance(request)
            .await
            .unwrap()
            .into_inner();
        let balance = balance.balance.unwrap();
        assert_eq!(balance.total_micros, RUNS as i64 * CREDIT - spent);
        assert_eq!(balance.held_micros, 0);
        check_ledger(&scene.client).await;
    }
}
