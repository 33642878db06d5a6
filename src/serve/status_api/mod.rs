//! The JSON API of the running proxy (`crate::status_api`): read-only; answers are computed on
//! request.

mod candidates;
mod connections;
mod destination;
mod dials;
mod diff;
mod explain;
mod node;
mod services;
mod starting;
mod status;
mod syncs;
mod traffic;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use hyper::StatusCode;
use jiff::Timestamp;
use netlink::setting::Setting;
use serde::Serialize;

pub use self::{
    dials::DialsAsked,
    starting::StartingApi,
    traffic::{PortTraffic, TrafficSource},
};
use super::{
    http::{Answer, Asked, Peer},
    listeners::Listeners,
    service_health::HealthListeners,
};
use crate::{
    config::ModeName,
    modes::handover::Handover,
    runner::{
        health::Health,
        question::{Caller, Questions},
        status::{Done, Reason, Status},
    },
    services::{AddressKind, Kind, ObjectName, SERVICE_LABEL, ServiceName},
    status_api::{
        DIALS_PATH, DIFF_PATH, EXPLAIN_PATH, HEALTH_PATH, NoEndpoints, Refused, SERVICES_PATH,
        STATUS_PATH, SYNCS_PATH, Trouble, Unsupported,
    },
    trouble,
    watch::SourceHealth,
};

/// The sources of the answers.
#[derive(Debug)]
pub struct StatusApi {
    /// Constant facts about the process.
    pub about: About,
    /// Whether syncs are overdue.
    pub health: Arc<Health>,
    /// The ServicePorts, and the progress of syncs.
    pub runner: Arc<Status>,
    /// The progress of following the objects.
    pub objects: Arc<SourceHealth>,
    /// Asks the runner questions that only its mode can answer.
    pub questions: Questions,
    /// Knows the traffic of ServicePorts.
    pub traffic: Arc<dyn TrafficSource>,
    /// Settings of the kernel that were made at the start, in any mode.
    pub node_settings: Vec<Setting>,
    /// Tells where probes and metrics are not served.
    pub listeners: Listeners,
    /// Tells where health checks are not served.
    pub health_listeners: HealthListeners,
    /// Tells whether other processes are taking over.
    pub handover: Handover,
}

/// Facts about a process that do not change while it runs.
#[derive(Clone, Debug)]
pub struct About {
    /// The time at which the process started.
    pub started: SystemTime,
    /// Name of the node.
    pub node: String,
    /// The mode that runs.
    pub mode: ModeName,
    /// Why each better mode was passed over.
    pub passed_over: Vec<String>,
    /// Whether the settings name a mode.
    pub named: bool,
    /// The features that the mode itself lacks on this kernel.
    pub lost: Vec<String>,
    /// The source of the objects.
    pub source: String,
    /// Whether the source is a cluster, whose objects `kubectl` can show.
    pub cluster: bool,
    /// Scheduler of a Service that names none.
    pub scheduler: String,
    /// Sender of a packet if the question names none.
    pub caller: Caller,
}

impl StatusApi {
    /// Answers a request; 403 for a client that is neither on this node nor authorized.
    pub(super) async fn answer(&self, asked: Asked<'_>) -> Answer {
        if let Some(refusal) = refusal(asked.peer) {
            return refusal;
        }
        match (asked.path, asked.path.strip_prefix(SERVICES_PATH)) {
            (STATUS_PATH, _) => json(&self.status()),
            (HEALTH_PATH, _) => json(&self.health()),
            (SYNCS_PATH, _) => json(&self.syncs()),
            (DIALS_PATH, _) => self.dials(asked.query),
            (DIFF_PATH, _) => self.diff(asked.peer).await,
            (EXPLAIN_PATH, _) => self.explain(asked.query, asked.peer).await,
            (_, Some(path)) if path.is_empty() || path.starts_with('/') => {
                if let Some(refreshed) = self.traffic.refresh() {
                    refreshed.await;
                }
                self.services(path, asked.query)
            }
            _ => refused(
                StatusCode::NOT_FOUND,
                format!(
                    "there are {STATUS_PATH}, {HEALTH_PATH}, {SYNCS_PATH}, {DIFF_PATH}, \
                     {EXPLAIN_PATH}, {DIALS_PATH}, {SERVICES_PATH}, {SERVICES_PATH}/NAMESPACE and \
                     {SERVICES_PATH}/NAMESPACE/NAME"
                ),
            ),
        }
    }

