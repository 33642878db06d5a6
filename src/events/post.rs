//! Writes events to the API server (`events.k8s.io/v1`).

use http::Method;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event as ApiEvent},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::mpsc::Receiver;

use super::{
    Event, Regarding,
    limit::{Limit, Verdict},
};
use crate::api_client::Access;

/// Namespace of events about objects without one, as in client-go.
const DEFAULT_NAMESPACE: &str = "default";

/// The component's name in events, by which people filter them.
const CONTROLLER: &str = "kube-proxy";

/// Maximum length of a note in bytes (`NoteLengthLimit` of `pkg/apis/core/validation/events.go`).
const LONGEST_NOTE: usize = 1024;

/// The end of a note that was cut.
const SHORTENED: &str = " … (the log has the full text)";

/// Writes the received `events` one after the other, within the limits per object. An event that
/// cannot be written is dropped; the log has it too.
pub async fn post(access: Access, node: String, mut events: Receiver<Event>) {
    let mut limit = Limit::default();
    while let Some(event) = events.recv().await {
        let reason = event.reason;
        if let Err(error) = write(&access, &node, event, &mut limit).await {
            tracing::debug!(reason, "cannot write an Event: {error}");
        }
    }
}

async fn write(
    access: &Access,
    node: &str,
    event: Event,
    limit: &mut Limit,
) -> Result<(), kube::Error> {
    let now = Timestamp::now();
    let object = object(&event, node, now);
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let api = |client| Api::<ApiEvent>::namespaced(client, namespace);
    match limit.judge(&event) {
        Verdict::Drop => {
            let reason = event.reason;
            tracing::debug!(reason, "too many Events about one object: dropping one");
            return Ok(());
        }
        Verdict::Count { name, count } => {
            let series = json!({"series": {"count": count, "lastObservedTime": MicroTime(now)}});
            access.last_turn(&Method::PATCH).await;
            let api = api(access.client().await);
            let params = PatchParams::default();
            match api.patch(&name, &params, &Patch::Merge(&series)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => limit.is_gone(&event),
                done => return done.map(drop),
            }
        }
        Verdict::Create => {}
    }
    access.last_turn(&Method::POST).await;
    let api = api(access.client().await);
    api.create(&PostParams::default(), &object).await?;
    limit.created(event, object.metadata.name.unwrap_or_default());
    Ok(())
}

/// Builds the API object for `event`.
fn object(event: &Event, node: &str, now: Timestamp) -> ApiEvent {
    let regarding = match &event.regarding {
        Regarding::ThisNode => ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            // The kubelet and kube-proxy put the name here, and `kubectl
            // describe node` searches for it.
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        },
        Regarding::Service(name) => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(name.namespace.to_string()),
            name: Some(name.name.to_string()),
            ..ObjectReference::default()
        },
    };
    let namespace = regarding.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let about = regarding.name.as_deref().unwrap_or(node);
    ApiEvent {
        metadata: ObjectMeta {
            name: Some(format!("{about}.{:x}", now.as_nanosecond())),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some(event.action.to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(note(&event.note)).filter(|note| !note.is_empty()),
        reason: Some(event.reason.to_owned()),
        regarding: Some(regarding),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(format!("{CONTROLLER}-{node}")),
        type_: Some(event.severity.to_string()),
        ..ApiEvent::default()
    }
}

/// Returns the text, shortened to the length that the API server accepts.
fn note(text: &str) -> String {
    if text.len() <= LONGEST_NOTE {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(LONGEST_NOTE - SHORTENED.len());
    format!("{}{SHORTENED}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_what_kubectl_describe_looks_for() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let object = object(&Event::starting(), "node-1", now);
        let json = serde_json::to_value(object).unwrap();
        assert_eq!(json["metadata"]["namespace"], "default");
        assert_eq!(json["regarding"]["kind"], "Node");
        assert_eq!(json["regarding"]["uid"], "node-1");
        assert_eq!(json["reason"], "Starting");
        assert_eq!(json["reportingController"], "kube-proxy");
        assert_eq!(json["type"], "Normal");
        // The server refuses an event without these (validateV1EventSeries).
        for field in ["eventTime", "action", "reportingInstance"] {
            assert!(json[field].is_string(), "{field}");
        }
    }

    #[test]
    fn a_note_is_no_longer_than_the_server_accepts() {
        for length in [0, 1, 1023, 1024, 1025, 5000] {
            let text = "ä".repeat(length / 2) + &"x".repeat(length % 2);
            let note = note(&text);
            assert!(note.len() <= 1024, "{length}: {}", note.len());
            assert_eq!(note == text, length <= 1024, "{length}");
        }
    }
}
