//! One trace shows a user's command through the gateway, the services and the facts between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::fleet::Fleet;

/// Names of spans by trace, each with the service that told it.
type Seen = Arc<Mutex<BTreeMap<Vec<u8>, BTreeSet<(String, String)>>>>;

#[derive(Clone, Default)]
struct Collector(Seen);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut seen = self.0.lock().unwrap();
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let service = attributes
                .iter()
                .find(|attribute| attribute.key == "service.name")
                .map(|attribute| format!("{:?}", attribute.value))
                .unwrap_or_default();
            for span in resource
                .scope_spans
                .into_iter()
                .flat_map(|scope| scope.spans)
            {
                seen.entry(span.trace_id)
                    .or_default()
                    .insert((service.clone(), span.name));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[test]
fn one_trace_follows_a_command_through_services_and_facts() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let collector = Collector::default();
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let address = listener.local_addr().unwrap();
    let service = TraceServiceServer::new(collector.clone());
    runtime.spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let endpoint = format!("http://{address}");
    let fleet = Fleet::start_with(&[("FOVEA_FLEET__OTLP_ENDPOINT", endpoint.as_str())]);
    fleet.json(&["billing", "top-up", "5"]);
    fleet.import_sample("shapes", 24, 64);
    fleet.wait_for_worker("shapes");
    let trained = fleet.run(&[
        "train",
        "--dataset",
        "shapes",
        "--epochs",
        "1",
        "--imgsz",
        "64",
        "--batch",
        "8",
        "--name",
        "run",
    ]);
    assert!(
        trained.status.success(),
        "{}",
        String::from_utf8_lossy(&trained.stderr)
    );

    let wanted = [
        ("projects", "fovea.runs.v1.RunService/StartRun"),
        ("billing", "fovea.billing.v1.BillingService/Hold"),
        ("scheduler", "process runs.run.queued"),
    ];
    fleet.wait_for(
        "one trace holds the start of the run and its queueing",
        || {
            let seen = collector.0.lock().unwrap();
            let is_whole = |spans: &BTreeSet<(String, String)>| {
                wanted.iter().all(|(service, name)| {
                    spans
                        .iter()
                        .any(|(told_by, span)| told_by.contains(service) && span == name)
                })
            };
            seen.values().any(is_whole).then_some(())
        },
    );
}
