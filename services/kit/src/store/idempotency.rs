//! Answers remembered by the client's key, so that a repeated command is the same command.

use std::time::Duration;

use prost::Message;

use super::{Error, FromRow, Row, Tx};
use crate::params;
use crate::time::Timestamp;

/// The longest key.
pub const KEY_LENGTH_MAX: usize = 128;
/// How long an answer is remembered.
pub const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

struct Remembered {
    digest: Vec<u8>,
    response: Vec<u8>,
}

impl FromRow for Remembered {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            digest: row.get("request_digest")?,
            response: row.get("response")?,
        })
    }
}

impl Tx {
    /// Returns the answer that this key got before in this scope, if any.
    ///
    /// The scope names the command and whose it is: `StartRun/ws_…`. The same key with another
    /// request is refused. An empty key is none.
    pub async fn recall<Response: Message + Default>(
        &self,
        scope: &str,
        key: &str,
        request: &impl Message,
    ) -> Result<Option<Response>, Error> {
        let length = key.chars().count();
        if length > KEY_LENGTH_MAX {
            return Err(Error::KeyTooLong {
                max: KEY_LENGTH_MAX,
                length,
            });
        }
        if key.is_empty() {
            return Ok(None);
        }
        let remembered = self
            .query_optional::<Remembered>(
                "select request_digest, response from idempotency where scope = $1 and key = $2",
                params![scope, key],
            )
            .await?;
        let Some(Remembered { digest, response }) = remembered else {
            return Ok(None);
        };
        if digest != digest_of(request) {
            return Err(Error::KeyReused {
                key: key.to_owned(),
            });
        }
        Response::decode(response.as_slice())
            .map(Some)
            .map_err(|error| Error::Column {
                column: "response".to_owned(),
                problem: error.to_string(),
            })
    }

    /// Remembers the answer to this key, in the transaction that made it true.
    pub async fn remember(
        &self,
        scope: &str,
        key: &str,
        request: &impl Message,
        response: &impl Message,
    ) -> Result<(), Error> {
        if key.is_empty() {
            return Ok(());
        }
        let digest = digest_of(request);
        let written = self
            .execute(
                "insert into idempotency (scope, key, request_digest, response, created_at)
                 values ($1, $2, $3, $4, $5) on conflict (scope, key) do nothing",
                params![scope, key, digest, response.encode_to_vec(), self.now()],
            )
            .await?;
        if written == 0 {
            // The same command ran beside this one and was faster: run again and recall its
            // answer.
            self.mark_conflict();
            return Err(Error::KeyReused {
                key: key.to_owned(),
            });
        }
        Ok(())
    }

    /// Forgets answers that are older than [`KEPT_FOR`].
    pub(crate) async fn forget_answers(&self, now: Timestamp) -> Result<u64, Error> {
        let sql = "delete from idempotency where created_at < $1";
        self.execute(sql, params![now - KEPT_FOR]).await
    }
}

fn digest_of(request: &impl Message) -> Vec<u8> {
    blake3::hash(&request.encode_to_vec()).as_bytes().to_vec()
}
