//! The contract's side of the scheduler: requests in, domain and store, answers out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use engine::plan::Target;
use kit::auth::{Caller, Role, act_for, caller};
use kit::fault::Fault;
use kit::id::{Id, Worker as WorkerMarker, Workspace};
use kit::money::{PricePerHour, cost_rounded_half_up};
use kit::service::Channel;
use kit::store::Store;
use kit::{Clock, Timestamp};
use prost::Message as _;
use proto::fovea::accounts::v1::account_service_client::AccountServiceClient;
use proto::fovea::accounts::v1::{GetWorkspaceRequest, Plan};
use proto::fovea::billing::v1::billing_service_client::BillingServiceClient;
use proto::fovea::billing::v1::{ListPricesRequest, Price};
use proto::fovea::datasets::v1::dataset_service_client::DatasetServiceClient;
use proto::fovea::datasets::v1::{GetVersionRequest, Split, Version};
use proto::fovea::fleet::v1 as fleet;
use proto::fovea::jobs::v1 as jobs;
use proto::fovea::runs::v1::{Estimate, TrainSpec};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::commands;
use crate::config::Config;
use crate::domain::catalogue::{self, CPU, Device};
use crate::domain::estimate::{self, Candidate, Time};
use crate::domain::job::{self, Job, Wish};
use crate::domain::placement;
use crate::error::Error;
use crate::instruments;
use crate::store;
use crate::work::Training;

/// The longest a worker may ask to wait for a lease.
const LEASE_WAIT_MAX: Duration = Duration::from_secs(30);
/// How often a waiting worker's queue is looked at when nobody woke it.
const LEASE_POLL: Duration = Duration::from_secs(1);
/// Jobs on a page.
const PAGE_DEFAULT: i64 = 50;
const PAGE_MAX: i64 = 1000;

/// What the scheduler's two services share.
pub struct Scheduler {
    pub store: Store,
    pub clock: Clock,
    pub config: Config,
    /// Woken when something is queued.
    pub queued: Arc<Notify>,
    pub shutdown: CancellationToken,
    pub datasets: DatasetServiceClient<Channel>,
    pub billing: BillingServiceClient<Channel>,
    pub accounts: AccountServiceClient<Channel>,
    /// How far each busy worker says it is; nothing depends on it.
    pub progress: Mutex<HashMap<Id<WorkerMarker>, fleet::LeaseProgress>>,
}

/// Answers `fovea.jobs.v1.JobService`.
pub struct Jobs(pub Arc<Scheduler>);

/// Answers `fovea.fleet.v1.FleetService`.
pub struct Fleet(pub Arc<Scheduler>);

