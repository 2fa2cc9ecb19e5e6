//! REST, server-sent events, uploads, blobs and the page: all that is not gRPC.

pub mod blobs;
pub mod body;
pub mod errors;
pub mod json;
pub mod live;
pub mod openapi;
pub mod page;
pub mod predict;
pub mod problem;
pub mod router;
pub mod session;
pub mod template;
pub mod transcode;
pub mod uploads;
