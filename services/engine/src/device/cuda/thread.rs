//! The device thread: all objects of a device live and die on it; others send it closures.

use std::sync::mpsc;
use std::thread::JoinHandle;

use super::device::Device;
use super::error::GpuError;
use super::pack::Pack;
use super::probe::Gpu;
use crate::ops::cuda::Source;

type Job = Box<dyn FnOnce(&Device) + Send>;

/// A device behind a thread of its own.
pub struct DeviceThread {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceThread {
    /// Starts the thread and opens the device on it.
    pub fn start(gpu: Gpu, sources: Vec<Source>, pack: Pack) -> Result<Self, GpuError> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (opened, answer) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("gpu-{}", gpu.ordinal))
            .spawn(move || {
                let device = match Device::open(&gpu, &sources, &pack) {
                    Ok(device) => device,
                    Err(error) => return drop(opened.send(Err(error))),
                };
                let _ = opened.send(Ok(()));
                for job in queue {
                    job(&device);
                }
            })
            .map_err(|_| GpuError::ThreadEnded)?;
        answer.recv().map_err(|_| GpuError::ThreadEnded)??;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Runs a closure there and waits for its answer.
    pub fn run<R: Send + 'static>(
        &self,
        job: impl FnOnce(&Device) -> Result<R, GpuError> + Send + 'static,
    ) -> Result<R, GpuError> {
        let (answer, answered) = mpsc::channel();
        let job: Job = Box::new(move |device| drop(answer.send(job(device))));
        let jobs = self.jobs.as_ref().ok_or(GpuError::ThreadEnded)?;
        jobs.send(job).map_err(|_| GpuError::ThreadEnded)?;
        answered.recv().map_err(|_| GpuError::ThreadEnded)?
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
