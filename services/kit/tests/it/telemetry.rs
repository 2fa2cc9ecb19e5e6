//! One trace through a call and a fact, as a collector sees it.
//!
//! Telemetry is started once in a process, so this is one test.

use std::sync::{Arc, Mutex};

use kit::bus;
use kit::config::Config;
use kit::store::{Error, Migration, Tx};
use kit::testing::{TestFleet, TestNats, free_port, wait_for};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::Instrument;

use crate::facts::{ThingHappened, happened, workspace};

/// A collector that keeps every span.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

/// A name, and the ids of the trace, the span and its parent.
type Span = (String, [Vec<u8>; 3]);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let spans = request.into_inner().resource_spans.into_iter();
        for span in spans
            .flat_map(|r| r.scope_spans)
            .flat_map(|scope| scope.spans)
        {
            let ids = [span.trace_id, span.span_id, span.parent_span_id];
            self.0.lock().unwrap().push((span.name, ids));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "telemetry is of a whole process: run alone by the test below"]
async fn a_process_with_a_collector() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let collector = Collector::default();
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let text = format!("[fleet]\notlp_endpoint = '{endpoint}'\nlog_filter = 'warn'");
    let config = Config::from_text("the test", &text, []).unwrap();
    let telemetry = kit::telemetry::start(config.fleet(), "tests").unwrap();

    crate::facts::install();
    let nats = TestNats::start().await;
    let fleet = TestFleet::new(&nats);
    let (billing, projects) = (
        fleet.context("billing").await,
        fleet.context("projects").await,
    );
    crate::service::serve(&billing);
    let channel = projects.channel("billing").unwrap();
    crate::service::until_served(&channel).await;

    let heard = Migration::new(1, "heard", "create table heard (n bigint)");
    let store = projects.open_store(&[heard]).await.unwrap();
    let stop = CancellationToken::new();
    tokio::spawn({
        let (bus, store, stop) = (projects.bus().clone(), store.clone(), stop.clone());
        async move {
            let filters = vec![bus::filter::<ThingHappened>()];
            let handler = |tx: Tx, _| async move {
                tx.execute("insert into heard values (1)", vec![])
                    .await
                    .map(drop)
            };
            bus.consume(&store, "projects-things", filters, handler, stop)
                .await;
        }
    });
    let command = async {
        let request = Request::new(happened("x", 1));
        crate::service::call(channel, request).await.unwrap();
        store
            .write(|tx| async move {
                tx.tell(Some(workspace()), "x", &happened("x", 1))
                    .await
                    .map(drop)
            })
            .await
            .unwrap_or_else(|error: Error| panic!("{error:?}"));
    };
    command.instrument(tracing::info_span!("command")).await;
    bus::relay_once(projects.bus(), &store).await.unwrap();
    wait_for("the fact was heard", || async {
        let count = store
            .read()
            .query_one::<i64>("select count(*) from heard", vec![])
            .await;
        (count.unwrap() == 1).then_some(())
    })
    .await;

    let stop_metrics = CancellationToken::new();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    tokio::spawn(kit::telemetry::serve_metrics(
        "x",
        address,
        || Ok(()),
        stop_metrics.clone(),
    ));
    let metrics = wait_for("metrics are served", || {
        crate::service::get(address, "/metrics")
    })
    .await;
    for part in [
        "rpc_server_call_duration_seconds_bucket",
        "rpc_method=\"fovea.tests.v1.ThingService/Happen\"",
        "rpc_status_code=\"OK\"",
    ] {
        assert!(metrics.contains(part), "{part}\n{metrics}");
    }

    billing.shutdown().cancel();
    stop.cancel();
    telemetry.stop().await;
    let spans = collector.0.lock().unwrap().clone();
    let (_, command) = spans.iter().find(|(name, _)| name == "command").unwrap();
    let of_command: Vec<_> = spans
        .iter()
        .filter(|(_, ids)| ids[0] == command[0])
        .collect();
    let named = |name: &str| {
        let found: Vec<_> = of_command
            .iter()
            .filter(|(other, _)| other == name)
            .collect();
        assert!(!found.is_empty(), "no {name} in the trace: {spans:?}");
        found.into_iter().map(|(_, ids)| ids).collect::<Vec<_>>()
    };
    // The client's span and the server's, one the parent of the other.
    let calls = named("fovea.tests.v1.ThingService/Happen");
    assert_eq!(calls.len(), 2);
    assert!(calls[0][2] == calls[1][1] || calls[1][2] == calls[0][1]);
    assert_eq!(named("publish tests.thing.happened")[0][2], command[1]);
    assert_eq!(named("process tests.thing.happened")[0][2], command[1]);
}

#[tokio::test]
async fn one_trace_follows_a_command_through_a_call_and_a_fact() {
    let output = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "telemetry::a_process_with_a_collector",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}{text}",
        String::from_utf8_lossy(&output.stdout)
    );
}
