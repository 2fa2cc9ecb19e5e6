//! Parts of uploads: in order, again, and out of place.

use kit::testing::TestDatabase;

use crate::setting::Setting;

#[tokio::test(flavor = "multi_thread")]
async fn a_part_is_durable_once_and_a_wrong_offset_names_the_right_one() {
    for database in TestDatabase::all().await {
        let mut setting = Setting::start(database).await;
        let upload = setting.announce(&[7; 30]).await;
        let after = setting.send(&upload, 0, &[7; 10]).await.unwrap();
        assert_eq!(after.received_bytes, 10);
        let again = setting.send(&upload, 0, &[7; 10]).await.unwrap();
        assert_eq!(again.received_bytes, 10);

        let gap = setting.send(&upload, 20, &[7; 10]).await.unwrap_err();
        assert!(gap.is("UPLOAD_OFFSET_WRONG"), "{gap}");
        assert_eq!(gap.metadata["received_bytes"], "10");
        let other = setting.send(&upload, 0, &[8; 10]).await.unwrap_err();
        assert!(other.is("UPLOAD_OFFSET_WRONG"), "{other}");

        setting.stop().await;
        setting.run().await;
        let whole = setting.send(&upload, 10, &[7; 20]).await.unwrap();
        assert_eq!(whole.received_bytes, 30);
        let more = setting.send(&upload, 30, &[7; 1]).await.unwrap_err();
        assert!(more.is("REQUEST_INVALID"), "{more}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_not_complete_is_not_imported() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let upload = setting.announce(&[7; 30]).await;
    setting.send(&upload, 0, &[7; 10]).await.unwrap();
    let refused = setting
        .ask(setting.import_request(&upload, "x"))
        .await
        .unwrap_err();
    assert!(refused.is("UPLOAD_INCOMPLETE"), "{refused}");
}
