//! The store on both databases: migrations, transactions, values, idempotency.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kit::id::{Id, Run};
use kit::store::{Engine, Error, FromRow, Isolation, Migration, Row, Store};
use kit::testing::TestDatabase;
use kit::{Amount, Clock, Fault, Kind, Timestamp, params};

use crate::facts::{ThingHappened, happened};

const THINGS: Migration = Migration::new(
    1,
    "things",
    "create table things (
        id bytea primary key,
        seen_at bigint not null,
        gone_at bigint,
        price bigint not null,
        name text not null unique,
        is_big boolean not null,
        weight double precision not null,
        parent bytea references things (id)
    );
    create table counters (name text primary key, value bigint not null);
    insert into counters (name, value) values ('a', 0);",
);

async fn open(database: &TestDatabase) -> Store {
    database.open("datasets", Clock::system(), &[THINGS]).await
}

#[derive(Debug, PartialEq)]
struct Thing {
    id: Id<Run>,
    seen_at: Timestamp,
    gone_at: Option<Timestamp>,
    price: Amount,
    name: String,
    is_big: bool,
    weight: f64,
    parent: Option<Id<Run>>,
}

impl FromRow for Thing {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            seen_at: row.get("seen_at")?,
            gone_at: row.get("gone_at")?,
            price: row.get("price")?,
            name: row.get("name")?,
            is_big: row.get("is_big")?,
            weight: row.get("weight")?,
            parent: row.get("parent")?,
        })
    }
}

async fn insert(store: &Store, thing: &Thing) -> Result<(), Error> {
    store
        .write(|tx| async move {
            tx.execute(
                "insert into things (id, seen_at, gone_at, price, name, is_big, weight, parent)
                 values ($1, $2, $3, $4, $5, $6, $7, $8)",
                params![
                    thing.id,
                    thing.seen_at,
                    thing.gone_at,
                    thing.price,
                    thing.name.as_str(),
                    thing.is_big,
                    thing.weight,
                    thing.parent
                ],
            )
            .await
            .map(drop)
        })
        .await
}

