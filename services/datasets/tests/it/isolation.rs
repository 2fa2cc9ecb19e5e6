//! Another workspace sees nothing, on any RPC.

use kit::auth::{Role, act_for};
use kit::fault::{Fault, Kind};
use kit::id::Id;
use kit::testing::TestDatabase;
use proto::fovea::datasets::v1 as wire;

use crate::archives::{good, zip};
use crate::setting::Setting;

#[tokio::test(flavor = "multi_thread")]
async fn things_of_another_workspace_are_not_found() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let import = setting.import(&zip(&good()), "pets").await;
    let upload = setting.announce(&[1; 9]).await;
    let image_id = {
        let request = wire::ListImagesRequest {
            version_id: import.version_id.clone(),
            ..Default::default()
        };
        let request = act_for(&setting.member(Role::Viewer), request);
        let page = setting
            .client
            .clone()
            .list_images(request)
            .await
            .unwrap()
            .into_inner();
        page.images[0].id.clone()
    };
    let other = setting.member_of(Id::new(setting.fleet.clock().now()), Role::Owner);
    let mut client = setting.client.clone();
    macro_rules! refused {
        ($($rpc:ident $request:expr;)*) => {
            $(
                let answer = client.$rpc(act_for(&other, $request)).await;
                let fault = Fault::from(answer.expect_err(stringify!($rpc)));
                assert_eq!(fault.kind, Kind::NotFound, "{}: {fault}", stringify!($rpc));
            )*
        };
    }
    let (dataset_id, version_id) = (import.dataset_id.clone(), import.version_id.clone());
    refused! {
        get_upload wire::GetUploadRequest { upload_id: upload.id.clone() };
        record_upload_part wire::RecordUploadPartRequest {
            upload_id: upload.id.clone(), offset_bytes: 0, size_bytes: 9, digest: "0".repeat(64),
        };
        import_dataset wire::ImportDatasetRequest {
            upload_id: upload.id.clone(), name: "x".into(), ..Default::default()
        };
        get_import wire::GetImportRequest { import_id: import.id.clone() };
        get_dataset wire::GetDatasetRequest { dataset_id: dataset_id.clone() };
        delete_dataset wire::DeleteDatasetRequest { dataset_id: dataset_id.clone() };
        get_version wire::GetVersionRequest { version_id: version_id.clone() };
        list_versions wire::ListVersionsRequest { dataset_id, ..Default::default() };
        list_images wire::ListImagesRequest { version_id: version_id.clone(), ..Default::default() };
        list_annotations wire::ListAnnotationsRequest { version_id, image_id };
    }
    let listed = client
        .list_datasets(act_for(&other, wire::ListDatasetsRequest::default()))
        .await
        .unwrap()
        .into_inner();
    assert!(listed.datasets.is_empty());
    let read = wire::ReadVersionRequest {
        version_id: import.version_id,
        ..Default::default()
    };
    let fault = Fault::from(
        client
            .read_version(act_for(&other, read))
            .await
            .unwrap_err(),
    );
    assert_eq!(fault.kind, Kind::Denied, "{fault}");
}
