//! A NATS server of a test's own.

use tempfile::TempDir;

use crate::process::Nats;

/// A NATS server that can be killed and started again on the same port with the same streams.
pub struct TestNats {
    folder: TempDir,
    server: Option<Nats>,
    port: u16,
}

impl TestNats {
    /// Starts a server on a free port.
    pub async fn start() -> Self {
        super::log();
        let folder = tempfile::tempdir().expect("a folder for the test's NATS");
        let port = super::free_port();
        let server = start(&folder, port).await;
        Self {
            folder,
            server: Some(server),
            port,
        }
    }

    /// Returns where clients connect.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server (SIGKILL); its streams stay.
    pub async fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill().await;
        }
    }

    /// Starts the server again where it was.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.server = Some(start(&self.folder, self.port).await);
    }
}

async fn start(folder: &TempDir, port: u16) -> Nats {
    Nats::start(folder.path(), &folder.path().join("run"), port)
        .await
        .unwrap_or_else(|fault| panic!("{fault}"))
}
