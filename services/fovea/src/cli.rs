//! The command line: every command and argument.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Trains vision models on your own machines: import, estimate, train, watch, pay, deploy, export.
#[derive(Debug, Parser)]
#[command(name = "fovea", version, max_term_width = 100)]
pub struct Cli {
    /// Prints JSON instead of tables; errors too.
    #[arg(long, global = true)]
    pub json: bool,
    /// The configuration file.
    #[arg(long, global = true, env = "FOVEA_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Starts a whole fleet on this machine: NATS and one process for each service.
    Up(Up),
    /// Runs the named services in this process.
    Serve(Serve),
    /// Remembers where the fleet is and the key to call it with.
    Login(Login),
    /// Imports, lists and makes datasets.
    #[command(subcommand)]
    Datasets(Datasets),
    /// Shows time, cost and fit of a training on every device type, before anything starts.
    Estimate(Estimate),
    /// Starts a training and watches it.
    Train(Train),
    /// Lists, watches, stops, resumes and compares runs.
    #[command(subcommand)]
    Runs(Runs),
    /// Lists and exports trained models.
    #[command(subcommand)]
    Models(Models),
    /// Deploys a model to an endpoint and waits until it answers.
    Deploy(Deploy),
    /// Finds the objects in a picture.
    Predict(Predict),
    /// Follows the facts of the workspace.
    #[command(subcommand)]
    Events(Events),
    /// Balance, transfers, prices, top-ups and the ledger's check.
    #[command(subcommand)]
    Billing(Billing),
    /// Looks at this machine and the fleet, and says what is missing.
    Doctor,
    /// Shows every configuration value and where it came from.
    Config,
    /// Uses the training engine alone, without a fleet.
    #[command(subcommand)]
    Engine(Engine),
}

