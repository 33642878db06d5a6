//! Creates the pods and Services, and waits until they can be called.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::sleep;

use super::{
    kubernetes::{Kubernetes, Object},
    objects::{CLIENT, Kind, PROTOCOLS, PodPlan, Run, SINGLE},
    preferences,
    stage::{Reach, Stage, TestPod, TestService, other_node},
};
use crate::{
    ask,
    config::ModeName,
    status_api::{ServicePort, Status},
};

/// Time between two checks for missing objects.
const AGAIN: Duration = Duration::from_millis(250);

/// Objects that were created, or may have been.
#[derive(Debug, Default)]
pub struct Made(Mutex<Vec<Object>>);

impl Made {
    /// Records an object before its creation is requested: the answer may get lost.
    fn will_be(&self, object: Object) {
        if let Ok(mut objects) = self.0.lock() {
            objects.push(object);
        }
    }

    /// Returns all objects, the last one first.
    pub fn all(&self) -> Vec<Object> {
        let objects = self.0.lock().map(|objects| objects.clone());
        let mut objects = objects.unwrap_or_default();
        objects.reverse();
        objects
    }
}

/// The socket of the running Tripod, and the time limit for setting up.
pub struct Patience<'a> {
    /// The unix socket of the running Tripod.
    pub socket: &'a Path,
    /// Time limit for each step.
    pub timeout: Duration,
}

/// Creates everything, and waits until it is ready.
///
/// # Errors
/// Says what could not be created, or was not ready in time.
pub async fn set_up(
    kubernetes: &Kubernetes,
    run: &Run,
    made: &Made,
    running: &Status,
    patience: &Patience<'_>,
    token: &str,
) -> Result<Stage, String> {
    let until = Instant::now() + patience.timeout;
    if run.is_own {
        made.will_be(Object::Namespace(run.namespace.clone()));
        kubernetes.create_namespace(&run.namespace()).await?;
    }
    let other = match kubernetes.nodes().await {
        Ok(nodes) => other_node(&nodes, &running.node),
        Err(failure) => Err(failure.to_string()),
    };
    let plans = plans(&running.node, other.as_ref().ok());
    for plan in &plans {
        create_pod(kubernetes, run, made, plan, until).await?;
    }
    let (mut services, mut not_made) = (Vec::new(), Vec::new());
    // The source ranges are a pod's addresses, which are known when the pod is ready.
    for kind in Kind::ALL
        .into_iter()
        .filter(|kind| *kind != Kind::SourceRanges)
    {
        services.push(create_service(kubernetes, run, made, (kind, &[])).await?);
    }
    let pods = pods_ready(kubernetes, run, &plans, until, patience).await?;
    let client = pods.iter().find(|pod| pod.plan.name == CLIENT);
    let let_in = client.map(|pod| pod.ips.clone()).unwrap_or_default();
    let ranges = (Kind::SourceRanges, &*let_in);
    services.push(create_service(kubernetes, run, made, ranges).await?);
    let mut own = Vec::new();
    for made in services {
        own.extend(made.service);
        not_made.extend(made.without);
    }
    let mut stage = Stage {
        mode: ModeName::named(&running.mode.name).ok_or_else(|| {
            let name = &running.mode.name;
            format!("what {name} mode promises is not known: use a tripod of the same version")
        })?,
        lost: running.mode.lost.clone(),
        node: running.node.clone(),
        pods,
        services: own,
        alone: other.err(),
        not_made,
        token: token.to_owned(),
    };
    let ports = in_force(&stage, run, until, patience).await?;
    leave_out(&mut stage, &ports);
    for service in &mut stage.services {
        let own = ports.iter().find(|port| port.name == service.name);
        service.scheduler = own.map(|port| port.scheduler.clone()).unwrap_or_default();
    }
    Ok(stage)
}