#[tonic::async_trait]
impl jobs::job_service_server::JobService for Jobs {
    async fn estimate_run(
        &self,
        request: Request<jobs::EstimateRunRequest>,
    ) -> Result<Response<jobs::EstimateRunResponse>, Status> {
        let caller = caller(&request)?;
        caller.require(Role::Viewer)?;
        let answer = self.0.estimate(&caller, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn list_jobs(
        &self,
        request: Request<jobs::ListJobsRequest>,
    ) -> Result<Response<jobs::ListJobsResponse>, Status> {
        let caller = caller(&request)?;
        caller.require(Role::Viewer)?;
        let workspace_id = caller.workspace()?;
        let request = request.into_inner();
        let answer = self.0.list_jobs(workspace_id, request).await?;
        Ok(Response::new(answer))
    }
}

#[tonic::async_trait]
impl fleet::fleet_service_server::FleetService for Fleet {
    async fn list_gpu_types(
        &self,
        request: Request<fleet::ListGpuTypesRequest>,
    ) -> Result<Response<fleet::ListGpuTypesResponse>, Status> {
        caller(&request)?.require(Role::Viewer)?;
        let present = self.0.present().await?;
        let gpu_types = present
            .devices()
            .map(|(device, count)| gpu_type(&device, count))
            .collect();
        Ok(Response::new(fleet::ListGpuTypesResponse { gpu_types }))
    }

    async fn list_workers(
        &self,
        request: Request<fleet::ListWorkersRequest>,
    ) -> Result<Response<fleet::ListWorkersResponse>, Status> {
        caller(&request)?.require_operator()?;
        let workers = self.0.list_workers().await?;
        Ok(Response::new(fleet::ListWorkersResponse { workers }))
    }

    async fn register_worker(
        &self,
        request: Request<fleet::RegisterWorkerRequest>,
    ) -> Result<Response<fleet::RegisterWorkerResponse>, Status> {
        caller(&request)?.require_worker()?;
        let described = request.into_inner().worker.unwrap_or_default();
        let id = self.0.register(described).await?;
        Ok(Response::new(fleet::RegisterWorkerResponse {
            worker_id: id.to_string(),
            heartbeat_seconds: i32::try_from(self.0.config.heartbeat.as_secs())
                .unwrap_or(1)
                .max(1),
        }))
    }

    async fn take_lease(
        &self,
        request: Request<fleet::TakeLeaseRequest>,
    ) -> Result<Response<fleet::TakeLeaseResponse>, Status> {
        caller(&request)?.require_worker()?;
        let request = request.into_inner();
        let worker_id = Id::parse_field("worker_id", &request.worker_id)?;
        let wait = Duration::from_secs(request.wait_seconds.max(0).unsigned_abs().into());
        let wait = Ord::min(wait, LEASE_WAIT_MAX);
        let taken = self.0.take_lease(worker_id, wait).await?;
        let lease = taken.map(|(job, lease)| fleet::Lease {
            id: lease.id.to_string(),
            run_id: job.run_id.to_string(),
            fence: lease.fence,
            deadline: Some(lease.deadline.into()),
        });
        Ok(Response::new(fleet::TakeLeaseResponse { lease }))
    }

    async fn extend_lease(
        &self,
        request: Request<fleet::ExtendLeaseRequest>,
    ) -> Result<Response<fleet::ExtendLeaseResponse>, Status> {
        caller(&request)?.require_worker()?;
        let request = request.into_inner();
        let lease_id = Id::parse_field("lease_id", &request.lease_id)?;
        let (worker_id, deadline, wish) =
            commands::extend_lease(&self.0.store, lease_id, request.fence, self.0.config.lease)
                .await?;
        if let Some(progress) = request.progress {
            self.0.progress.lock().await.insert(worker_id, progress);
        }
        Ok(Response::new(fleet::ExtendLeaseResponse {
            deadline: Some(deadline.into()),
            wish: proto_wish(wish).into(),
        }))
    }

    async fn release_lease(
        &self,
        request: Request<fleet::ReleaseLeaseRequest>,
    ) -> Result<Response<fleet::ReleaseLeaseResponse>, Status> {
        caller(&request)?.require_worker()?;
        self.0.release(&request.into_inner()).await?;
        Ok(Response::new(fleet::ReleaseLeaseResponse {}))
    }
}

impl Scheduler {
    async fn register(&self, described: fleet::Worker) -> Result<Id<WorkerMarker>, Error> {
        let now = self.clock.now();
        let id = Id::parse_optional("worker.id", &described.id)?.unwrap_or_else(|| Id::new(now));
        let is_known = described.gpu_type == CPU || catalogue::find(&described.gpu_type).is_some();
        if !is_known {
            return Err(Error::UnknownGpuType {
                gpu_type: described.gpu_type,
            });
        }
        let worker = store::Worker {
            id,
            gpu_type: described.gpu_type,
            device: described.device,
            host: described.host,
            flops_per_second: described.flops_per_second,
            bandwidth_bytes_per_second: described.bandwidth_bytes_per_second,
            memory_bytes: described.memory_bytes,
            thread_count: described.thread_count.into(),
            build: described.build,
            registered_at: now,
            last_seen_at: now,
        };
        commands::register_worker(&self.store, &worker).await?;
        self.progress.lock().await.remove(&id);
        tracing::info!(worker = %id, gpu_type = worker.gpu_type, host = worker.host, "a worker registered");
        Ok(id)
    }

    /// Waits for a job, looking again whenever something is queued.
    async fn take_lease(
        &self,
        worker_id: Id<WorkerMarker>,
        wait: Duration,
    ) -> Result<Option<(Job, job::Lease)>, Error> {
        let deadline = self.clock.now() + wait;
        loop {
            let woken = self.queued.notified();
            let taken = commands::take_lease(&self.store, worker_id, self.config.lease).await?;
            let now = self.clock.now();
            if let Some((job, _)) = &taken {
                instruments::leased(&job.gpu_type, now.since(job.queued_at));
            }
            let left = now.until(deadline);
            if taken.is_some() || left.is_zero() || self.shutdown.is_cancelled() {
                return Ok(taken);
            }
            tokio::select! {
                () = woken => {}
                () = self.shutdown.cancelled() => {}
                () = tokio::time::sleep(Ord::min(left, LEASE_POLL)) => {}
            }
        }
    }

    async fn release(&self, request: &fleet::ReleaseLeaseRequest) -> Result<(), Error> {
        let lease_id = Id::parse_field("lease_id", &request.lease_id)?;
        let released = commands::release_lease(&self.store, lease_id, request.fence).await?;
        let Some((job, worker)) = released else {
            return Ok(());
        };
        self.progress.lock().await.remove(&worker.id);
        if request.images_trained <= 0 || request.training_micros <= 0 {
            return Ok(());
        }
        let spec = TrainSpec::decode(job.spec.as_slice()).unwrap_or_default();
        let class_count = usize::try_from(request.class_count).unwrap_or(1).max(1);
        let training = Training::new(spec, class_count)?;
        let work = training.work(catalogue::target(&worker.gpu_type), 0, 0)?;
        let prior = estimate::prior_seconds_per_image(
            &worker.as_device(),
            work.step_flops_per_image,
            work.step_bytes_per_image,
        );
        let seconds = request.training_micros as f64 / 1e6 / request.images_trained as f64;
        let observation = store::Observation {
            gpu_type: worker.gpu_type,
            model: training.spec.model.clone(),
            image_size: training.spec.image_size.into(),
            batch: training.spec.batch.into(),
            images: request.images_trained,
            micros: request.training_micros,
            observed_over_prior: seconds / prior,
        };
        let observation = &observation;
        self.store
            .write(|tx| async move { store::observe(&tx, observation, tx.now()).await })
            .await?;
        Ok(())
    }

    async fn list_workers(&self) -> Result<Vec<fleet::Worker>, Error> {
        let now = self.clock.now();
        let progress = self.progress.lock().await.clone();
        let mut listed = Vec::new();
        for worker in store::workers_since(self.store.read(), Timestamp::EPOCH).await? {
            let jobs = store::jobs_of_worker(self.store.read(), worker.id).await?;
            let silence = now.since(worker.last_seen_at);
            let state = if silence > self.config.lease {
                "gone"
            } else if silence > self.config.suspect_after {
                "suspect"
            } else if jobs.is_empty() {
                "idle"
            } else {
                "busy"
            };
            listed.push(fleet::Worker {
                id: worker.id.to_string(),
                gpu_type: worker.gpu_type,
                device: worker.device,
                host: worker.host,
                state: state.to_owned(),
                run_id: jobs
                    .first()
                    .map(|job| job.run_id.to_string())
                    .unwrap_or_default(),
                registered_at: Some(worker.registered_at.into()),
                last_seen_at: Some(worker.last_seen_at.into()),
                flops_per_second: worker.flops_per_second,
                bandwidth_bytes_per_second: worker.bandwidth_bytes_per_second,
                memory_bytes: worker.memory_bytes,
                thread_count: i32::try_from(worker.thread_count).unwrap_or(i32::MAX),
                build: worker.build,
                progress: if jobs.is_empty() {
                    None
                } else {
                    progress.get(&worker.id).cloned()
                },
            });
        }
        Ok(listed)
    }

    async fn list_jobs(
        &self,
        workspace_id: Id<Workspace>,
        request: jobs::ListJobsRequest,
    ) -> Result<jobs::ListJobsResponse, Error> {
        let after = Id::parse_optional("page_token", &request.page_token)?;
        let limit = match i64::from(request.page_size) {
            0 => PAGE_DEFAULT,
            size => size.clamp(1, PAGE_MAX),
        };
        let mut page = store::live_jobs(self.store.read(), workspace_id, after, limit + 1).await?;
        let has_more = page.len() > usize::try_from(limit).unwrap_or(usize::MAX);
        if has_more {
            page.pop();
        }
        let next_page_token = match page.last() {
            Some(last) if has_more => last.id.to_string(),
            _ => String::new(),
        };
        let present = self.present().await?;
        let mut orders: BTreeMap<String, Vec<Id<kit::id::Job>>> = BTreeMap::new();
        let mut listed = Vec::with_capacity(page.len());
        for job in page {
            if !orders.contains_key(&job.gpu_type) {
                let waiting = store::waiting(self.store.read(), &job.gpu_type).await?;
                let running = store::running(self.store.read(), &job.gpu_type).await?;
                orders.insert(job.gpu_type.clone(), placement::order(&waiting, &running));
            }
            let position = orders[&job.gpu_type].iter().position(|id| *id == job.id);
            let position = position.map_or(0, |place| place + 1);
            listed.push(proto_job(&job, position, present.count(&job.gpu_type)));
        }
        Ok(jobs::ListJobsResponse {
            jobs: listed,
            next_page_token,
        })
    }

    async fn estimate(
        &self,
        caller: &Caller,
        request: jobs::EstimateRunRequest,
    ) -> Result<jobs::EstimateRunResponse, Error> {
        let version_id = request.version_id.clone();
        let version = self
            .datasets
            .clone()
            .get_version(act_for(
                caller,
                GetVersionRequest {
                    version_id: version_id.clone(),
                },
            ))
            .await
            .map_err(|status| Fault::from_status(&status))?
            .into_inner()
            .version
            .unwrap_or_default();
        let (train, val) = (
            image_count(&version, Split::Train),
            image_count(&version, Split::Val),
        );
        if train == 0 {
            return Err(Error::NothingToTrain { version_id });
        }
        let training = Training::new(request.spec.unwrap_or_default(), version.class_names.len())?;
        let on_cpu = training.work(Target::Cpu, train, val)?;
        let on_gpu = training.work(Target::gpu(), train, val)?;
        let terms = self.terms(caller).await?;
        let present = self.present().await?;
        let mut rows = Vec::new();
        for (device, worker_count) in present.devices() {
            if !request.gpu_type.is_empty() && request.gpu_type != device.gpu_type {
                continue;
            }
            let observed = store::observed(self.store.read(), &device.gpu_type).await?;
            let work = match catalogue::target(&device.gpu_type) {
                Target::Cpu => &on_cpu,
                Target::Gpu { .. } => &on_gpu,
            };
            let time = estimate::time(&device, work, &observed);
            rows.push(row(&device, worker_count, &training, time, &terms)?);
        }
        if rows.is_empty() {
            return Err(Error::UnknownGpuType {
                gpu_type: request.gpu_type,
            });
        }
        mark(&mut rows);
        Ok(jobs::EstimateRunResponse {
            devices: rows,
            train_image_count: i32::try_from(train).unwrap_or(i32::MAX),
            val_image_count: i32::try_from(val).unwrap_or(i32::MAX),
        })
    }

    async fn terms(&self, caller: &Caller) -> Result<Terms, Error> {
        let fault = |status: Status| Fault::from_status(&status);
        let prices = self
            .billing
            .clone()
            .list_prices(act_for(caller, ListPricesRequest {}))
            .await
            .map_err(fault)?
            .into_inner()
            .prices;
        let workspace_id = caller.workspace()?.to_string();
        let workspace = self
            .accounts
            .clone()
            .get_workspace(GetWorkspaceRequest { workspace_id })
            .await
            .map_err(fault)?
            .into_inner()
            .workspace
            .unwrap_or_default();
        let prices = prices
            .into_iter()
            .map(|price| (price.gpu_type.clone(), price))
            .collect();
        Ok(Terms {
            prices,
            plan: workspace.plan(),
        })
    }

    /// Returns the devices of the catalogue with the workers that are here.
    async fn present(&self) -> Result<Present, Error> {
        let since = self.clock.now() - self.config.lease;
        Ok(Present(
            store::workers_since(self.store.read(), since).await?,
        ))
    }
}

/// The workers that are here.
struct Present(Vec<store::Worker>);

impl Present {
    fn count(&self, gpu_type: &str) -> usize {
        self.0
            .iter()
            .filter(|worker| worker.gpu_type == gpu_type)
            .count()
    }

    /// Returns every device type, the CPU first, with its number of workers. A type that workers measured is
    /// described by the slowest of them: an estimate must hold on whichever takes the run.
    fn devices(&self) -> impl Iterator<Item = (Device, usize)> {
        let sheets = std::iter::once(catalogue::unmeasured_cpu()).chain(catalogue::gpus().to_vec());
        sheets.map(|sheet| {
            let slowest = self
                .0
                .iter()
                .filter(|worker| worker.gpu_type == sheet.gpu_type)
                .min_by_key(|worker| worker.flops_per_second)
                .map(store::Worker::as_device);
            let count = self.count(&sheet.gpu_type);
            (slowest.unwrap_or(sheet), count)
        })
    }
}

/// What the caller's workspace pays, and may use.
struct Terms {
    prices: HashMap<String, Price>,
    plan: Plan,
}

impl Terms {
    fn allows(&self, price: &Price) -> bool {
        let least = match price.plan.as_str() {
            "pro" => Plan::Pro,
            "enterprise" => Plan::Enterprise,
            _ => Plan::Free,
        };
        self.plan as i32 >= least as i32
    }
}

fn row(
    device: &Device,
    worker_count: usize,
    training: &Training,
    time: Time,
    terms: &Terms,
) -> Result<jobs::DeviceEstimate, Error> {
    let price = terms.prices.get(&device.gpu_type);
    let per_hour = price.map_or(0, |price| price.per_hour_micros);
    let rate = PricePerHour::from_micros(per_hour).map_err(Fault::internal)?;
    let cost = |time: Duration| -> Result<i64, Error> {
        Ok(cost_rounded_half_up(rate, time)
            .map_err(Fault::internal)?
            .micros())
    };
    let target = catalogue::target(&device.gpu_type);
    let needed_bytes = training.needed_bytes(target)?;
    let fits = needed_bytes <= device.memory_bytes;
    let is_allowed = price.is_some_and(|price| terms.allows(price));
    let largest_batch = training.largest_batch(target, device.memory_bytes)?;
    let remark = if worker_count == 0 {
        "no provider here".to_owned()
    } else if price.is_none() {
        "it has no price: `fovea billing set-price` gives it one".to_owned()
    } else if !is_allowed {
        "not in the workspace's plan".to_owned()
    } else if !fits {
        format!(
            "batch {} doesn't fit; the largest that does is {largest_batch}",
            training.spec.batch
        )
    } else {
        time.bound_by.words().to_owned()
    };
    let memory = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let span = |span: Duration| prost_types::Duration::try_from(span).ok();
    Ok(jobs::DeviceEstimate {
        gpu_type: device.gpu_type.clone(),
        display_name: device.display_name.clone(),
        is_offered: worker_count > 0,
        is_allowed,
        fits,
        needed_bytes: memory(needed_bytes),
        memory_bytes: memory(device.memory_bytes),
        largest_batch: i32::try_from(largest_batch).unwrap_or(i32::MAX),
        estimate: Some(Estimate {
            time_low: span(time.low),
            time_likely: span(time.likely),
            time_high: span(time.high),
            cost_low_micros: cost(time.low)?,
            cost_likely_micros: cost(time.likely)?,
            cost_high_micros: cost(time.high)?,
            basis: if time.is_fitted { "fitted" } else { "prior" }.to_owned(),
        }),
        price_per_hour_micros: per_hour,
        remark,
        images_per_second: time.images_per_second,
        ..Default::default()
    })
}

/// Marks the best rows and puts the usable ones first, cheapest on top.
fn mark(rows: &mut [jobs::DeviceEstimate]) {
    let is_usable = |row: &jobs::DeviceEstimate| row.is_offered && row.is_allowed && row.fits;
    let likely = |row: &jobs::DeviceEstimate| {
        let estimate = row
            .estimate
            .as_ref()
            .expect("invariant: every row has an estimate");
        let time = estimate.time_likely.unwrap_or_default();
        (
            Duration::try_from(time).unwrap_or_default(),
            estimate.cost_likely_micros,
        )
    };
    let candidates: Vec<Candidate> = rows
        .iter()
        .map(|row| {
            let (time, cost_micros) = likely(row);
            Candidate {
                is_usable: is_usable(row),
                seconds: time.as_secs_f64(),
                cost_micros,
            }
        })
        .collect();
    let marks = estimate::rank(&candidates);
    for (index, row) in rows.iter_mut().enumerate() {
        row.is_cheapest = marks.cheapest == Some(index);
        row.is_fastest = marks.fastest == Some(index);
        row.is_recommended = marks.recommended == Some(index);
    }
    rows.sort_by_key(|row| (!is_usable(row), likely(row).1));
}

fn image_count(version: &Version, split: Split) -> u64 {
    let counted = version
        .splits
        .iter()
        .filter(|summary| summary.split() == split);
    counted
        .map(|summary| u64::from(summary.image_count.max(0).unsigned_abs()))
        .sum()
}

fn gpu_type(device: &Device, worker_count: usize) -> fleet::GpuType {
    fleet::GpuType {
        id: device.gpu_type.clone(),
        display_name: device.display_name.clone(),
        architecture: device.architecture.clone(),
        memory_bytes: i64::try_from(device.memory_bytes).unwrap_or(i64::MAX),
        worker_count: i32::try_from(worker_count).unwrap_or(i32::MAX),
        bandwidth_bytes_per_second: device.bandwidth_bytes_per_second as i64,
        flops_per_second: device.flops_per_second as i64,
    }
}

fn proto_job(job: &Job, position: usize, worker_count: usize) -> jobs::Job {
    let state = match job.state {
        job::State::Queued => jobs::JobState::Queued,
        job::State::Leased => jobs::JobState::Leased,
        job::State::Ended => jobs::JobState::Ended,
    };
    let waiting_because = match (job.state, position, worker_count) {
        (job::State::Queued, _, 0) => format!("no worker here has a {}", job.gpu_type),
        (job::State::Queued, 1, _) => format!("the next free {} takes it", job.gpu_type),
        (job::State::Queued, place, _) => format!("{} jobs are before it", place.saturating_sub(1)),
        _ => String::new(),
    };
    jobs::Job {
        id: job.id.to_string(),
        run_id: job.run_id.to_string(),
        gpu_type: job.gpu_type.clone(),
        state: state.into(),
        position: i32::try_from(position).unwrap_or(i32::MAX),
        waiting_because,
        queued_at: Some(job.queued_at.into()),
        worker_id: job
            .lease
            .as_ref()
            .map(|lease| lease.worker_id.to_string())
            .unwrap_or_default(),
    }
}

fn proto_wish(wish: Wish) -> fleet::Wish {
    match wish {
        Wish::Run => fleet::Wish::Run,
        Wish::Pause => fleet::Wish::Pause,
        Wish::Cancel => fleet::Wish::Cancel,
        Wish::Drain => fleet::Wish::Drain,
    }
}
