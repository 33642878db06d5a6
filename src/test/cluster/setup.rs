//! Creates the pods and Services, and waits until they can be called.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::time::sleep;

use super::{
    kubernetes::{Collection, Kubernetes},
    objects::{CLIENT, Kind, PROTOCOLS, PodPlan, Run, SINGLE},
    preferences,
    stage::{Reach, Stage, TestPod, TestService, each, other_node},
};
use crate::{
    ask,
    config::ModeName,
    status_api::{ServicePort, Status},
};

/// Time between two checks for missing objects.
const AGAIN: Duration = Duration::from_millis(250);

/// Creates everything, and waits until it is ready.
///
/// # Errors
/// Says what could not be created, or was not ready in time.
pub async fn set_up(kubernetes: &Kubernetes, run: &Run, running: &Status) -> Result<Stage, String> {
    let until = Instant::now() + run.timeout;
    if run.is_own {
        let namespaces = Collection::new("namespaces", None);
        kubernetes.create(&namespaces, &run.namespace()).await?;
    }
    let other = match kubernetes.list(&Collection::new("nodes", None), None).await {
        Ok(nodes) => other_node(&nodes, &running.node),
        Err(failure) => Err(failure.to_string()),
    };
    let plans = plans(&running.node, other.as_ref().ok());
    for plan in &plans {
        create_pod(kubernetes, run, plan, until).await?;
    }
    let (mut services, mut not_made) = (Vec::new(), Vec::new());
    let mut create = async |kind: Kind, let_in: &[IpAddr]| -> Result<(), String> {
        let (service, why) = create_service(kubernetes, run, kind, let_in).await?;
        services.extend(service);
        not_made.extend(why.map(|why| (kind, why)));
        Ok(())
    };
    // The source ranges are a pod's addresses, which are known when the pod is ready.
    for kind in Kind::ALL {
        if kind != Kind::SourceRanges {
            create(kind, &[]).await?;
        }
    }
    let pods = pods_ready(kubernetes, run, &plans, until).await?;
    let client = pods.iter().find(|pod| pod.plan.name == CLIENT);
    let let_in = client.map(|pod| pod.ips.clone()).unwrap_or_default();
    create(Kind::SourceRanges, &let_in).await?;
    let mut stage = Stage {
        mode: ModeName::named(&running.mode.name).ok_or_else(|| {
            let name = &running.mode.name;
            format!("what {name} mode promises is not known: use a tripod of the same version")
        })?,
        lost: running.mode.lost.clone(),
        node: running.node.clone(),
        pods,
        services,
        alone: other.err(),
        not_made,
        token: run.token.clone(),
    };
    let ports = in_force(&stage, run, until).await?;
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
        let own = ports.iter().filter(|port| port.name == service.name);
        let own: Vec<_> = own.collect();
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
    plan: &PodPlan,
    until: Instant,
) -> Result<(), String> {
    let (pods, pod) = (Collection::new("pods", Some(&run.namespace)), run.pod(plan));
    loop {
        match kubernetes.create(&pods, &pod).await {
            Ok(_) => return Ok(()),
            Err(failure) if failure.is_too_early() && Instant::now() < until => {
                sleep(AGAIN).await;
            }
            Err(failure) => return Err(failure.into()),
        }
    }
}

/// Creates a Service; its source ranges, if any, admit `let_in`. Returns `None` if the cluster refuses
/// such a Service; and why it does not exist, or lacks its external addresses.
async fn create_service(
    kubernetes: &Kubernetes,
    run: &Run,
    kind: Kind,
    let_in: &[IpAddr],
) -> Result<(Option<TestService>, Option<String>), String> {
    let mut without = run.external.lacking().filter(|_| kind.is_external());
    let ips = run.external_addresses(kind);
    // A load balancer is also needed for its health-check node port.
    if kind.is_external() && kind != Kind::LoadBalancer && ips.is_empty() {
        return Ok((None, without));
    }
    let namespace = &run.namespace;
    let services = Collection::new("services", Some(namespace));
    let service = run.service(kind, let_in);
    let mut stored = match kubernetes.create(&services, &service).await {
        Ok(stored) => stored,
        Err(failure) if kind.may_be_refused() => return Ok((None, Some(failure.into()))),
        Err(failure) => return Err(failure.into()),
    };
    let name = run.named(kind.name());
    if kind.is_balancer() && !ips.is_empty() {
        match kubernetes.balance(namespace, &name, &ips).await {
            Ok(balanced) => stored = balanced,
            Err(failure) => without = Some(failure.into()),
        }
    }
    let read = TestService::read(kind, &stored);
    let read = read.ok_or_else(|| {
        format!("Service {namespace}/{name} got no cluster IP from the API server")
    })?;
    Ok((Some(read), without))
}

/// Waits until all pods are ready.
async fn pods_ready(
    kubernetes: &Kubernetes,
    run: &Run,
    plans: &[PodPlan],
    until: Instant,
) -> Result<Vec<TestPod>, String> {
    loop {
        let pods = Collection::new("pods", Some(&run.namespace));
        let all = kubernetes.list(&pods, Some(&run.selector())).await?;
        let mut ready = Vec::new();
        let mut missing = Vec::new();
        for plan in plans {
            let name = run.named(plan.name);
            let mut all = all.iter();
            let pod = all.find(|pod| pod["metadata"]["name"] == *name);
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
            let Run {
                namespace,
                timeout,
                image,
                ..
            } = run;
            return Err(format!(
                "not ready within {timeout:?}, in namespace {namespace}: {what} (--timeout allows \
                 more time; --image names another image than {image})"
            ));
        }
        sleep(AGAIN).await;
    }
}

/// Describes a pod that is not ready.
fn not_ready(name: &str, node: &str, pod: Option<&Value>) -> String {
    let status = pod.map_or(&Value::Null, |pod| &pod["status"]);
    let mut states = each(&status["containerStatuses"]).map(|container| &container["state"]);
    let waits = states.find_map(|state| {
        let mut kinds = ["waiting", "terminated"].into_iter();
        kinds.find_map(|kind| state[kind].as_object().map(|_| &state[kind]))
    });
    let words = match waits {
        Some(waits) => [&waits["reason"], &waits["message"]],
        None => [&status["phase"], &Value::Null],
    };
    let words: Vec<&str> = words.into_iter().filter_map(Value::as_str).collect();
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
) -> Result<Vec<ServicePort>, String> {
    loop {
        let ports = ask::service_ports(&run.socket, Some(&run.namespace), None).await?;
        let missing = missing(stage, &ports);
        if missing.is_empty() {
            return Ok(ports);
        }
        if Instant::now() > until {
            let what = missing.into_iter().collect::<Vec<_>>().join("; ");
            let Run {
                namespace, timeout, ..
            } = run;
            return Err(format!(
                "the running Tripod does not have them within {timeout:?}, in namespace \
                 {namespace}: {what} (--timeout allows more time; see tripod status, and tripod \
                 services {namespace})"
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
            let external = service.external.iter();
            let external = external.filter(|own| own.is_ipv4() == ip.is_ipv4());
            for own in external.filter(|own| !addresses.contains(&&own.to_string())) {
                missing.insert(format!("address {own} of Service {}", service.name));
            }
            let name = &service.name;
            match port.map(|port| port.endpoints.len()) {
                Some(found) if found == expected => {}
                Some(found) => drop(missing.insert(format!(
                    "{expected} endpoints of Service {name} at {ip}, where it has {found}"
                ))),
                None => drop(missing.insert(format!("Service {name} at {ip}"))),
            }
        }
    }
    missing
}
