//! One child, and the supervision of one that must always run.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::fault::{Fault, Kind};
use crate::time::Stopwatch;

/// How long a child may take to end after SIGTERM.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause before a child that ended is started again; it doubles while it keeps ending.
const RESTART_PAUSE: Duration = Duration::from_millis(250);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(15);
/// How long a child must have run for its next end to count as the first.
const STEADY_AFTER: Duration = Duration::from_secs(60);
/// The longest line that is logged whole.
const LINE_LENGTH_MAX: usize = 16 << 10;

/// A running child in a process group of its own. It is killed when dropped, and by the kernel
/// when we die.
pub struct Child {
    name: String,
    process: tokio::process::Child,
}

impl Child {
    /// Starts a child; its output becomes log lines of ours, as they are.
    pub fn spawn(mut command: Command, name: &str) -> Result<Self, Fault> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        die_with_parent(&mut command);
        let program = command
            .as_std()
            .get_program()
            .to_string_lossy()
            .into_owned();
        let mut process = command.spawn().map_err(|error| {
            let message = format!("can't start {program}: {error}");
            Fault::new(Kind::Internal, "CHILD_NOT_STARTED", "kit", message)
        })?;
        if let Some(output) = process.stdout.take() {
            tokio::spawn(log_lines(name.to_owned(), output));
        }
        if let Some(output) = process.stderr.take() {
            tokio::spawn(log_lines(name.to_owned(), output));
        }
        Ok(Self {
            name: name.to_owned(),
            process,
        })
    }

    /// Returns the process id while it runs.
    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Waits until the child ends.
    pub async fn wait(&mut self) -> Result<ExitStatus, Fault> {
        self.process.wait().await.map_err(Fault::internal)
    }

    /// Asks the child to end (SIGTERM), and kills it if it does not in time.
    pub async fn stop(mut self) {
        self.signal(libc::SIGTERM);
        if tokio::time::timeout(STOP_TIMEOUT, self.process.wait())
            .await
            .is_err()
        {
            tracing::warn!(child = self.name, "did not end in time and is killed");
            self.kill().await;
        }
    }

    /// Kills the child (SIGKILL) and waits until it is gone.
    pub async fn kill(&mut self) {
        if let Err(error) = self.process.kill().await {
            tracing::debug!(child = self.name, %error, "was gone already");
        }
    }

    fn signal(&self, signal: libc::c_int) {
        let Some(id) = self
            .process
            .id()
            .and_then(|id| libc::pid_t::try_from(id).ok())
        else {
            return;
        };
        // SAFETY: `kill` takes two numbers and touches no memory. The child was not waited for
        // yet (`id` is some), so the number is still its own.
        #[expect(unsafe_code, reason = "the standard library sends SIGKILL only")]
        unsafe {
            libc::kill(id, signal);
        }
    }
}

/// Asks the kernel to end the child when we end, however we end.
fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let ask = move || {
        // SAFETY: `prctl` with PR_SET_PDEATHSIG and `getppid` take and return numbers, allocate
        // nothing and are safe between fork and exec.
        #[expect(unsafe_code, reason = "no safe wrapper exists")]
        let (asked, now_parent) = unsafe {
            (
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM),
                libc::getppid(),
            )
        };
        if asked != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // We may have died before the kernel was asked: then nobody would end the child.
        if u32::try_from(now_parent) != Ok(parent) {
            return Err(std::io::Error::other("the parent is gone"));
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec and only makes the two calls above.
    #[expect(unsafe_code, reason = "the only hook between fork and exec")]
    unsafe {
        command.pre_exec(ask);
    }
}

async fn log_lines(name: String, output: impl AsyncRead + Unpin) {
    let mut lines = BufReader::new(output).split(b'\n');
    while let Ok(Some(mut line)) = lines.next_segment().await {
        line.truncate(LINE_LENGTH_MAX);
        let line = String::from_utf8_lossy(&line);
        tracing::info!(target: "child", child = name, "{}", line.trim_end());
    }
}

/// What happened to a supervised child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supervised {
    /// It runs, under this process id.
    Started(u32),
    /// It ended, and starts again after this pause.
    Ended(Duration),
}

/// Keeps a child running until told to stop: starts it again whenever it ends, after a pause that
/// grows while it keeps ending. `command` makes it anew each time; `observe` hears what happens.
pub async fn supervise(
    name: &str,
    mut command: impl FnMut() -> Command,
    mut observe: impl FnMut(Supervised),
    shutdown: CancellationToken,
) -> Result<(), Fault> {
    let mut pause = RESTART_PAUSE;
    while !shutdown.is_cancelled() {
        let mut child = Child::spawn(command(), name)?;
        let running = Stopwatch::start();
        observe(Supervised::Started(child.id().unwrap_or_default()));
        let status = tokio::select! {
            status = child.wait() => status?,
            () = shutdown.cancelled() => {
                child.stop().await;
                return Ok(());
            }
        };
        if running.elapsed() >= STEADY_AFTER {
            pause = RESTART_PAUSE;
        }
        let again_after = pause;
        tracing::warn!(child = name, %status, ?again_after, "ended and starts again");
        observe(Supervised::Ended(pause));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        pause = (pause * 2).min(RESTART_PAUSE_MAX);
    }
    Ok(())
}
