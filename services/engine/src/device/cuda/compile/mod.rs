//! Compiles the kernels for every architecture, without a GPU, and holds what came out to the lock file: registers,
//! stack, shared memory, and the instructions a kernel claims to use.

mod cubin;
mod lock;
mod nvrtc;

pub use cubin::Resources;
pub use lock::{Lock, difference};

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::pack::{ARCHITECTURES, Architecture, Pack};
use super::table::{HEADERS, sources, sources_hash};
use crate::ops::cuda::{Kernel, Source, header};

/// What to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// Names of architectures; all when empty.
    pub architectures: Vec<String>,
    /// Where compiled files are kept, by the hash of all that went into them.
    pub cache: PathBuf,
    /// The pack to write.
    pub pack: PathBuf,
    pub lock: PathBuf,
    /// Whether the lock file is written anew or must agree.
    pub is_writing_lock: bool,
}

impl Default for Options {
    /// Compiles for every architecture and holds the result to the lock file, in a checkout.
    fn default() -> Self {
        let target = PathBuf::from("target");
        Self {
            architectures: Vec::new(),
            cache: target.join("kernels"),
            pack: target.join("kernels.pack"),
            lock: PathBuf::from("services/engine/ops/cuda/kernels.lock.json"),
            is_writing_lock: false,
        }
    }
}

/// What came out.
#[derive(Debug, Clone)]
pub struct Report {
    pub resources: Lock,
    /// How the resources differ from the lock file.
    pub difference: Vec<String>,
    /// Rules that kernels break.
    pub broken: Vec<String>,
    pub compiled: usize,
    pub pack_bytes: u64,
}

/// A refusal to compile.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error("no NVRTC library: run scripts/kernels.sh, which gets one")]
    NoCompiler,
    #[error("unknown architecture '{name}': {known}")]
    UnknownArchitecture { name: String, known: String },
    #[error("{source_name}.cu for {architecture}: {log}")]
    Refused {
        source_name: &'static str,
        architecture: &'static str,
        log: String,
    },
    #[error("{place}: {rule}")]
    Image { place: String, rule: String },
    #[error("{place}: {error}")]
    Io {
        place: String,
        error: std::io::Error,
    },
    #[error(transparent)]
    Pack(#[from] super::error::GpuError),
}

/// Registers of a multiprocessor.
const REGISTERS: u32 = 65_536;

