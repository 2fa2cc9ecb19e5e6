//! Facts from the outbox through NATS to the inbox, whatever happens to the server meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use kit::bus::{self, Bus, Cursor, Envelope, Told};
use kit::config::Fleet;
use kit::store::{Error, Migration, Store, Tx};
use kit::testing::{TestDatabase, TestNats, wait_for};
use kit::{Clock, Fault, Kind, params};
use tokio_util::sync::CancellationToken;

use crate::facts::{ThingHappened, happened, install, workspace};

const HEARD: Migration = Migration::new(
    1,
    "heard",
    "create table heard (n {{autoincrement}}, thing text not null, count bigint not null)",
);

async fn connect(nats: &TestNats, service: &str) -> Bus {
    install();
    let fleet = Fleet {
        nats_url: nats.url(),
        fact_retry_pause: Duration::from_millis(5),
        ..Fleet::default()
    };
    Bus::connect(&fleet, service).await.unwrap()
}

async fn tell(store: &Store, thing: &str, count: i64) {
    let workspace = workspace();
    store
        .write(|tx| async move {
            tx.tell(Some(workspace), thing, &happened(thing, count))
                .await
                .map(drop)
        })
        .await
        .unwrap_or_else(|error: Error| panic!("{error:?}"));
}

async fn note(tx: &Tx, told: &Told) -> Result<(), Error> {
    let fact = told.decode::<ThingHappened>().map_err(Error::Fact)?;
    tx.execute(
        "insert into heard (thing, count) values ($1, $2)",
        params![fact.thing_id, fact.count],
    )
    .await
    .map(drop)
}

async fn heard(store: &Store) -> Vec<(String, i64)> {
    store
        .read()
        .query_all("select thing, count from heard order by n", params![])
        .await
        .unwrap()
}

fn relay(bus: &Bus, store: &Store, stop: &CancellationToken) {
    tokio::spawn(bus::relay(bus.clone(), store.clone(), stop.clone()));
}

