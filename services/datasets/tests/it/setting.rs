//! A running datasets service and those who call it.

use bytes::Bytes;
use kit::auth::{Caller, Identity, Principal, Role, act_for};
use kit::bus::{Cursor, Envelope, Fact};
use kit::fault::Fault;
use kit::id::{Id, Workspace};
use kit::service::{Channel, Context};
use kit::testing::{TestDatabase, TestFleet, TestNats, wait_for};
use proto::fovea::datasets::v1 as wire;
use proto::fovea::datasets::v1::dataset_service_client::DatasetServiceClient;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub type Client = DatasetServiceClient<Channel>;

/// One fleet with the service running in it.
pub struct Setting {
    pub fleet: TestFleet,
    pub workspace: Id<Workspace>,
    /// The gateway: it stores upload parts and calls on behalf of others.
    pub gateway: Context,
    pub client: Client,
    running: Option<(CancellationToken, JoinHandle<Result<(), Fault>>)>,
    _nats: TestNats,
    _database: TestDatabase,
}

impl Setting {
    pub async fn start(database: TestDatabase) -> Self {
        kit::testing::log();
        kit::bus::install_descriptors(proto::pool().clone());
        let nats = TestNats::start().await;
        let fleet = TestFleet::in_database(&nats, &database);
        let gateway = fleet.context("gateway").await;
        let client = Client::new(gateway.channel("datasets").unwrap());
        let workspace = Id::new(fleet.clock().now());
        let mut setting = Self {
            fleet,
            workspace,
            gateway,
            client,
            running: None,
            _nats: nats,
            _database: database,
        };
        setting.run().await;
        setting
    }

    /// Starts the service, and waits until it answers.
    pub async fn run(&mut self) {
        let context = self.fleet.context(datasets::NAME).await;
        let stop = context.shutdown().clone();
        self.running = Some((stop, tokio::spawn(datasets::serve(context))));
        let request = || {
            act_for(
                &self.member(Role::Viewer),
                wire::ListDatasetsRequest::default(),
            )
        };
        wait_for("datasets answers", || async {
            self.client.clone().list_datasets(request()).await.ok()
        })
        .await;
    }

    /// Stops the service as a supervisor does.
    pub async fn stop(&mut self) {
        let (stop, serving) = self.running.take().unwrap();
        stop.cancel();
        serving.await.unwrap().unwrap();
    }

    pub fn member(&self, role: Role) -> Caller {
        self.member_of(self.workspace, role)
    }

    pub fn member_of(&self, workspace: Id<Workspace>, role: Role) -> Caller {
        let user = Principal::User(Id::new(self.fleet.clock().now()));
        Caller::new(Identity::member(workspace, user, role))
    }

    pub fn editor(&self) -> Caller {
        self.member(Role::Editor)
    }

    pub async fn announce(&self, bytes: &[u8]) -> wire::Upload {
        let request = wire::CreateUploadRequest {
            file_name: "data.zip".into(),
            size_bytes: bytes.len() as i64,
        };
        let request = act_for(&self.editor(), request);
        self.client
            .clone()
            .create_upload(request)
            .await
            .unwrap()
            .into_inner()
            .upload
            .unwrap()
    }

    /// Stores a part as the gateway does, and has it recorded.
    pub async fn send(
        &self,
        upload: &wire::Upload,
        offset: usize,
        part: &[u8],
    ) -> Result<wire::Upload, Fault> {
        let blobs = self.gateway.blobs().of(datasets::NAME);
        let stored = blobs
            .put(self.workspace, Bytes::copy_from_slice(part))
            .await
            .unwrap();
        let request = wire::RecordUploadPartRequest {
            upload_id: upload.id.clone(),
            offset_bytes: offset as i64,
            size_bytes: part.len() as i64,
            digest: stored.key.hash().to_hex().to_string(),
        };
        let request = act_for(&self.editor(), request);
        Ok(self
            .client
            .clone()
            .record_upload_part(request)
            .await?
            .into_inner()
            .upload
            .unwrap())
    }

    pub async fn upload(&self, bytes: &[u8]) -> wire::Upload {
        let upload = self.announce(bytes).await;
        self.send(&upload, 0, bytes).await.unwrap()
    }

    pub fn import_request(&self, upload: &wire::Upload, name: &str) -> wire::ImportDatasetRequest {
        wire::ImportDatasetRequest {
            upload_id: upload.id.clone(),
            name: name.into(),
            ..Default::default()
        }
    }

    pub async fn ask(&self, request: wire::ImportDatasetRequest) -> Result<wire::Import, Fault> {
        let request = act_for(&self.editor(), request);
        let answer = self.client.clone().import_dataset(request).await?;
        Ok(answer.into_inner().import.unwrap())
    }

    /// Waits until an import is over.
    pub async fn ended(&self, import: &wire::Import) -> wire::Import {
        wait_for("the import ends", || async {
            let request = wire::GetImportRequest {
                import_id: import.id.clone(),
            };
            let request = act_for(&self.member(Role::Viewer), request);
            let answer = self.client.clone().get_import(request).await.ok()?;
            let import = answer.into_inner().import?;
            let is_over = matches!(
                import.state(),
                wire::ImportState::Completed | wire::ImportState::Failed
            );
            is_over.then_some(import)
        })
        .await
    }

    /// Uploads and imports an archive under a name.
    pub async fn import(&self, bytes: &[u8], name: &str) -> wire::Import {
        let upload = self.upload(bytes).await;
        let import = self.ask(self.import_request(&upload, name)).await.unwrap();
        self.ended(&import).await
    }

    pub async fn datasets(&self) -> Vec<wire::Dataset> {
        let request = act_for(
            &self.member(Role::Viewer),
            wire::ListDatasetsRequest::default(),
        );
        self.client
            .clone()
            .list_datasets(request)
            .await
            .unwrap()
            .into_inner()
            .datasets
    }

    /// Waits for the first facts of a type.
    pub async fn told<M: Fact>(&self, count: usize) -> Vec<M> {
        use futures::StreamExt as _;

        let mut facts = self
            .gateway
            .bus()
            .follow_facts(Some(self.workspace), Cursor::Start);
        let mut found = Vec::new();
        let gather = async {
            while found.len() < count {
                let followed = facts.next().await.unwrap();
                let envelope = Envelope::from_slice(&followed.payload).unwrap();
                if envelope.is::<M>() {
                    found.push(envelope.decode::<M>().unwrap());
                }
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), gather)
            .await
            .unwrap();
        found
    }
}