    /// Explains why the Service of that name, none of whose ports is served, cannot be used; `None`
    /// if it can, or does not exist.
    fn not_served(&self, namespace: &str, name: &str) -> Option<String> {
        let service = format!("{namespace}/{name}");
        let object = ObjectName::new(Kind::Service, Some(namespace), Some(name));
        let unusable = object.and_then(|name| self.objects.unusable_object(&name));
        if let Some(unusable) = unusable {
            let why = unusable.trouble.why;
            return Some(format!(
                "Service {service} is invalid, so it is not served: {why}"
            ));
        }
        // It may be in one of the unusable files.
        let kinds = self.objects.kinds().into_values();
        let mut troubles = kinds
            .filter(|kind| kind.required)
            .filter_map(|kind| kind.trouble);
        troubles.next().map(|trouble| {
            format!(
                "no Service {service} is served on this node, and {}",
                trouble.why
            )
        })
    }
}

/// Returns the refusal for a peer that may not ask; `None` if it may.
pub(super) fn refusal(peer: Peer) -> Option<Answer> {
    let why = "only processes of the node may read this: from a loopback address, with an IP \
               address or localhost as the host, or over the unix socket";
    (peer == Peer::Elsewhere).then(|| refused(StatusCode::FORBIDDEN, why))
}

/// Returns the refusal for a peer that may not have the kernel read, which delays syncs and takes
/// memory; `None` if it may.
fn kernel_refusal(peer: Peer) -> Option<Answer> {
    let why = "the kernel is read only for root and the user of Tripod: ask as root, or with \
               kernel=false in the query of /v1/explain";
    (!matches!(peer, Peer::OfRoot | Peer::Authorized)).then(|| refused(StatusCode::FORBIDDEN, why))
}

/// Parses a path and parameters as those of each question; for tests with arbitrary bytes.
#[cfg(any(test, fuzzing))]
pub(super) fn read_anything(text: &str) {
    let (path, query) = text.split_once('?').unwrap_or((text, text));
    // The results do not matter, only that each call returns.
    let _ = services::Selected::read(path, query);
    let _ = explain::read(query);
    let _ = dials::read(query);
}

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => Answer::json(body),
        Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn refused(status: StatusCode, why: impl Into<String>) -> Answer {
    let error = Refused { error: why.into() };
    let body = serde_json::to_vec(&error).unwrap_or_default();
    Answer::json(body).with_status(status)
}

fn unsupported(service: &ServiceName, reason: &Reason) -> Unsupported {
    Unsupported {
        service: service.to_string(),
        what: reason.what.to_owned(),
        why: reason.why.clone(),
        unreadable: reason.done == Done::Unreadable,
    }
}

impl About {
    /// Combines the reason `why` no endpoint of `service` takes connections with the command that
    /// shows more.
    fn no_endpoints(&self, service: &ServiceName, why: String) -> NoEndpoints {
        let ServiceName { namespace, name } = service;
        let command =
            || format!("kubectl get endpointslices -l {SERVICE_LABEL}={name} -n {namespace}");
        NoEndpoints {
            why,
            command: self.cluster.then(command),
        }
    }
}

/// Returns the API's word for the kind of address.
fn address_kind(kind: AddressKind) -> String {
    let word = match kind {
        AddressKind::ClusterIp => "clusterIP",
        AddressKind::ExternalIp => "externalIP",
        AddressKind::LoadBalancerIp => "loadBalancerIP",
        AddressKind::NodePort => "nodePort",
        AddressKind::HealthCheckNodePort => "healthCheckNodePort",
    };
    word.to_owned()
}

fn trouble(trouble: &trouble::Trouble) -> Trouble {
    Trouble {
        since: time(trouble.since),
        why: trouble.why.clone(),
    }
}

/// Formats a time by RFC 3339, to the millisecond.
fn time(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
    at.round(jiff::Unit::Millisecond).unwrap_or(at).to_string()
}

/// Converts to seconds, to the microsecond.
fn seconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::service_ports::service_name;

    #[test]
    fn a_cluster_alone_is_asked_by_kubectl() {
        let about = |cluster| About {
            started: SystemTime::UNIX_EPOCH,
            node: String::new(),
            mode: ModeName::Ipvs,
            passed_over: Vec::new(),
            named: false,
            lost: Vec::new(),
            source: String::new(),
            cluster,
            scheduler: String::new(),
            caller: Caller::Pod,
        };
        let command = |cluster| {
            let service = service_name("shop/cart");
            about(cluster).no_endpoints(&service, String::new()).command
        };
        let expected = "kubectl get endpointslices -l kubernetes.io/service-name=cart -n shop";
        assert_eq!(command(true).as_deref(), Some(expected));
        assert_eq!(command(false), None);
    }
}
