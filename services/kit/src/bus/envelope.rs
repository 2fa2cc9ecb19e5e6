//! The one form of a fact: CloudEvents 1.0 in structured JSON, the same bytes for every hearer.

use std::sync::OnceLock;

use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, SerializeOptions};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Error, Fact};
use crate::id::{Event, Id, Workspace};
use crate::time::Timestamp;

/// The content type of an envelope.
pub const CONTENT_TYPE: &str = "application/cloudevents+json";
const SPEC_VERSION: &str = "1.0";
const DATA_CONTENT_TYPE: &str = "application/json";

static DESCRIPTORS: OnceLock<DescriptorPool> = OnceLock::new();

/// Gives the process the descriptors of all messages; the first call counts.
pub fn install_descriptors(pool: DescriptorPool) {
    // A second service of the same binary brings the same pool.
    let _ = DESCRIPTORS.set(pool);
}

/// Returns the descriptors that were installed.
pub fn descriptors() -> Option<&'static DescriptorPool> {
    DESCRIPTORS.get()
}

/// A fact as it travels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    specversion: String,
    /// The id of the fact itself: what makes two deliveries the same.
    pub id: Id<Event>,
    /// Who told it: `/fovea/<service>`.
    pub source: String,
    /// The message's full name: `fovea.runs.v1.RunQueued`.
    #[serde(rename = "type")]
    pub name: String,
    /// The id of the thing the fact is about.
    pub subject: String,
    /// When it became true.
    pub time: Timestamp,
    datacontenttype: String,
    /// The workspace it belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Id<Workspace>>,
    /// The trace it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The message in proto3 JSON with the proto's own field names.
    pub data: Value,
}

impl Envelope {
    /// Puts a fact into its envelope.
    pub fn seal<M: Fact>(
        service: &str,
        workspace: Option<Id<Workspace>>,
        subject: impl Into<String>,
        message: &M,
        now: Timestamp,
    ) -> Result<Self, Error> {
        Ok(Self {
            specversion: SPEC_VERSION.to_owned(),
            id: Id::new(now),
            source: format!("/fovea/{service}"),
            name: M::full_name(),
            subject: subject.into(),
            time: now,
            datacontenttype: DATA_CONTENT_TYPE.to_owned(),
            workspace,
            traceparent: crate::telemetry::current_traceparent(),
            data: to_json(message)?,
        })
    }

    /// Reads an envelope.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, Error> {
        let envelope: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::malformed("a CloudEvents envelope", error))?;
        if envelope.specversion != SPEC_VERSION {
            let version = format!("specversion {}", envelope.specversion);
            return Err(Error::malformed("a CloudEvents 1.0 envelope", version));
        }
        Ok(envelope)
    }

    /// Writes the envelope.
    pub fn to_json(&self) -> Result<String, Error> {
        serde_json::to_string(self)
            .map_err(|error| Error::malformed("a CloudEvents envelope", error))
    }

    /// Tells whether this is the fact `M`.
    pub fn is<M: Fact>(&self) -> bool {
        self.name == M::full_name()
    }

    /// Returns the message of a fact that is known to be `M`.
    pub fn decode<M: Fact>(&self) -> Result<M, Error> {
        if !self.is::<M>() {
            return Err(Error::malformed(
                M::full_name(),
                format!("the envelope has {}", self.name),
            ));
        }
        let descriptor = descriptor::<M>()?;
        // A teller may be newer than its hearer: fields that nobody here knows are no error.
        let options = DeserializeOptions::new().deny_unknown_fields(false);
        let message = DynamicMessage::deserialize_with_options(descriptor, &self.data, &options)
            .map_err(|error| Error::malformed(M::full_name(), error))?;
        message
            .transcode_to()
            .map_err(|error| Error::malformed(M::full_name(), error))
    }
}

fn to_json<M: Fact>(message: &M) -> Result<Value, Error> {
    let mut dynamic = DynamicMessage::new(descriptor::<M>()?);
    dynamic
        .transcode_from(message)
        .map_err(|error| Error::malformed(M::full_name(), error))?;
    // Zeros are written too: who reads JSON should not have to know proto3's defaults.
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .skip_default_fields(false);
    dynamic
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| Error::malformed(M::full_name(), error))
}

fn descriptor<M: Fact>() -> Result<prost_reflect::MessageDescriptor, Error> {
    let name = M::full_name();
    let known = descriptors().and_then(|pool| pool.get_message_by_name(&name));
    known.ok_or(Error::NoDescriptor(name))
}
