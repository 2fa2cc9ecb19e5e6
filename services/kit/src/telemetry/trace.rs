//! W3C trace context, in and out.

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::bus::Envelope;

const TRACEPARENT: &str = "traceparent";

/// Returns the trace context of the current span, for a header.
pub fn current_traceparent() -> Option<String> {
    traceparent(&Span::current())
}

/// Returns a span's trace context, for a header.
pub(super) fn traceparent(span: &Span) -> Option<String> {
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&span.context(), &mut carrier);
    carrier.remove(TRACEPARENT)
}

/// Makes a span the child of the one that a header names.
pub fn follow_traceparent(span: &Span, traceparent: &str) {
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let parent = TraceContextPropagator::new().extract(&carrier);
    // Fails where no exporter listens: then there is no trace to be part of.
    let _ = span.set_parent(parent);
}

/// Returns the span in which a fact travels to its stream.
pub(crate) fn publish_span(envelope: &Envelope) -> Span {
    let template = crate::bus::template(&envelope.name);
    let span = tracing::info_span!(
        "publish",
        otel.name = format!("publish {template}"),
        otel.kind = "producer",
        messaging.system = "nats",
        messaging.operation.r#type = "send",
        messaging.destination.template = template,
        messaging.message.id = %envelope.id,
    );
    if let Some(parent) = &envelope.traceparent {
        follow_traceparent(&span, parent);
    }
    span
}

/// Returns the span in which a fact takes effect.
pub(crate) fn process_span(envelope: &Envelope, durable: &str) -> Span {
    let template = crate::bus::template(&envelope.name);
    let span = tracing::info_span!(
        "process",
        otel.name = format!("process {template}"),
        otel.kind = "consumer",
        messaging.system = "nats",
        messaging.operation.r#type = "process",
        messaging.destination.template = template,
        messaging.message.id = %envelope.id,
        messaging.consumer.group.name = durable,
        fovea.workspace.id = Empty,
    );
    if let Some(workspace) = envelope.workspace {
        span.record("fovea.workspace.id", tracing::field::display(workspace));
    }
    if let Some(parent) = &envelope.traceparent {
        follow_traceparent(&span, parent);
    }
    span
}
