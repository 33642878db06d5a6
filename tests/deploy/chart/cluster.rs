//! An API server that stores the objects that Helm sends, as far as Helm needs one to install,
//! upgrade and uninstall a release.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fs,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use data_encoding::BASE64;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Runtime};

use super::{protobuf, tool};
use crate::deploy::folder;

/// Version, name and kind of the resources that exist.
const RESOURCES: [(&str, &str, &str); 8] = [
    ("v1", "configmaps", "ConfigMap"),
    ("v1", "secrets", "Secret"),
    ("v1", "serviceaccounts", "ServiceAccount"),
    ("apps/v1", "daemonsets", "DaemonSet"),
    ("monitoring.coreos.com/v1", "podmonitors", "PodMonitor"),
    (
        "monitoring.coreos.com/v1",
        "prometheusrules",
        "PrometheusRule",
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "clusterroles",
        "ClusterRole",
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "clusterrolebindings",
        "ClusterRoleBinding",
    ),
];

/// Objects by their paths.
type Objects = BTreeMap<String, Value>;

/// The server; it ends when dropped.
pub struct Cluster {
    objects: Arc<Mutex<Objects>>,
    /// Files of Helm: the kubeconfig, and caches.
    home: PathBuf,
    _runtime: Runtime,
}

impl Cluster {
    /// Starts a server that has these objects.
    pub fn start(name: &str, objects: &[Value]) -> Cluster {
        let stored: Objects = objects
            .iter()
            .map(|object| (path(object), object.clone()))
            .collect();
        let objects = Arc::new(Mutex::new(stored));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        runtime.spawn(serve(listener, Arc::clone(&objects)));
        let home = std::env::temp_dir().join(format!("tripod-helm-{name}-{}", std::process::id()));
        fs::create_dir_all(&home).expect("a folder");
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "it", "user": {}}],
        });
        fs::write(home.join("kubeconfig"), kubeconfig.to_string()).expect("a file");
        Cluster {
            objects,
            home,
            _runtime: runtime,
        }
    }

    /// Runs Helm with these words, and returns its output, or why it fails.
    pub fn helm(&self, words: &str) -> Option<Result<String, String>> {
        let mut command = Command::new(tool("helm/helm")?);
        command
            .args(words.split(' '))
            .env("KUBECONFIG", self.home.join("kubeconfig"))
            .current_dir(folder());
        for kind in ["CACHE", "CONFIG", "DATA"] {
            command.env(format!("HELM_{kind}_HOME"), &self.home);
        }
        let done = command.output().expect("running helm");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Some(if done.status.success() {
            Ok(text(&done.stdout))
        } else {
            Err(text(&done.stderr))
        })
    }

    /// Returns kind and name of all objects.
    pub fn names(&self) -> BTreeSet<String> {
        let objects = self.objects.lock().expect("objects");
        let name = |object: &Value| {
            let words = [&object["kind"], &object["metadata"]["name"]];
            words.map(|word| word.as_str().expect("a word")).join(" ")
        };
        objects.values().map(name).collect()
    }

    /// Returns an object of namespace `kube-system`.
    pub fn get(&self, kind: &str, name: &str) -> Value {
        let metadata = json!({"name": name, "namespace": "kube-system"});
        let path = path(&json!({"kind": kind, "metadata": metadata}));
        self.objects.lock().expect("objects")[&path].clone()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// The API path of a group and version.
fn group(version: &str) -> String {
    let root = if version == "v1" { "api" } else { "apis" };
    format!("/{root}/{version}")
}

/// The API path of an object.
fn path(object: &Value) -> String {
    let kind = object["kind"].as_str().expect("a kind");
    let known = RESOURCES.iter().find(|(_, _, known)| *known == kind);
    let (version, resource, _) = known.unwrap_or_else(|| panic!("no resource of {kind}"));
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().expect("a name");
    let namespace = metadata["namespace"].as_str();
    let namespace = namespace.map(|namespace| format!("/namespaces/{namespace}"));
    let group = group(version);
    format!("{group}{}/{resource}/{name}", namespace.unwrap_or_default())
}

async fn serve(listener: TcpListener, objects: Arc<Mutex<Objects>>) {
    while let Ok((socket, _)) = listener.accept().await {
        let objects = Arc::clone(&objects);
        let service = service_fn(move |request: Request<Incoming>| {
            let objects = Arc::clone(&objects);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                let mut objects = objects.lock().expect("objects");
                let query = head.uri.query().unwrap_or_default();
                let answer = answer(&mut objects, &head.method, head.uri.path(), query, &body);
                let (code, value) = answer.map_or((404, not_found()), |value| (200, value));
                let response = Response::builder()
                    .status(code)
                    .header("Content-Type", "application/json");
                let body = Full::new(Bytes::from(value.to_string()));
                Ok::<_, Infallible>(response.body(body).expect("an answer"))
            }
        });
        let http = http1::Builder::new();
        tokio::spawn(http.serve_connection(TokioIo::new(socket), service));
    }
}

