//! The ClusterRole allows the calls that are made, and no others.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use http::{Method, Request, Response};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Subject};
use kube::client::Body;
use tripod::{
    api_client::Access,
    events::{self, Event, Recorder},
    watch::api::{self, Settings},
};

use super::documents;

/// Group, resource and verb.
type Right = (String, String, String);

fn right(group: &str, resource: &str, verb: &str) -> Right {
    (group.to_owned(), resource.to_owned(), verb.to_owned())
}

/// All calls that the program makes. `deploy/kustomize/base/rbac.yaml` allows them.
fn listed() -> BTreeSet<Right> {
    let watched = [
        ("", "services"),
        ("discovery.k8s.io", "endpointslices"),
        ("", "nodes"),
        // Only in nftables mode.
        ("networking.k8s.io", "servicecidrs"),
    ];
    let watched = watched.map(|(group, name)| (group, name, ["list", "watch"]));
    // Created, and patched when they repeat.
    let events = ("events.k8s.io", "events", ["create", "patch"]);
    let calls = watched.into_iter().chain([events]);
    calls
        .flat_map(|(group, name, verbs)| verbs.map(|verb| right(group, name, verb)))
        .collect()
}

fn role() -> (ClusterRole, ClusterRoleBinding) {
    let [role, binding] =
        <[_; 2]>::try_from(documents("kustomize/base/rbac.yaml")).expect("two documents");
    (
        serde_json::from_value(role).expect("a ClusterRole"),
        serde_json::from_value(binding).expect("a ClusterRoleBinding"),
    )
}

#[test]
fn the_role_allows_exactly_the_calls_that_are_listed() {
    let mut allowed = BTreeSet::new();
    for rule in role().0.rules.expect("rules") {
        assert_eq!(
            (&rule.resource_names, &rule.non_resource_urls),
            (&None, &None)
        );
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    assert!(allowed.insert(right(group, resource, verb)), "twice");
                }
            }
        }
    }
    assert_eq!(allowed, listed());
}

#[test]
fn the_role_is_given_to_the_service_account() {
    let (role, binding) = role();
    assert_eq!(binding.role_ref.kind, "ClusterRole");
    assert_eq!(Some(binding.role_ref.name), role.metadata.name);
    let account = Subject {
        kind: "ServiceAccount".to_owned(),
        name: "kube-proxy".to_owned(),
        namespace: Some("kube-system".to_owned()),
        api_group: None,
    };
    assert_eq!(binding.subjects, Some(vec![account]));
}

/// The right that RBAC requires for a request.
fn asked<T>(request: &Request<T>) -> Right {
    let mut path = request.uri().path().trim_start_matches('/').split('/');
    let group = match path.next() {
        Some("api") => "",
        Some("apis") => path.next().expect("a group"),
        other => panic!("{other:?} in {}", request.uri()),
    };
    let _version = path.next();
    let mut rest: Vec<&str> = path.collect();
    if let ["namespaces", _, ..] = rest[..] {
        rest.drain(..2);
    }
    let query = request.uri().query().unwrap_or_default();
    let watches = query.split('&').any(|pair| pair == "watch=true");
    let verb = match (request.method(), &rest[1..]) {
        (&Method::GET, []) if watches => "watch",
        (&Method::GET, []) => "list",
        (&Method::GET, [_]) => "get",
        (&Method::POST, []) => "create",
        (&Method::PATCH, [_]) => "patch",
        _ => panic!("{} {}", request.method(), request.uri()),
    };
    right(group, rest[0], verb)
}

/// A server without streaming lists receives all of them: a watch that it cannot serve, a list, and
/// a watch.
#[tokio::test(start_paused = true)]
async fn the_calls_that_are_listed_are_those_that_are_made() {
    static MADE: Mutex<BTreeSet<Right>> = Mutex::new(BTreeSet::new());
    let service = tower::service_fn(|request: Request<Body>| async move {
        let right = asked(&request);
        let (code, body) = match &*right.2 {
            "list" => (200, r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#),
            "create" | "patch" => (200, r#"{"metadata":{}}"#),
            _ => (422, "{}"),
        };
        MADE.lock().unwrap().insert(right);
        let response = Response::builder().status(code);
        Ok::<_, tower::BoxError>(response.body(Body::from(body.as_bytes().to_vec()))?)
    });
    let access = Access::fixed(kube::Client::new(service, "default"));
    let settings = Settings {
        service_cidrs: true,
        ..Settings::for_node("node-a")
    };
    let (sender, mut batches) = tokio::sync::mpsc::channel(1);
    api::spawn(access.clone(), settings, sender);
    let (recorder, events) = Recorder::new(2);
    // The second one is a repetition of the first.
    for _ in 0..2 {
        recorder.post(Event::starting());
    }
    drop(recorder);
    events::post(access, "node-a".to_owned(), events).await;
    batches.recv().await.expect("the first batch");
    // The clock runs ahead; all retries happen in the meantime.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(*MADE.lock().unwrap(), listed());
}