/// Leaves out Services whose requests the running Tripod, with these `ports`, does not support.
fn leave_out(stage: &mut Stage, ports: &[ServicePort]) {
    let mut left_out = Vec::new();
    for service in &stage.services {
        let own: Vec<_> = ports
            .iter()
            .filter(|port| port.name == service.name)
            .collect();
        let why = preferences::why_not(stage, service.kind, &own);
        left_out.extend(why.map(|why| (service.kind, why)));
    }
    let is_left_out = |kind| left_out.iter().any(|(of, _)| *of == kind);
    stage.services.retain(|service| !is_left_out(service.kind));
    stage.not_made.extend(left_out);
}

/// Returns the pods to create: a client and two servers here, one server elsewhere.
fn plans(here: &str, elsewhere: Option<&String>) -> Vec<PodPlan> {
    let plan = |name, node: &str, serves| PodPlan {
        name,
        node: node.to_owned(),
        serves,
    };
    let mut plans = vec![
        plan(CLIENT, here, false),
        plan(SINGLE, here, true),
        plan("here-2", here, true),
    ];
    plans.extend(elsewhere.map(|node| plan("elsewhere-1", node, true)));
    plans
}

async fn create_pod(
    kubernetes: &Kubernetes,
    run: &Run,
    made: &Made,
    plan: &PodPlan,
    until: Instant,
) -> Result<(), String> {
    made.will_be(Object::Pod(run.named(plan.name)));
    let pod = run.pod(plan);
    loop {
        match kubernetes.create(&run.namespace, &pod).await {
            Ok(_) => return Ok(()),
            Err(failure) if failure.is_too_early() && Instant::now() < until => {
                sleep(AGAIN).await;
            }
            Err(failure) => return Err(failure.into()),
        }
    }
}

/// A created Service, and the reason if it is missing or incomplete.
struct MadeService {
    /// `None`: the cluster refuses such a Service.
    service: Option<TestService>,
    /// Why it does not exist, or lacks its external addresses.
    without: Option<(Kind, String)>,
}

/// Creates a Service; its source ranges, if any, admit `let_in`.
async fn create_service(
    kubernetes: &Kubernetes,
    run: &Run,
    made: &Made,
    (kind, let_in): (Kind, &[IpAddr]),
) -> Result<MadeService, String> {
    let name = run.named(kind.name());
    let lacking = run.external.lacking().filter(|_| kind.is_external());
    let mut without = lacking.map(|why| (kind, why));
    let ips = run.external_addresses(kind);
    // A load balancer is also needed for its health-check node port.
    if kind.is_external() && kind != Kind::LoadBalancer && ips.is_empty() {
        return Ok(MadeService {
            service: None,
            without,
        });
    }
    made.will_be(Object::Service(name.clone()));
    let service = run.service(kind, let_in);
    let mut stored = match kubernetes.create(&run.namespace, &service).await {
        Ok(stored) => stored,
        Err(failure) if kind.may_be_refused() => {
            return Ok(MadeService {
                service: None,
                without: Some((kind, failure.to_string())),
            });
        }
        Err(failure) => return Err(failure.into()),
    };
    if kind.is_balancer() && !ips.is_empty() {
        match kubernetes.balance(&run.namespace, &name, &ips).await {
            Ok(balanced) => stored = balanced,
            Err(failure) => without = Some((kind, failure.to_string())),
        }
    }
    let read = TestService::read(kind, &stored);
    let read = read.ok_or_else(|| {
        let namespace = &run.namespace;
        format!("Service {namespace}/{name} got no cluster IP from the API server")
    })?;
    Ok(MadeService {
        service: Some(read),
        without,
    })
}

