//! The cache, in the process and in Redis.

use std::time::Duration;

use kit::cache::Cache;
use kit::config::{Fleet, Secret};
use kit::testing::wait_for;

async fn caches() -> Vec<Cache> {
    let mut caches = vec![Cache::local()];
    if let Some(url) = kit::testing::redis().await {
        let fleet = Fleet {
            redis_url: Some(Secret::new(url)),
            ..Fleet::default()
        };
        // A name of the test's own: what it counts, no other test counts.
        let service = format!("test-{:x}", rand::random::<u64>());
        caches.push(Cache::open(&fleet, &service).await.unwrap());
    }
    caches
}

#[tokio::test]
async fn a_value_is_there_until_its_time_is_over() {
    for cache in caches().await {
        assert_eq!(cache.get("a").await, None);
        cache.set("a", b"long", Duration::from_secs(60)).await;
        cache.set("b", b"short", Duration::from_millis(200)).await;
        assert_eq!(cache.get("a").await.as_deref(), Some(&b"long"[..]));
        wait_for("the short one is over", || async {
            cache.get("b").await.is_none().then_some(())
        })
        .await;
        assert!(cache.get("a").await.is_some());
        cache.remove("a").await;
        assert_eq!(cache.get("a").await, None);
    }
}

#[tokio::test]
async fn a_count_begins_again_with_its_window() {
    for cache in caches().await {
        let window = Duration::from_millis(400);
        for count in 1..=5 {
            assert_eq!(cache.increment("calls", window).await, count);
        }
        wait_for("the window is over", || async {
            (cache.increment("calls", window).await == 1).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn callers_at_once_are_all_counted() {
    for cache in caches().await {
        let window = Duration::from_secs(60);
        let calls = (0..50).map(|_| cache.increment("calls", window));
        let mut counts = futures::future::join_all(calls).await;
        counts.sort_unstable();
        assert_eq!(counts, (1..=50).collect::<Vec<_>>());
    }
}