#[derive(Debug, Args)]
pub struct Up {
    /// Where everything is kept; overrides `fleet.data_dir`.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Starts no worker on this machine.
    #[arg(long)]
    pub no_worker: bool,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// accounts, datasets, projects, billing, scheduler, worker, inference, gateway.
    #[arg(required = true, value_name = "SERVICE")]
    pub services: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Login {
    /// The gateway's address.
    #[arg(long, env = "FOVEA_URL", default_value = crate::client::DEFAULT_URL)]
    pub url: String,
    /// The key; by default the one that the first start wrote to `<data>/admin.key`.
    #[arg(long, env = "FOVEA_KEY", hide_env_values = true)]
    pub key: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Datasets {
    /// Imports a YOLO zip or folder, from a path or an http(s) address.
    Import {
        source: String,
        /// The dataset's name; by default the file's.
        #[arg(long)]
        name: Option<String>,
        /// Makes a new version of this dataset (id or name).
        #[arg(long, conflicts_with = "name")]
        into: Option<String>,
        /// Leaves faulty rows and pictures out and names them, instead of refusing the whole import.
        #[arg(long)]
        skip_faulty: bool,
    },
    /// Lists datasets.
    Ls,
    /// Pages through the images of a dataset.
    Images {
        /// A dataset (id or name) or a version (id).
        dataset: String,
        /// train, val or test.
        #[arg(long)]
        split: Option<String>,
        #[arg(long, default_value_t = 50)]
        limit: i32,
    },
    /// Makes a dataset of procedural pictures with boxes, the same for the same seed.
    Sample {
        /// Where the zip goes.
        #[arg(default_value = "sample.zip")]
        output: PathBuf,
        #[arg(long, default_value_t = 200)]
        images: usize,
        /// The pictures' width and height in pixels.
        #[arg(long, default_value_t = 320)]
        size: u32,
        #[arg(long, default_value_t = 4)]
        classes: usize,
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
}

/// What to train.
#[derive(Debug, Args, Clone)]
pub struct Spec {
    /// A dataset (id or name) or a version (id).
    #[arg(long, visible_alias = "data")]
    pub dataset: String,
    #[arg(long, default_value = "yolo11n")]
    pub model: String,
    #[arg(long, default_value_t = 100)]
    pub epochs: i32,
    #[arg(long, default_value_t = 16)]
    pub batch: i32,
    /// The side of the square input in pixels.
    #[arg(long, default_value_t = 640)]
    pub imgsz: i32,
    #[arg(long, default_value_t = 0)]
    pub seed: u32,
    /// auto, SGD or AdamW.
    #[arg(long, default_value = "auto")]
    pub optimizer: String,
    /// Another argument of the recipe, such as `lr0=0.01`; may be given again.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = pair)]
    pub arguments: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct Estimate {
    #[command(flatten)]
    pub spec: Spec,
    /// Only this device type.
    #[arg(long)]
    pub gpu: Option<String>,
}

#[derive(Debug, Args)]
pub struct Train {
    #[command(flatten)]
    pub spec: Spec,
    /// The device type; by default the cheapest that fits.
    #[arg(long)]
    pub gpu: Option<String>,
    #[arg(long)]
    pub name: Option<String>,
    /// A project (id or name); made when it isn't there.
    #[arg(long)]
    pub project: Option<String>,
    /// The most it may cost, in credits; the run pauses there.
    #[arg(long, value_name = "CREDITS", value_parser = credits)]
    pub cap: Option<i64>,
    /// Returns as soon as the run is queued.
    #[arg(long)]
    pub detach: bool,
    /// Repeating a command with the same key starts nothing twice.
    #[arg(long)]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Runs {
    /// Lists runs, newest first.
    Ls {
        #[arg(long, default_value_t = 20)]
        limit: i32,
    },
    /// Shows one run.
    Show { run: String },
    /// Follows a run live until it ends. Ctrl-C stops watching, not the run.
    Watch { run: String },
    /// Ends a run, or pauses it.
    Stop {
        run: String,
        /// Keeps the checkpoint and the price, to go on later.
        #[arg(long)]
        pause: bool,
    },
    /// Puts a paused run back into the queue.
    Resume {
        run: String,
        /// A higher cap, in credits, for a run that paused at its own.
        #[arg(long, value_name = "CREDITS", value_parser = credits)]
        cap: Option<i64>,
    },
    /// Sets runs side by side.
    Compare {
        #[arg(required = true, num_args = 2..)]
        runs: Vec<String>,
    },
    /// Prints the log of a run.
    Logs { run: String },
}

#[derive(Debug, Subcommand)]
pub enum Models {
    /// Lists models, newest first.
    Ls,
    /// Saves one of a model's files.
    Export {
        model: String,
        /// onnx, weights or results.
        #[arg(long, default_value = "onnx")]
        format: String,
        /// By default the file's own name, here.
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct Deploy {
    pub model: String,
    /// The endpoint's name; the next revision of it when there is one.
    #[arg(long)]
    pub name: Option<String>,
}

#[derive(Debug, Args)]
pub struct Predict {
    /// An endpoint (id or name).
    pub endpoint: String,
    pub image: PathBuf,
    #[arg(long, default_value_t = 0.25)]
    pub conf: f32,
    #[arg(long, default_value_t = 0.7)]
    pub iou: f32,
    /// Saves the picture with the boxes drawn in.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Events {
    /// Prints facts as they happen.
    Tail {
        /// A type, or the beginning of one such as `fovea.runs.`; may be given again.
        #[arg(long = "type")]
        types: Vec<String>,
        /// Begins after this sequence; 1 shows everything that is kept.
        #[arg(long, default_value_t = 0)]
        after: i64,
    },
}

#[derive(Debug, Subcommand)]
pub enum Billing {
    /// Shows what there is and what is set aside.
    Balance,
    /// Lists transfers, newest first.
    Transfers {
        #[arg(long)]
        run: Option<String>,
        #[arg(long, default_value_t = 50)]
        limit: i32,
    },
    /// Shows what a run has cost, against its estimate.
    Charge { run: String },
    /// Lists what device types cost.
    Prices,
    /// Sets a price from now on (operator).
    SetPrice {
        gpu: String,
        /// Credits an hour.
        #[arg(value_parser = credits)]
        per_hour: i64,
    },
    /// Adds credits (operator).
    TopUp {
        #[arg(value_parser = credits)]
        credits: i64,
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Sums the ledger (operator).
    Check,
}

#[derive(Debug, Subcommand)]
pub enum Engine {
    /// Trains a model: `data=FOLDER model=yolo11n epochs=100 …`.
    Train {
        /// `name=value`, by the recipe's names.
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
    /// Measures a model on a split: `model=best.fovea data=FOLDER split=test`.
    Val {
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
    /// Finds objects: `model=best.fovea source=IMAGE|FOLDER save=FOLDER`.
    Predict {
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
    /// Writes a model as ONNX: `model=best.fovea`.
    Export {
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
    /// Prints the plan of a training or inference: buffers, peak memory, launches.
    Plan {
        #[arg(long, default_value = "yolo11n")]
        model: String,
        #[arg(long, default_value_t = 80)]
        classes: usize,
        /// The default is the task's: 224 for classification, else 640.
        #[arg(long)]
        imgsz: Option<usize>,
        #[arg(long, default_value_t = 16)]
        batch: usize,
        /// train or infer.
        #[arg(long, default_value = "train")]
        mode: String,
        /// Lists every launch.
        #[arg(long)]
        launches: bool,
    },
    /// Compiles the CUDA kernels and holds them to their lock file. Needs NVRTC, which `scripts/kernels.sh` gets.
    Kernels {
        /// `all`, or names with commas between them: `sm_89,sm_90a`.
        #[arg(long, default_value = "all")]
        arch: String,
        /// Prints only what differs from the lock file.
        #[arg(long)]
        check: bool,
        /// Writes the lock file.
        #[arg(long, conflicts_with = "check")]
        lock: bool,
    },
    /// Measures this machine: `mode=train|infer model=yolo11n imgsz=640 batch=16 threads=2 steps=10`.
    Bench {
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not name=value")),
    }
}

/// Reads credits with at most six decimals as micro-credits, without floating point.
pub fn credits(text: &str) -> Result<i64, String> {
    let refuse = || format!("'{text}' is not an amount of credits such as 2.50");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 6 || !digits(whole) || !digits(fraction) {
        return Err(refuse());
    }
    let whole: i64 = whole.parse().map_err(|_| refuse())?;
    let fraction: i64 = format!("{fraction:0<6}").parse().map_err(|_| refuse())?;
    whole
        .checked_mul(1_000_000)
        .and_then(|micros| micros.checked_add(fraction))
        .ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn credits_are_read_to_the_micro_credit() {
        assert_eq!(credits("2.50"), Ok(2_500_000));
        assert_eq!(credits("0.000001"), Ok(1));
        assert_eq!(credits("7"), Ok(7_000_000));
        for wrong in ["", ".5", "-1", "1.0000001", "1e3", "99999999999999"] {
            assert!(credits(wrong).is_err(), "{wrong}");
        }
    }
}