/// Waits until all pods are ready.
async fn pods_ready(
    kubernetes: &Kubernetes,
    run: &Run,
    plans: &[PodPlan],
    until: Instant,
    patience: &Patience<'_>,
) -> Result<Vec<TestPod>, String> {
    loop {
        let all = kubernetes.pods(&run.namespace, &run.selector()).await?;
        let mut ready = Vec::new();
        let mut missing = Vec::new();
        for plan in plans {
            let name = run.named(plan.name);
            let mut all = all.iter();
            let pod = all.find(|pod| pod.metadata.name.as_deref() == Some(&*name));
            match pod.and_then(|pod| TestPod::read(plan, pod)) {
                Some(pod) => ready.push(pod),
                None => missing.push(not_ready(&name, &plan.node, pod)),
            }
        }
        if missing.is_empty() {
            return Ok(ready);
        }
        if Instant::now() > until {
            let what = missing.join("; ");
            let Run { namespace, .. } = run;
            return Err(format!(
                "not ready within {:?}, in namespace {namespace}: {what} (--timeout allows more \
                 time; --image names another image than {})",
                patience.timeout, run.image
            ));
        }
        sleep(AGAIN).await;
    }
}

/// Describes a pod that is not ready.
fn not_ready(name: &str, node: &str, pod: Option<&Pod>) -> String {
    let status = pod.and_then(|pod| pod.status.as_ref());
    let phase = status.and_then(|status| status.phase.clone());
    let statuses = status
        .into_iter()
        .flat_map(|status| status.container_statuses.iter());
    let waits = statuses.flatten().find_map(|container| {
        let state = container.state.as_ref()?;
        let waiting = state.waiting.as_ref();
        let waiting = waiting.map(|state| (state.reason.clone(), state.message.clone()));
        let ended = state.terminated.as_ref();
        waiting.or(ended.map(|state| (state.reason.clone(), state.message.clone())))
    });
    let (reason, message) = waits.unwrap_or((phase, None));
    let words: Vec<String> = [reason, message].into_iter().flatten().collect();
    let why = if words.is_empty() {
        "its state is not known".to_owned()
    } else {
        words.join(": ")
    };
    format!("pod {name} on node {node} ({why})")
}

/// Waits until the running Tripod has every ServicePort, with as many endpoints as there
/// are pods for it. Returns the ServicePorts.
///
/// # Errors
/// When Tripod does not answer, or still lacks some ServicePorts at `until`; the error names them.
pub async fn in_force(
    stage: &Stage,
    run: &Run,
    until: Instant,
    patience: &Patience<'_>,
) -> Result<Vec<ServicePort>, String> {
    loop {
        let ports = ask::service_ports(patience.socket, Some(&run.namespace), None).await?;
        let missing = missing(stage, &ports);
        if missing.is_empty() {
            return Ok(ports);
        }
        if Instant::now() > until {
            let what: Vec<String> = missing.into_iter().collect();
            return Err(format!(
                "the running Tripod does not have them within {:?}, in namespace {}: {} (--timeout \
                 allows more time; see tripod status, and tripod services {})",
                patience.timeout,
                run.namespace,
                what.join("; "),
                run.namespace
            ));
        }
        sleep(AGAIN).await;
    }
}

/// Describes the ServicePorts that are missing, or have other endpoints.
fn missing(stage: &Stage, ports: &[ServicePort]) -> BTreeSet<String> {
    let mut missing = BTreeSet::new();
    for service in &stage.services {
        let each = service.cluster_ips.iter();
        let each = each.flat_map(|ip| PROTOCOLS.map(|protocol| (*ip, protocol)));
        for (ip, protocol) in each {
            let port = (ports.iter()).find(|port| service.is_of(port, ip, protocol));
            let expected = stage.servers(service.kind, ip, Reach::Cluster).len();
            let addresses = port.iter().flat_map(|port| &port.addresses);
            let addresses: Vec<&String> = addresses.flat_map(|address| &address.ip).collect();
            let external = service
                .external
                .iter()
                .filter(|own| own.is_ipv4() == ip.is_ipv4());
            for own in external.filter(|own| !addresses.contains(&&own.to_string())) {
                missing.insert(format!("address {own} of Service {}", service.name));
            }
            match port.map(|port| port.endpoints.len()) {
                Some(found) if found == expected => {}
                Some(found) => {
                    let name = &service.name;
                    missing.insert(format!(
                        "{expected} endpoints of Service {name} at {ip}, where it has {found}"
                    ));
                }
                None => {
                    missing.insert(format!("Service {} at {ip}", service.name));
                }
            }
        }
    }
    missing
}
