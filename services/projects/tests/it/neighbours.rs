//! The services that `projects` calls, played at their proto: real servers, real identities, and
//! answers that a test can choose.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::{Context as Waker, Poll};

use futures::future::BoxFuture;
use kit::auth::caller;
use kit::fault::{Fault, Kind};
use kit::id::{self, Id};
use proto::fovea::billing::v1::{
    HoldRequest, HoldResponse, ReleaseHoldRequest, ReleaseHoldResponse,
};
use proto::fovea::datasets::v1::{GetVersionRequest, GetVersionResponse, Version};
use proto::fovea::jobs::v1::{DeviceEstimate, EstimateRunRequest, EstimateRunResponse};
use proto::fovea::runs::v1::Estimate;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::{Request, Response, Status};
use tower::Service;

/// What a test decides about the neighbours, and what they were asked.
#[derive(Default)]
pub struct State {
    /// Datasets: who owns which version.
    pub versions: BTreeMap<String, Id<id::Workspace>>,
    /// Billing does not answer.
    pub billing_is_away: bool,
    /// Billing refuses holds.
    pub balance_is_low: bool,
    /// Billing: what is held, by run.
    pub holds: BTreeMap<String, HoldRequest>,
    /// Billing: how often a hold was asked for.
    pub hold_calls: usize,
    /// Billing: what was released.
    pub released: Vec<String>,
}

/// The neighbours. Clones share what they know.
#[derive(Clone, Default)]
pub struct Neighbours(pub Arc<Mutex<State>>);

impl Neighbours {
    /// Looks at or changes what the neighbours know.
    pub fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    fn get_version(
        &self,
        request: Request<GetVersionRequest>,
    ) -> Result<GetVersionResponse, Fault> {
        let workspace = caller(&request)?.workspace()?;
        let id = request.into_inner().version_id;
        let owner = self.with(|state| state.versions.get(&id).copied());
        if owner != Some(workspace) {
            let message = format!("there is no version '{id}'");
            return Err(Fault::new(
                Kind::NotFound,
                "VERSION_NOT_FOUND",
                "datasets",
                message,
            ));
        }
        let class_names = vec!["RBC".to_owned(), "WBC".to_owned(), "Platelets".to_owned()];
        let version = Version {
            id,
            class_names,
            ..Version::default()
        };
        Ok(GetVersionResponse {
            version: Some(version),
        })
    }

    fn estimate_run(
        &self,
        request: Request<EstimateRunRequest>,
    ) -> Result<EstimateRunResponse, Fault> {
        caller(&request)?.workspace()?;
        let wanted = request.into_inner().gpu_type;
        let device = |gpu_type: &str, cost: i64| DeviceEstimate {
            gpu_type: gpu_type.to_owned(),
            is_offered: true,
            is_allowed: true,
            fits: true,
            needed_bytes: 3_000,
            memory_bytes: 2_000,
            largest_batch: 4,
            estimate: Some(Estimate {
                cost_low_micros: cost / 2,
                cost_likely_micros: cost,
                cost_high_micros: cost * 2,
                basis: "prior".to_owned(),
                ..Estimate::default()
            }),
            price_per_hour_micros: 3_600_000,
            ..DeviceEstimate::default()
        };
        let all = [
            device("dear", 9_000),
            device("cpu", 1_000),
            DeviceEstimate {
                is_offered: false,
                ..device("nowhere", 1)
            },
            DeviceEstimate {
                is_allowed: false,
                ..device("h200", 2)
            },
            DeviceEstimate {
                fits: false,
                ..device("small", 3)
            },
        ];
        let devices = all
            .into_iter()
            .filter(|it| wanted.is_empty() || it.gpu_type == wanted);
        Ok(EstimateRunResponse {
            devices: devices.collect(),
            ..EstimateRunResponse::default()
        })
    }

    fn hold(&self, request: Request<HoldRequest>) -> Result<HoldResponse, Fault> {
        caller(&request)?.require_service()?;
        let request = request.into_inner();
        self.with(|state| {
            state.hold_calls += 1;
            self.answering(state)?;
            if state.balance_is_low {
                let message = "the balance is too low";
                return Err(Fault::new(
                    Kind::Precondition,
                    "BALANCE_TOO_LOW",
                    "billing",
                    message,
                ));
            }
            let amount_micros = request.amount_micros;
            state.holds.insert(request.run_id.clone(), request);
            Ok(HoldResponse {
                hold_id: String::new(),
                amount_micros,
            })
        })
    }

    fn release(&self, request: Request<ReleaseHoldRequest>) -> Result<ReleaseHoldResponse, Fault> {
        caller(&request)?.require_service()?;
        self.with(|state| {
            self.answering(state)?;
            state.released.push(request.into_inner().run_id);
            Ok(ReleaseHoldResponse {})
        })
    }

    fn answering(&self, state: &State) -> Result<(), Fault> {
        if state.billing_is_away {
            let message = "billing does not answer";
            return Err(Fault::new(
                Kind::Unavailable,
                "STORE_UNAVAILABLE",
                "kit",
                message,
            ));
        }
        Ok(())
    }
}

/// Answers one unary call.
async fn unary<I, O, F>(request: http::Request<Body>, answer: F) -> http::Response<Body>
where
    I: prost::Message + Default + Send + 'static,
    O: prost::Message + Default + Send + 'static,
    F: FnOnce(Request<I>) -> Result<O, Fault> + Clone + Send + 'static,
{
    let handler = tower::service_fn(move |request: Request<I>| {
        let answer = answer.clone();
        async move { answer(request).map(Response::new).map_err(Status::from) }
    });
    Grpc::new(tonic_prost::ProstCodec::<O, I>::default())
        .unary(handler, request)
        .await
}

macro_rules! neighbour {
    ($name:ident $package:literal { $($method:literal $handler:ident,)* }) => {
        /// One of the neighbours, as a gRPC service.
        #[derive(Clone)]
        pub struct $name(pub Neighbours);

        impl NamedService for $name {
            const NAME: &'static str = $package;
        }

        impl Service<http::Request<Body>> for $name {
            type Response = http::Response<Body>;
            type Error = Infallible;
            type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

            fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<Body>) -> Self::Future {
                let neighbours = self.0.clone();
                Box::pin(async move {
                    let method = request.uri().path().rsplit('/').next().unwrap_or_default();
                    Ok(match method {
                        $($method => {
                            unary(request, move |message| neighbours.$handler(message)).await
                        })*
                        _ => Status::unimplemented("not played").into_http(),
                    })
                })
            }
        }
    };
}

neighbour!(Datasets "fovea.datasets.v1.DatasetService" { "GetVersion" get_version, });
neighbour!(Jobs "fovea.jobs.v1.JobService" { "EstimateRun" estimate_run, });
neighbour!(Billing "fovea.billing.v1.BillingService" { "Hold" hold, "ReleaseHold" release, });