fn hear(bus: &Bus, store: &Store, stop: &CancellationToken) {
    let (bus, store, stop) = (bus.clone(), store.clone(), stop.clone());
    tokio::spawn(async move {
        let filters = vec![bus::filter::<ThingHappened>()];
        let handler = |tx: Tx, told: Arc<Told>| async move { note(&tx, &told).await };
        bus.consume(&store, "projects-things", filters, handler, stop)
            .await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fact_takes_effect_once_whatever_is_killed() {
    const FACTS: i64 = 300;
    for database in TestDatabase::all().await {
        let mut nats = TestNats::start().await;
        let teller = database.open("datasets", Clock::system(), &[]).await;
        let hearer = database.open("projects", Clock::system(), &[HEARD]).await;
        let (out, into) = (
            connect(&nats, "datasets").await,
            connect(&nats, "projects").await,
        );
        let stop = CancellationToken::new();
        relay(&out, &teller, &stop);
        hear(&into, &hearer, &stop);

        let telling = tokio::spawn({
            let teller = teller.clone();
            async move {
                for count in 0..FACTS {
                    tell(&teller, "one", count).await;
                }
            }
        });
        wait_for("some facts were heard", || async {
            (heard(&hearer).await.len() > 20).then_some(())
        })
        .await;
        nats.kill().await;
        telling.await.unwrap();
        nats.restart().await;
        // A second hearer of the same name, as another process of the service would be.
        hear(&connect(&nats, "projects").await, &hearer, &stop);
        wait_for("every fact was heard", || async {
            (heard(&hearer).await.len() >= FACTS as usize).then_some(())
        })
        .await;
        // All of it once more: the relay crashed after publishing and before noting it.
        teller
            .write(|tx| async move {
                tx.execute("update outbox set sent_at = null", params![])
                    .await
                    .map(drop)
            })
            .await
            .unwrap_or_else(|error: Error| panic!("{error:?}"));
        tell(&teller, "two", 0).await;
        wait_for("the last fact was heard", || async {
            heard(&hearer)
                .await
                .iter()
                .any(|(thing, _)| thing == "two")
                .then_some(())
        })
        .await;
        let mut counts: Vec<_> = heard(&hearer)
            .await
            .into_iter()
            .filter(|(thing, _)| thing == "one")
            .map(|(_, count)| count)
            .collect();
        counts.sort_unstable();
        assert_eq!(counts, (0..FACTS).collect::<Vec<_>>());
        stop.cancel();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fact_that_is_delivered_again_later_than_the_server_remembers_is_known() {
    let nats = TestNats::start().await;
    let database = TestDatabase::sqlite();
    let store = database.open("projects", Clock::system(), &[HEARD]).await;
    let bus = connect(&nats, "projects").await;
    let stop = CancellationToken::new();
    tell(&store, "one", 1).await;
    bus::relay_once(&bus, &store).await.unwrap();
    // The same fact under another message id: what a relay does after the duplicate window.
    let client = async_nats::connect(nats.url()).await.unwrap();
    let mut followed = bus.follow_facts(None, Cursor::Start);
    let fact = followed.next().await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    jetstream
        .publish(fact.subject, fact.payload)
        .await
        .unwrap()
        .await
        .unwrap();
    hear(&bus, &store, &stop);
    tell(&store, "two", 2).await;
    bus::relay_once(&bus, &store).await.unwrap();
    wait_for("the last fact was heard", || async {
        (heard(&store).await.len() > 1).then_some(())
    })
    .await;
    assert_eq!(
        heard(&store).await,
        [("one".to_owned(), 1), ("two".to_owned(), 2)]
    );
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_about_one_thing_arrive_in_order() {
    let nats = TestNats::start().await;
    let database = TestDatabase::sqlite();
    let store = database.open("projects", Clock::system(), &[HEARD]).await;
    let bus = connect(&nats, "projects").await;
    let stop = CancellationToken::new();
    for count in 0..50 {
        tell(&store, if count % 2 == 0 { "even" } else { "odd" }, count).await;
    }
    relay(&bus, &store, &stop);
    hear(&bus, &store, &stop);
    wait_for("all were heard", || async {
        (heard(&store).await.len() == 50).then_some(())
    })
    .await;
    let order: Vec<_> = heard(&store)
        .await
        .into_iter()
        .map(|(_, count)| count)
        .collect();
    assert_eq!(order, (0..50).collect::<Vec<_>>());
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fact_that_can_not_take_effect_ends_among_the_dead() {
    let nats = TestNats::start().await;
    let database = TestDatabase::sqlite();
    let store = database.open("projects", Clock::system(), &[HEARD]).await;
    let bus = connect(&nats, "projects").await;
    let stop = CancellationToken::new();
    let attempts = Arc::new(AtomicU32::new(0));
    let hearing = {
        let (bus, store, stop, attempts) =
            (bus.clone(), store.clone(), stop.clone(), attempts.clone());
        async move {
            let handler = |tx: Tx, told: Arc<Told>| {
                let attempts = attempts.clone();
                async move {
                    note(&tx, &told).await?;
                    if told.subject == "bad" {
                        attempts.fetch_add(1, Ordering::SeqCst);
                        return Err(Fault::new(Kind::Invalid, "BAD", "tests", "it is bad"));
                    }
                    Ok(())
                }
            };
            let filters = vec![bus::filter::<ThingHappened>()];
            bus.consume(&store, "projects-things", filters, handler, stop)
                .await;
        }
    };
    tokio::spawn(hearing);
    relay(&bus, &store, &stop);
    tell(&store, "bad", 1).await;
    tell(&store, "good", 2).await;
    wait_for("the good one was heard", || async {
        (heard(&store).await == [("good".to_owned(), 2)]).then_some(())
    })
    .await;

    let mut dead = bus.follow(
        bus::FACTS_DEAD,
        format!("{}.>", bus::DEAD_ROOT),
        Cursor::Start,
    );
    let dead = tokio::time::timeout(Duration::from_secs(60), dead.next())
        .await
        .unwrap()
        .unwrap();
    assert!(
        dead.subject
            .starts_with("fovea.dead.v1.projects-things.fovea.v1.ws_")
    );
    let envelope = Envelope::from_slice(&dead.payload).unwrap();
    assert_eq!(
        envelope.decode::<ThingHappened>().unwrap(),
        happened("bad", 1)
    );
    assert_eq!(attempts.load(Ordering::SeqCst), bus::DELIVERIES_MAX);
    assert_eq!(heard(&store).await.len(), 1, "what failed left something");
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_envelope_ends_among_the_dead_at_once() {
    let nats = TestNats::start().await;
    let database = TestDatabase::sqlite();
    let store = database.open("projects", Clock::system(), &[HEARD]).await;
    let bus = connect(&nats, "projects").await;
    let stop = CancellationToken::new();
    let client = async_nats::connect(nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let subject = "fovea.v1.system.tests.thing.happened";
    jetstream
        .publish(subject, "nonsense".into())
        .await
        .unwrap()
        .await
        .unwrap();
    hear(&bus, &store, &stop);
    let mut dead = bus.follow(
        bus::FACTS_DEAD,
        format!("{}.>", bus::DEAD_ROOT),
        Cursor::Start,
    );
    let dead = tokio::time::timeout(Duration::from_secs(30), dead.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&dead.payload[..], b"nonsense");
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fact_is_a_cloud_event_with_the_names_of_its_proto() {
    let nats = TestNats::start().await;
    let database = TestDatabase::sqlite();
    let store = database.open("datasets", Clock::system(), &[]).await;
    let bus = connect(&nats, "datasets").await;
    tell(&store, "one", 0).await;
    assert_eq!(bus::relay_once(&bus, &store).await.unwrap(), 1);
    assert_eq!(bus::relay_once(&bus, &store).await.unwrap(), 0);
    let fact = bus.follow_facts(None, Cursor::Start).next().await.unwrap();
    let json: serde_json::Value = serde_json::from_slice(&fact.payload).unwrap();
    assert_eq!(json["specversion"], "1.0");
    assert_eq!(json["type"], "fovea.tests.v1.ThingHappened");
    assert_eq!(json["source"], "/fovea/datasets");
    assert_eq!(json["subject"], "one");
    assert_eq!(json["datacontenttype"], "application/json");
    assert_eq!(
        json["data"],
        serde_json::json!({ "thing_id": "one", "count": "0" })
    );
    let workspace = json["workspace"].as_str().unwrap();
    assert!(json["id"].as_str().unwrap().starts_with("evt_"));
    assert_eq!(
        fact.subject,
        format!("fovea.v1.{workspace}.tests.thing.happened")
    );

    let mut others = bus.follow_facts(Some(crate::facts::workspace()), Cursor::Start);
    let mut own = bus.follow_facts(Some(workspace.parse().unwrap()), Cursor::Start);
    tokio::select! {
        _ = others.next() => panic!("another workspace's fact was seen"),
        own = own.next() => assert_eq!(own.unwrap().sequence, fact.sequence),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_goes_on_after_the_server_was_killed() {
    let mut nats = TestNats::start().await;
    let bus = connect(&nats, "projects").await;
    let workspace = workspace();
    let publish = async |count: i64| {
        wait_for("the sample is sent", || async {
            let sample = happened("x", count);
            let sent = bus
                .publish_telemetry(workspace, "progress", "run_1", &sample)
                .await;
            sent.then_some(())
        })
        .await;
    };
    publish(0).await;
    let mut follower = bus.follow_telemetry(workspace, "progress", "run_1", Cursor::Start);
    let first = follower.next().await.unwrap();
    nats.restart().await;
    wait_for("the server is back", || async {
        bus.is_connected().then_some(())
    })
    .await;
    publish(1).await;
    let next = tokio::time::timeout(Duration::from_secs(30), follower.next())
        .await
        .unwrap();
    let next = next.unwrap();
    let decoded = <ThingHappened as prost::Message>::decode(next.payload.clone()).unwrap();
    assert_eq!(decoded.count, 1);
    let mut late = bus.follow_telemetry(
        workspace,
        "progress",
        "run_1",
        Cursor::After(first.sequence),
    );
    assert_eq!(late.next().await.unwrap().sequence, next.sequence);
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_telemetry_comes_again_until_it_is_kept() {
    let nats = TestNats::start().await;
    let bus = connect(&nats, "projects").await;
    let workspace = workspace();
    for count in 0..100 {
        assert!(
            bus.publish_telemetry(workspace, "progress", "run_1", &happened("x", count))
                .await
        );
    }
    let (keep, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let failures = Arc::new(AtomicU32::new(0));
    let stop = CancellationToken::new();
    tokio::spawn({
        let (bus, stop, failures) = (bus.clone(), stop.clone(), failures.clone());
        async move {
            let handler = |samples: Vec<bus::Sample>| {
                let (keep, failures) = (keep.clone(), failures.clone());
                async move {
                    if failures.fetch_add(1, Ordering::SeqCst) == 0 {
                        return Err("the store is away");
                    }
                    for sample in samples {
                        let fact = sample.decode::<ThingHappened>().unwrap();
                        keep.send((sample.id, fact.count)).unwrap();
                    }
                    Ok(())
                }
            };
            bus.keep_telemetry("projects-metrics", &["progress"], handler, stop)
                .await;
        }
    });
    let mut counts = std::collections::BTreeSet::new();
    while counts.len() < 100 {
        let next = tokio::time::timeout(Duration::from_secs(60), kept.recv())
            .await
            .unwrap();
        let (id, count) = next.unwrap();
        assert_eq!(id, "run_1");
        counts.insert(count);
    }
    stop.cancel();
}