fn thing(name: &str) -> Thing {
    let now = Clock::system().now();
    Thing {
        id: Id::new(now),
        seen_at: now,
        gone_at: None,
        price: Amount::from_micros(-1_500_000),
        name: name.to_owned(),
        is_big: true,
        weight: 0.5,
        parent: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_read_back() {
    for database in TestDatabase::all().await {
        let store = open(&database).await;
        let mother = thing("mother");
        let gone_at = Some(mother.seen_at);
        let child = Thing {
            gone_at,
            parent: Some(mother.id),
            is_big: false,
            ..thing("child")
        };
        insert(&store, &mother).await.unwrap();
        insert(&store, &child).await.unwrap();
        let all = store
            .read()
            .query_all::<Thing>("select * from things order by id", params![]);
        assert_eq!(all.await.unwrap(), [mother, child]);
        let count: i64 = store
            .read()
            .query_one("select count(*) from things", params![])
            .await
            .unwrap();
        assert_eq!(count, 2);
        let none: Option<Thing> = store
            .read()
            .query_optional("select * from things where name = $1", params!["nobody"])
            .await
            .unwrap();
        assert_eq!(none, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_says_which_rule_was_broken() {
    for database in TestDatabase::all().await {
        let store = open(&database).await;
        insert(&store, &thing("one")).await.unwrap();
        assert!(
            insert(&store, &thing("one"))
                .await
                .unwrap_err()
                .is_duplicate()
        );
        let orphan = Thing {
            parent: Some(thing("x").id),
            ..thing("orphan")
        };
        assert!(insert(&store, &orphan).await.unwrap_err().is_dangling());
        let error = store
            .read()
            .execute("select * from nothing", params![])
            .await
            .unwrap_err();
        let fault = Fault::from(error);
        assert_eq!(fault.kind, Kind::Internal);
        assert!(fault.chain().contains("nothing"), "{}", fault.chain());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_transaction_leaves_nothing() {
    crate::facts::install();
    for database in TestDatabase::all().await {
        let store = open(&database).await;
        let outcome: Result<(), Error> = store
            .write(|tx| async move {
                tx.execute("update counters set value = 7", params![])
                    .await?;
                tx.tell(None, "x", &happened("x", 1)).await?;
                Err(Error::NoRow("on purpose".to_owned()))
            })
            .await;
        assert!(outcome.is_err());
        let value: i64 = store
            .read()
            .query_one("select value from counters", params![])
            .await
            .unwrap();
        let told: i64 = store
            .read()
            .query_one("select count(*) from outbox", params![])
            .await
            .unwrap();
        assert_eq!((value, told), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_at_once_lose_nothing_and_run_again_by_themselves() {
    const WRITERS: i64 = 8;
    const EACH: i64 = 10;
    for database in TestDatabase::all().await {
        let store = open(&database).await;
        let attempts = Arc::new(AtomicU32::new(0));
        let writers = (0..WRITERS).map(|_| {
            let (store, attempts) = (store.clone(), attempts.clone());
            tokio::spawn(async move {
                for _ in 0..EACH {
                    let attempts = &attempts;
                    store
                        .write(|tx| async move {
                            attempts.fetch_add(1, Ordering::Relaxed);
                            // Read, decide, write: what a serializable transaction is for.
                            let value: i64 = tx
                                .query_one("select value from counters", params![])
                                .await?;
                            let update = "update counters set value = $1";
                            tx.execute(update, params![value + 1]).await?;
                            Ok::<_, Error>(())
                        })
                        .await
                        .unwrap();
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        let value: i64 = store
            .read()
            .query_one("select value from counters", params![])
            .await
            .unwrap();
        assert_eq!(value, WRITERS * EACH);
        let attempts = i64::from(attempts.load(Ordering::Relaxed));
        match database.engine() {
            Engine::Sqlite => assert_eq!(attempts, WRITERS * EACH),
            Engine::Postgres => assert!(attempts > WRITERS * EACH, "no conflict was tested"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_locks_make_read_committed_safe() {
    for database in TestDatabase::all().await {
        let store = open(&database).await;
        let writers = (0..8).map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                store
                    .write_with(Isolation::ReadCommitted, |tx| async move {
                        let sql = "select value from counters where name = $1 for update";
                        let value: i64 = tx.query_one(sql, params!["a"]).await?;
                        let update = "update counters set value = $1";
                        tx.execute(update, params![value + 1]).await.map(drop)
                    })
                    .await
                    .map_err(|error: Error| error.to_string())
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap().unwrap();
        }
        let value: i64 = store
            .read()
            .query_one("select value from counters", params![])
            .await
            .unwrap();
        assert_eq!(value, 8);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_can_not_write_on_sqlite() {
    let database = TestDatabase::sqlite();
    let store = open(&database).await;
    assert!(
        store
            .read()
            .execute("update counters set value = 1", params![])
            .await
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_grows_and_a_newer_one_is_refused() {
    const MORE: Migration = Migration::new(2, "more", "alter table things add column size bigint");
    for database in TestDatabase::all().await {
        open(&database).await;
        let grown = database
            .open("datasets", Clock::system(), &[THINGS, MORE])
            .await;
        grown
            .read()
            .execute("select size from things", params![])
            .await
            .unwrap();
        let error = database
            .try_open("datasets", Clock::system(), &[THINGS])
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::NewerSchema {
                    found: 2,
                    known: 1,
                    ..
                }
            ),
            "{error}"
        );
        assert!(
            error.to_string().contains("start the newer version"),
            "{error}"
        );
        // Another service of the same database has a schema of its own.
        database.open("projects", Clock::system(), &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_changed_is_refused() {
    let changed = Migration::new(1, "things", "create table things (id bytea)");
    for database in TestDatabase::all().await {
        open(&database).await;
        let error = database
            .try_open("datasets", Clock::system(), &[changed])
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::ChangedMigration { number: 1, .. }),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_migration_leaves_the_old_schema() {
    let bad = Migration::new(2, "bad", "create table half (id bytea); create nonsense;");
    for database in TestDatabase::all().await {
        open(&database).await;
        let outcome = database
            .try_open("datasets", Clock::system(), &[THINGS, bad])
            .await;
        assert!(outcome.is_err());
        let store = open(&database).await;
        assert!(
            store
                .read()
                .execute("select * from half", params![])
                .await
                .is_err()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_start_at_once_migrate_once() {
    if let Some(database) = TestDatabase::postgres().await {
        let starts = (0..4).map(|_| database.try_open("datasets", Clock::system(), &[THINGS]));
        for start in futures::future::join_all(starts).await {
            start.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_holds_a_lock() {
    if let Some(database) = TestDatabase::postgres().await {
        let (one, other) = (open(&database).await, open(&database).await);
        let lock = one.try_lock("sweep").await.unwrap();
        assert!(lock.is_some());
        assert!(other.try_lock("sweep").await.unwrap().is_none());
        assert!(other.try_lock("another").await.unwrap().is_some());
        drop(lock);
        kit::testing::wait_for("the lock is free", || async {
            other.try_lock("sweep").await.unwrap()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_command_gets_its_first_answer() {
    for database in TestDatabase::all().await {
        let store = open(&database).await;
        let runs = AtomicU32::new(0);
        let command = |request: ThingHappened, key: &'static str| {
            let (store, runs) = (&store, &runs);
            async move {
                let request = &request;
                store
                    .write(|tx| async move {
                        let scope = "Happen/ws";
                        if let Some(answer) = tx.recall(scope, key, request).await? {
                            return Ok(answer);
                        }
                        let answer = i64::from(runs.fetch_add(1, Ordering::SeqCst));
                        let answer = happened("answer", answer);
                        tx.remember(scope, key, request, &answer).await?;
                        Ok::<_, Error>(answer)
                    })
                    .await
            }
        };
        let first = command(happened("x", 1), "key").await.unwrap();
        assert_eq!(command(happened("x", 1), "key").await.unwrap(), first);
        let error = command(happened("x", 2), "key").await.unwrap_err();
        assert!(Fault::from(error).is("IDEMPOTENCY_KEY_REUSED"));
        assert_ne!(command(happened("x", 1), "other").await.unwrap(), first);
        assert_ne!(command(happened("x", 1), "").await.unwrap(), first);
        let beside = (0..6).map(|_| command(happened("y", 1), "beside"));
        let answers = futures::future::join_all(beside).await;
        let first = answers[0].as_ref().unwrap();
        assert!(
            answers
                .iter()
                .all(|answer| answer.as_ref().unwrap() == first)
        );
    }
}