/// Compiles, checks and writes the pack.
pub fn run(options: &Options) -> Result<Report, CompileError> {
    let architectures = chosen(&options.architectures)?;
    let sources = sources();
    let jobs: Vec<(&Source, &'static Architecture)> = sources
        .iter()
        .flat_map(|source| architectures.iter().map(move |&a| (source, a)))
        .collect();
    fs::create_dir_all(&options.cache).map_err(io(&options.cache))?;
    let done = compile_all(&jobs, &sources, &options.cache)?;
    let mut report = Report {
        resources: Lock::default(),
        difference: Vec::new(),
        broken: Vec::new(),
        compiled: done.iter().filter(|(_, is_new)| *is_new).count(),
        pack_bytes: 0,
    };
    let mut pack = Pack::default();
    for ((source, architecture), (image, _)) in jobs.iter().zip(done) {
        if !architecture.is_ptx() {
            inspect(source, architecture, &image, &mut report)?;
        }
        pack.insert(source.name, architecture.name, image);
    }
    if options.is_writing_lock {
        report.resources.write(&options.lock)?;
    } else {
        let known = Lock::read(&options.lock)?;
        let names: Vec<_> = architectures.iter().map(|known| known.name).collect();
        report.difference = difference(&known.only(&names), &report.resources);
    }
    pack.write(&options.pack, &sources_hash(&sources))?;
    report.pack_bytes = fs::metadata(&options.pack).map_or(0, |data| data.len());
    Ok(report)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Architecture>, CompileError> {
    if names.is_empty() || names.iter().any(|name| name == "all") {
        return Ok(ARCHITECTURES.iter().collect());
    }
    let find = |name: &String| {
        let found = ARCHITECTURES.iter().find(|known| known.name == name);
        found.ok_or_else(|| CompileError::UnknownArchitecture {
            name: name.clone(),
            known: ARCHITECTURES
                .iter()
                .map(|known| known.name)
                .collect::<Vec<_>>()
                .join(", "),
        })
    };
    names.iter().map(find).collect()
}

type Compiled = (Vec<u8>, bool);

/// Compiles on two threads: most of a compilation is outside NVRTC's own lock.
fn compile_all(
    jobs: &[(&Source, &'static Architecture)],
    sources: &[Source],
    cache: &Path,
) -> Result<Vec<Compiled>, CompileError> {
    let params = header(sources);
    let mut headers: Vec<(&str, &str)> = HEADERS.to_vec();
    headers.push(("params.h", &params));
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((source, architecture)) = jobs.get(index) else {
                        return;
                    };
                    let compiled = compile(source, architecture, &headers, cache);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.insert(index, compiled);
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_values().collect()
}

/// Takes a compiled file from the cache or makes it.
fn compile(
    source: &Source,
    architecture: &'static Architecture,
    headers: &[(&str, &str)],
    cache: &Path,
) -> Result<Compiled, CompileError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(nvrtc::version()?.as_bytes());
    for (name, text) in headers {
        hasher.update(name.as_bytes()).update(text.as_bytes());
    }
    hasher.update(source.text.as_bytes());
    hasher.update(architecture.name.as_bytes());
    let path = cache.join(format!(
        "{}-{}",
        source.name,
        &hasher.finalize().to_hex()[..24]
    ));
    if let Ok(image) = fs::read(&path) {
        return Ok((image, false));
    }
    let image = nvrtc::compile(source, architecture, headers)?;
    let partial = path.with_extension("partial");
    fs::write(&partial, &image).map_err(io(&partial))?;
    fs::rename(&partial, &path).map_err(io(&path))?;
    Ok((image, true))
}

/// Reads what a file of machine code needs and checks the rules.
fn inspect(
    source: &Source,
    architecture: &Architecture,
    image: &[u8],
    report: &mut Report,
) -> Result<(), CompileError> {
    let place = format!("{}/{}", source.name, architecture.name);
    let cubin = cubin::Cubin::read(image).map_err(|rule| CompileError::Image {
        place: place.clone(),
        rule,
    })?;
    // A division or a call of the compiler's own library, which is wanted in no kernel.
    for name in cubin.internals() {
        report.broken.push(format!("{place}: calls {name}"));
    }
    for kernel in source.kernels {
        let Some(resources) = cubin.resources(kernel.name) else {
            report
                .broken
                .push(format!("{place}: no machine code of {}", kernel.name));
            continue;
        };
        for rule in broken_rules(kernel, &resources) {
            report
                .broken
                .push(format!("{place}: {} {rule}", kernel.name));
        }
        report
            .resources
            .insert(kernel.name, architecture.name, resources);
    }
    Ok(())
}

fn broken_rules(kernel: &Kernel, resources: &Resources) -> Vec<String> {
    let mut rules = Vec::new();
    if resources.stack > 0 || resources.local > 0 {
        let (stack, local) = (resources.stack, resources.local);
        rules.push(format!("spills: {stack} bytes of stack, {local} accesses"));
    }
    // Registers are given out by eights, to each thread of a warp.
    let needed = resources.registers.next_multiple_of(8) * kernel.block * kernel.min_blocks;
    if needed > REGISTERS {
        rules.push(format!(
            "takes {needed} registers for {} blocks",
            kernel.min_blocks
        ));
    }
    let uses = kernel.uses;
    for (is_declared, count, what) in [
        (uses.tensor_cores, resources.mma, "products of matrices"),
        (uses.async_copies, resources.copies, "asynchronous copies"),
        (
            uses.matrix_loads,
            resources.matrix_loads,
            "loads of matrices",
        ),
    ] {
        if is_declared && count == 0 {
            rules.push(format!("has no {what}"));
        }
    }
    rules
}

impl Report {
    /// Returns whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.difference.is_empty() && self.broken.is_empty()
    }

    /// Writes the table of resources unless it is to be brief, then what is wrong.
    pub fn text(&self, is_brief: bool) -> String {
        let mut text = String::new();
        if !is_brief {
            text += &self.resources.table();
        }
        for line in &self.difference {
            let _ = writeln!(text, "differs from the lock: {line}");
        }
        for line in &self.broken {
            let _ = writeln!(text, "broken rule: {line}");
        }
        let _ = writeln!(
            text,
            "{} files compiled now, pack of {} bytes",
            self.compiled, self.pack_bytes
        );
        text
    }
}

fn io(place: &Path) -> impl FnOnce(std::io::Error) -> CompileError {
    let place = place.display().to_string();
    move |error| CompileError::Io { place, error }
}