fn not_found() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
        "code": 404, "message": "it is not there"})
}

/// Returns the answer to a request; `None` if there is no such object.
fn answer(
    objects: &mut Objects,
    method: &Method,
    path: &str,
    query: &str,
    body: &[u8],
) -> Option<Value> {
    if let Some(found) = discovery(path) {
        return Some(found);
    }
    let resource = path.rsplit('/').next()?;
    let is_collection = RESOURCES.iter().any(|(_, known, _)| *known == resource);
    match *method {
        Method::GET if is_collection => Some(list(objects, path, query)),
        Method::GET => objects.get(path).cloned(),
        Method::DELETE => objects.remove(path),
        Method::POST => {
            let object = read(body);
            let name = object["metadata"]["name"].as_str().expect("a name");
            objects.insert(format!("{path}/{name}"), object.clone());
            Some(object)
        }
        Method::PUT => {
            objects.insert(path.to_owned(), read(body));
            objects.get(path).cloned()
        }
        Method::PATCH => {
            let object = objects.entry(path.to_owned()).or_insert(json!({}));
            apply(object, read(body));
            Some(object.clone())
        }
        _ => None,
    }
}

/// Describes the resources.
fn discovery(path: &str) -> Option<Value> {
    let versions: BTreeSet<&str> = RESOURCES.iter().map(|(version, ..)| *version).collect();
    match path {
        "/version" => return Some(json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})),
        "/api" => return Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        "/apis" => {
            let named = versions.iter().filter_map(|version| {
                let (group, number) = version.split_once('/')?;
                let version = json!({"groupVersion": version, "version": number});
                Some(json!({"name": group, "versions": [version], "preferredVersion": version}))
            });
            let groups: Vec<Value> = named.collect();
            return Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}));
        }
        _ => {}
    }
    let version = versions
        .into_iter()
        .find(|version| group(version) == path)?;
    let known = RESOURCES.iter().filter(|(of, ..)| *of == version);
    let resources = known.map(|(_, resource, kind)| {
        json!({"name": resource, "singularName": "", "kind": kind,
            "namespaced": !kind.starts_with("Cluster"),
            "verbs": ["create", "delete", "get", "list", "patch", "update"]})
    });
    let resources: Vec<Value> = resources.collect();
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
        "resources": resources}),
    )
}

/// Lists Secrets, the only objects that Helm lists, with the labels that the query names.
fn list(objects: &Objects, path: &str, query: &str) -> Value {
    let selector = query
        .split('&')
        .find_map(|one| one.strip_prefix("labelSelector="));
    let selector = selector
        .unwrap_or_default()
        .replace("%3D", "=")
        .replace("%2C", ",");
    let wanted: Vec<(&str, &str)> = selector
        .split(',')
        .filter_map(|label| label.split_once('='))
        .collect();
    let of_path = objects.iter().filter(|(of, _)| of.starts_with(path));
    let items = of_path.map(|(_, object)| object).filter(|object| {
        let labels = &object["metadata"]["labels"];
        wanted.iter().all(|(label, value)| labels[label] == *value)
    });
    let items: Vec<&Value> = items.collect();
    json!({"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": items})
}

/// Reads an object in JSON, or a Secret in the form in which Helm stores releases.
fn read(body: &[u8]) -> Value {
    if !body.starts_with(protobuf::MAGIC) {
        return serde_json::from_slice(body).expect("JSON");
    }
    // generated.proto of k8s.io/apimachinery (Unknown) and of k8s.io/api/core/v1 (Secret).
    let secret = protobuf::bytes(&body[protobuf::MAGIC.len()..], 2).expect("an object");
    let text = |message: &[u8], field| {
        let found = protobuf::bytes(message, field).unwrap_or_default();
        String::from_utf8(found).expect("text")
    };
    let metadata = protobuf::bytes(&secret, 1).expect("metadata");
    let labels: BTreeMap<String, String> = protobuf::all(&metadata, 11)
        .iter()
        .map(|entry| (text(entry, 1), text(entry, 2)))
        .collect();
    let data: BTreeMap<String, String> = protobuf::all(&secret, 2)
        .iter()
        .map(|entry| {
            let value = protobuf::bytes(entry, 2).unwrap_or_default();
            (text(entry, 1), BASE64.encode(&value))
        })
        .collect();
    json!({"apiVersion": "v1", "kind": "Secret", "type": text(&secret, 3), "data": data,
        "metadata": {"name": text(&metadata, 1), "namespace": text(&metadata, 3), "labels": labels}})
}

/// Sets the fields of `patch`. A real API server does more: it merges some lists, and knows owners
/// of fields.
fn apply(object: &mut Value, patch: Value) {
    match (object, patch) {
        (Value::Object(fields), Value::Object(patch)) => {
            for (name, value) in patch {
                apply(fields.entry(name).or_insert(Value::Null), value);
            }
        }
        (object, patch) => *object = patch,
    }
}
