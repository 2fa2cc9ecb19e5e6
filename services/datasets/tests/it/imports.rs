//! Imports: what becomes a version, and what is refused without a trace.

use kit::auth::{Identity, Principal, Role, SignLayer, act_for};
use kit::id::Id;
use kit::service::Channel;
use kit::testing::TestDatabase;
use proto::fovea::datasets::v1 as wire;

use crate::archives::{good, good_but, picture, zip};
use crate::setting::{Client, Setting};

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_becomes_an_immutable_version_with_pages_of_images() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let import = setting.import(&zip(&good()), "pets").await;
        assert_eq!(import.state(), wire::ImportState::Completed, "{import:?}");
        assert_eq!((import.images_done, import.finding_count), (3, 0));

        let dataset = setting.datasets().await.pop().unwrap();
        let version = dataset.latest_version.unwrap();
        assert_eq!((dataset.name.as_str(), version.number), ("pets", 1));
        assert_eq!(version.class_names, ["cat", "dog"]);
        let train = &version.splits[0];
        let counts = (
            train.image_count,
            train.annotation_count,
            train.background_count,
        );
        assert_eq!(counts, (2, 2, 1));

        let viewer = setting.member(Role::Viewer);
        let mut names = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = wire::ListImagesRequest {
                version_id: version.id.clone(),
                page_size: 2,
                page_token: page_token.clone(),
                ..Default::default()
            };
            let page = setting
                .client
                .clone()
                .list_images(act_for(&viewer, request))
                .await
                .unwrap();
            let page = page.into_inner();
            assert!(page.images.len() <= 2);
            names.extend(page.images.iter().map(|image| image.name.clone()));
            for image in &page.images {
                assert_eq!((image.width, image.height), (64, 48));
                assert!(image.url.contains(&image.digest), "{}", image.url);
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(
            names,
            [
                "images/train/a.png",
                "images/train/b.png",
                "images/val/v.png"
            ]
        );

        let told = setting.told::<wire::ImportCompleted>(1).await;
        assert_eq!((told[0].image_count, told[0].annotation_count), (3, 3));
        assert_eq!(
            setting.told::<wire::DatasetCreated>(1).await[0].name,
            "pets"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn importing_again_makes_the_next_version_and_leaves_the_first_as_it_was() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let first = setting.import(&zip(&good()), "pets").await;
    let mut files = good();
    files.push(("images/train/c.png", picture(9)));
    let upload = setting.upload(&zip(&files)).await;
    let request = wire::ImportDatasetRequest {
        upload_id: upload.id.clone(),
        dataset_id: first.dataset_id.clone(),
        ..Default::default()
    };
    let second = setting.ask(request).await.unwrap();
    let second = setting.ended(&second).await;
    assert_ne!(first.version_id, second.version_id);
    let version = |id: &str| {
        let request = wire::GetVersionRequest {
            version_id: id.to_owned(),
        };
        let request = act_for(&setting.member(Role::Viewer), request);
        let mut client = setting.client.clone();
        async move {
            client
                .get_version(request)
                .await
                .unwrap()
                .into_inner()
                .version
                .unwrap()
        }
    };
    let (old, new) = (
        version(&first.version_id).await,
        version(&second.version_id).await,
    );
    assert_eq!((old.number, old.splits[0].image_count), (1, 2));
    assert_eq!((new.number, new.splits[0].image_count), (2, 3));
    assert_ne!(old.digest, new.digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_with_its_place_and_changes_nothing() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let half = picture(5)[..picture(5).len() / 2].to_vec();
    let cases: Vec<(Vec<u8>, &str, &str, i32)> = vec![
        (b"hello, I am a text".to_vec(), "ARCHIVE_UNREADABLE", "", 0),
        (zip(&good())[..200].to_vec(), "ARCHIVE_UNREADABLE", "", 0),
        (good_but("../x", "x"), "ARCHIVE_PATH_UNSAFE", "../x", 0),
        (
            good_but("labels/train/a.txt", "0 .5 .5 .2 .2\n0 0.5\n"),
            "LABEL_ROW_MALFORMED",
            "labels/train/a.txt",
            2,
        ),
        (
            good_but("labels/train/a.txt", "7 .5 .5 .2 .2\n"),
            "CLASS_ID_OUT_OF_RANGE",
            "labels/train/a.txt",
            1,
        ),
        (
            good_but("labels/train/a.txt", "0 1.5 .5 .2 .2\n"),
            "COORDINATE_OUT_OF_RANGE",
            "labels/train/a.txt",
            1,
        ),
        (
            good_but("images/train/a.png", half),
            "IMAGE_UNREADABLE",
            "images/train/a.png",
            0,
        ),
        (
            good_but("images/train/a.png", "not a picture"),
            "IMAGE_UNREADABLE",
            "images/train/a.png",
            0,
        ),
        (
            good_but("data.yaml", "names: [a\n\tb: c"),
            "DESCRIPTION_MALFORMED",
            "data.yaml",
            2,
        ),
        (
            good_but("data.yaml", "train: images/train\n"),
            "CLASS_NAMES_MALFORMED",
            "data.yaml",
            0,
        ),
        (
            zip(&[
                ("data.yaml", b"names: [a]".to_vec()),
                ("images/val/v.png", picture(1)),
            ]),
            "TRAIN_SPLIT_EMPTY",
            "data.yaml",
            0,
        ),
        (zip(&[("a.png", picture(1))]), "DESCRIPTION_MISSING", "", 0),
    ];
    for (bytes, reason, file, line) in cases {
        let import = setting.import(&bytes, "bad").await;
        assert_eq!(import.state(), wire::ImportState::Failed, "{reason}");
        let first = &import.findings[0];
        assert_eq!(
            (first.reason.as_str(), first.file.as_str()),
            (reason, file),
            "{first:?}"
        );
        assert!(first.is_error && !first.message.is_empty());
        if line > 0 {
            assert_eq!(first.line, line, "{first:?}");
        }
        assert!(
            setting.datasets().await.is_empty(),
            "{reason} left a dataset behind"
        );
    }
    // The name is free again after all those refusals.
    let good = setting.import(&zip(&good()), "bad").await;
    assert_eq!(good.state(), wire::ImportState::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn faulty_items_are_left_out_where_that_is_asked_for() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let mut files = good();
    files.push(("images/train/c.png", b"not a picture".to_vec()));
    files.push((
        "labels/train/b.txt",
        b"0 .5 .5 .2 .2\n9 .5 .5 .2 .2\n".to_vec(),
    ));
    let upload = setting.upload(&zip(&files)).await;
    let request = wire::ImportDatasetRequest {
        skip_faulty: true,
        ..setting.import_request(&upload, "rough")
    };
    let import = setting.ask(request).await.unwrap();
    let import = setting.ended(&import).await;
    assert_eq!(import.state(), wire::ImportState::Completed);
    assert_eq!((import.images_done, import.finding_count), (3, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_taken_once_and_a_key_answers_again() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    setting.import(&zip(&good()), "pets").await;
    let upload = setting.upload(&zip(&good())).await;
    let taken = setting
        .ask(setting.import_request(&upload, "pets"))
        .await
        .unwrap_err();
    assert!(taken.is("DATASET_NAME_TAKEN"), "{taken}");

    let request = wire::ImportDatasetRequest {
        idempotency_key: "k1".into(),
        ..setting.import_request(&upload, "more pets")
    };
    let first = setting.ask(request.clone()).await.unwrap();
    let again = setting.ask(request.clone()).await.unwrap();
    assert_eq!(first.id, again.id);
    let other = wire::ImportDatasetRequest {
        name: "other".into(),
        ..request
    };
    let reused = setting.ask(other).await.unwrap_err();
    assert!(reused.is("IDEMPOTENCY_KEY_REUSED"), "{reused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_goes_on_after_the_service_was_stopped() {
    let mut setting = Setting::start(TestDatabase::sqlite()).await;
    let upload = setting.upload(&zip(&good())).await;
    let import = setting
        .ask(setting.import_request(&upload, "pets"))
        .await
        .unwrap();
    setting.stop().await;
    // Longer than an import may show no sign of life.
    setting
        .fleet
        .clock()
        .advance(std::time::Duration::from_secs(60));
    setting.run().await;
    assert_eq!(
        setting.ended(&import).await.state(),
        wire::ImportState::Completed
    );
    assert_eq!(setting.datasets().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_reads_a_whole_version_page_by_page() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let import = setting.import(&zip(&good()), "pets").await;
    let worker = Identity {
        workspace: None,
        ..Identity::member(
            setting.workspace,
            Principal::Worker(Id::new(setting.fleet.clock().now())),
            Role::Worker,
        )
    };
    let sign = SignLayer::with_identity(setting.gateway.signer().clone(), worker);
    let address = setting
        .fleet
        .config()
        .fleet()
        .service_url("datasets")
        .unwrap();
    let mut client = Client::new(Channel::to(&address, &sign).unwrap());
    let mut files = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = wire::ReadVersionRequest {
            version_id: import.version_id.clone(),
            page_size: 2,
            page_token,
        };
        let page = client.read_version(request).await.unwrap().into_inner();
        assert_eq!(page.version.unwrap().class_names, ["cat", "dog"]);
        files.extend(page.files);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(files.len(), 3);
    assert_eq!(files[0].annotations.len(), 2);
    assert_eq!(files[0].annotations[1].class_id, 1);
    assert!(files[1].annotations.is_empty());
}
