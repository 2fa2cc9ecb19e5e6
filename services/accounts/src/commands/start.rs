//! The first start: a workspace, its owner, and the operator's key in a file.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kit::auth::{API_KEY_PREFIX, ApiKey, Principal, Role, hash_api_key};
use kit::config::Secret;
use kit::fault::{Fault, Kind};

use super::workspaces::make_workspace;
use super::{Accounts, NewWorkspace};
use crate::error::Error;
use crate::store;

/// The file in the data folder that holds the operator's key.
pub const ADMIN_KEY_FILE: &str = "admin.key";
const DEFAULT_SLUG: &str = "default";

impl Accounts {
    /// Makes the workspace `default` with its owner, and the operator's key in `<data>/admin.key`, unless there is any
    /// workspace.
    ///
    /// The file is written before the commit: whoever is killed in between finds it at the next start and uses its key,
    /// so that the key in the file is always the one that works.
    pub async fn start(&self, data: &Path) -> Result<(), Error> {
        if store::has_workspaces(self.store.read()).await? {
            return Ok(());
        }
        let path = data.join(ADMIN_KEY_FILE);
        let secret = &claim_key(&path)?;
        let command = &NewWorkspace {
            slug: DEFAULT_SLUG.to_owned(),
            name: "Default".to_owned(),
            plan: None,
            owner_email: self.config.owner_email.clone(),
            owner_name: "Owner".to_owned(),
        };
        let plan = self.default_plan;
        let is_first = self
            .store
            .write(|tx| async move {
                if store::has_workspaces(&tx).await? {
                    return Ok(false);
                }
                let principal = Principal::Service(tx.service().to_owned());
                let key = key_of(secret);
                make_workspace(&tx, &principal, command, plan, Role::Operator, key).await?;
                Ok::<_, Error>(true)
            })
            .await?;
        if is_first {
            tracing::info!(file = %path.display(), "made the default workspace and its operator key");
        } else {
            tracing::warn!(
                file = %path.display(),
                "another process made the default workspace: the operator key is in its file"
            );
        }
        Ok(())
    }
}

fn key_of(secret: &str) -> ApiKey {
    let hint_length = API_KEY_PREFIX.len() + 4;
    ApiKey {
        secret: Secret::new(secret.to_owned()),
        hash: hash_api_key(secret),
        hint: secret.chars().take(hint_length).collect(),
    }
}

/// Returns the key in the file, or makes one there: whole, durable, and readable by its owner only.
fn claim_key(path: &Path) -> Result<String, Fault> {
    let failed = |error: std::io::Error| {
        let message = format!(
            "{}: the operator key can't be written: {error}",
            path.display()
        );
        Fault::new(
            Kind::Precondition,
            "ADMIN_KEY_UNWRITABLE",
            "accounts",
            message,
        )
    };
    loop {
        match fs::read_to_string(path) {
            Ok(text) => return check_key(path, text.trim()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                create_key(path).map_err(failed)?
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

fn check_key(path: &Path, text: &str) -> Result<String, Fault> {
    let length = ApiKey::generate().secret.expose().len();
    if text.len() == length && text.starts_with(API_KEY_PREFIX) {
        return Ok(text.to_owned());
    }
    let message = format!(
        "{}: holds no key of ours: remove the file and start again",
        path.display()
    );
    Err(Fault::new(
        Kind::Precondition,
        "ADMIN_KEY_UNREADABLE",
        "accounts",
        message,
    ))
}

/// Writes a key beside its place and links it there: nobody ever reads half a key, and of two writers the first wins.
fn create_key(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    // A draft of a process that was killed and had our number.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    writeln!(file, "{}", ApiKey::generate().secret.expose())?;
    file.sync_all()?;
    let linked = match fs::hard_link(&draft, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    };
    fs::remove_file(&draft)?;
    fs::File::open(folder)?.sync_all()?;
    linked
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_operators_key_is_written_once_and_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data").join(ADMIN_KEY_FILE);
        let first = claim_key(&path).unwrap();
        assert_eq!(claim_key(&path).unwrap(), first);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_with_something_else_is_not_taken_for_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ADMIN_KEY_FILE);
        fs::write(&path, "hunter2\n").unwrap();
        let fault = claim_key(&path).unwrap_err();
        assert!(fault.is("ADMIN_KEY_UNREADABLE"), "{fault}");
        assert!(!fault.message.contains("hunter2"));
    }
}
