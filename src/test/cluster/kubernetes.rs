//! Requests to the API server, with the user's own kubeconfig.

use std::{
    env, fmt,
    fs::File,
    io::{self, Read},
    net::IpAddr,
    os::fd::AsRawFd,
    path::PathBuf,
};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::DaemonSet,
        core::v1::{Namespace, Node, Pod, Service},
    },
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use prometheus::Registry;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::api_client::{Access, Connection, RequestMetrics};

/// The DaemonSet whose image the pods get, as `deploy/` and kubeadm name it.
const DAEMON_SET: [&str; 2] = ["kube-system", "kube-proxy"];

/// Number of Nodes on a page of a list: some have 50 kB, because they list their images.
const NODES: u32 = 100;

/// Longest kubeconfig from standard input, in bytes.
const LONGEST_INPUT: u64 = 1 << 20;

/// Why a request failed.
#[derive(Debug)]
pub struct Failure {
    /// The HTTP status; `None` if there was no answer.
    code: Option<u16>,
    words: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl Failure {
    fn new(verb: &str, resource: &str, place: &str, error: &kube::Error) -> Failure {
        let request = format!("{verb} {resource}{place}");
        match error {
            kube::Error::Api(status) if status.code == 403 => Failure {
                code: Some(403),
                words: format!(
                    "the API server refuses to {request} ({}): give the user of the kubeconfig \
                     that right, or name another one with --kubeconfig",
                    status.message
                ),
            },
            kube::Error::Api(status) => Failure {
                code: Some(status.code),
                words: format!("cannot {request}: {} ({})", status.message, status.code),
            },
            error => Failure {
                code: None,
                words: format!("cannot {request}: the API server does not answer: {error}"),
            },
        }
    }

    /// Returns whether the object does not exist.
    pub fn is_absent(&self) -> bool {
        self.code == Some(404)
    }

    /// Returns whether a pod was refused because its namespace is so new that it has no
    /// service account yet (admission plugin `ServiceAccount`).
    pub fn is_too_early(&self) -> bool {
        self.code == Some(403) && self.words.contains("service account")
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.words
    }
}

/// The API server of the cluster.
pub struct Kubernetes {
    access: Access,
    /// The kubeconfig from standard input; kept for as long as it may be read.
    _input: Option<File>,
}

impl Kubernetes {
    /// Reads the kubeconfig: the given one, `-` for standard input, or the one that
    /// kubectl would use.
    ///
    /// # Errors
    /// When a file is missing or faulty, which the error describes.
    pub async fn open(kubeconfig: Option<PathBuf>) -> Result<Kubernetes, String> {
        let mut input = None;
        let given = match kubeconfig {
            Some(path) if path.as_os_str() == "-" => {
                let file = from_input();
                let file = file.map_err(|error| format!("standard input: {error}"))?;
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                input = Some(file);
                Some(PathBuf::from(path))
            }
            given => given,
        };
        let found = given.or_else(usual).ok_or(
            "no kubeconfig: name one with --kubeconfig, on a control-plane node of kubeadm's \
             /etc/kubernetes/admin.conf",
        )?;
        let connection = Connection {
            kubeconfig: Some(found),
            qps: -1.0,
            ..Connection::default()
        };
        let metrics = RequestMetrics::register(&Registry::new());
        let metrics = metrics.map_err(|error| error.to_string())?;
        let access = Access::open(connection, metrics).await;
        access
            .map(|access| Kubernetes {
                access,
                _input: input,
            })
            .map_err(|error| format!("{error}; name another kubeconfig with --kubeconfig"))
    }

    async fn client(&self) -> Client {
        self.access.client().await
    }

    /// Creates a namespace.
    ///
    /// # Errors
    /// Says why it was not created.
    pub async fn create_namespace(&self, namespace: &Namespace) -> Result<(), Failure> {
        let api = Api::<Namespace>::all(self.client().await);
        let done = api.create(&PostParams::default(), namespace).await;
        done.map(drop)
            .map_err(|error| Failure::new("create", "namespaces", "", &error))
    }

    /// Creates an object in a namespace. Returns it as stored.
    ///
    /// # Errors
    /// Says why it was not created.
    pub async fn create<K>(&self, namespace: &str, object: &K) -> Result<K, Failure>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + fmt::Debug + Serialize + DeserializeOwned,
    {
        let api = Api::<K>::namespaced(self.client().await, namespace);
        let done = api.create(&PostParams::default(), object).await;
        done.map_err(|error| Failure::new("create", &K::plural(&()), &within(namespace), &error))
    }

    /// Returns the pods that a label selector selects.
    ///
    /// # Errors
    /// Says why they could not be listed.
    pub async fn pods(&self, namespace: &str, selector: &str) -> Result<Vec<Pod>, Failure> {
        let api = Api::<Pod>::namespaced(self.client().await, namespace);
        let listed = api.list(&ListParams::default().labels(selector)).await;
        listed
            .map(|list| list.items)
            .map_err(|error| Failure::new("list", "pods", &within(namespace), &error))
    }

    /// Gives a pod's label another value.
    ///
    /// # Errors
    /// Says why it was not changed.
    pub async fn label_pod(
        &self,
        namespace: &str,
        name: &str,
        label: (&str, &str),
    ) -> Result<(), Failure> {
        let api = Api::<Pod>::namespaced(self.client().await, namespace);
        let (key, value) = label;
        let patch = json!({"metadata": {"labels": {key: value}}});
        let done = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        done.map(drop)
            .map_err(|error| Failure::new("patch", "pods", &within(namespace), &error))
    }

    /// Gives a Service addresses of a load balancer, as a controller would. Returns it as
    /// stored.
    ///
    /// # Errors
    /// Says why they were not stored.
    pub async fn balance(
        &self,
        namespace: &str,
        name: &str,
        ips: &[IpAddr],
    ) -> Result<Service, Failure> {
        let api = Api::<Service>::namespaced(self.client().await, namespace);
        let ingress: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        let patch = json!({"status": {"loadBalancer": {"ingress": ingress}}});
        let done = api
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        done.map_err(|error| Failure::new("patch", "services/status", &within(namespace), &error))
    }

    /// Lists the nodes of the cluster.
    ///
    /// # Errors
    /// Says why they could not be listed.
    pub async fn nodes(&self) -> Result<Vec<Node>, Failure> {
        let api = Api::<Node>::all(self.client().await);
        let mut nodes = Vec::new();
        let mut params = ListParams::default().limit(NODES);
        loop {
            let page = api.list(&params).await;
            let page = page.map_err(|error| Failure::new("list", "nodes", "", &error))?;
            nodes.extend(page.items);
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(nodes);
            }
        }
    }

    /// Reads the image of the DaemonSet as which Tripod usually runs.
    ///
    /// # Errors
    /// When it is unknown; the error has the reason.
    pub async fn image(&self) -> Result<String, String> {
        let [namespace, name] = DAEMON_SET;
        let api = Api::<DaemonSet>::namespaced(self.client().await, namespace);
        let found = api.get(name).await;
        let found =
            found.map_err(|error| Failure::new("get", "daemonsets", &within(namespace), &error));
        let found = found.map_err(|failure| {
            format!("{failure}; name the image of Tripod for the pods with --image")
        })?;
        let pod = found.spec.and_then(|spec| spec.template.spec);
        let containers = pod.into_iter().flat_map(|pod| pod.containers);
        let mut images = containers.filter_map(|container| container.image);
        images.next().ok_or_else(|| {
            format!("DaemonSet {namespace}/{name} names no image: name Tripod's with --image")
        })
    }

    /// Deletes an object; a missing one is no error.
    ///
    /// # Errors
    /// Says why it was not deleted.
    pub async fn delete(&self, namespace: &str, object: &Object) -> Result<(), Failure> {
        let client = self.client().await;
        let params = DeleteParams::default();
        let done = match object {
            Object::Namespace(name) => Api::<Namespace>::all(client)
                .delete(name, &params)
                .await
                .map(drop),
            Object::Pod(name) => Api::<Pod>::namespaced(client, namespace)
                .delete(name, &params)
                .await
                .map(drop),
            Object::Service(name) => Api::<Service>::namespaced(client, namespace)
                .delete(name, &params)
                .await
                .map(drop),
        };
        let place = match object {
            Object::Namespace(_) => String::new(),
            _ => within(namespace),
        };
        match done.map_err(|error| Failure::new("delete", object.resource(), &place, &error)) {
            Err(failure) if !failure.is_absent() => Err(failure),
            _ => Ok(()),
        }
    }
}

/// An object that a test created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A namespace of that name.
    Namespace(String),
    /// A pod of that name.
    Pod(String),
    /// A Service of that name.
    Service(String),
}

impl Object {
    /// Returns the resource, as kubectl names it.
    pub fn resource(&self) -> &'static str {
        match self {
            Object::Namespace(_) => "namespaces",
            Object::Pod(_) => "pods",
            Object::Service(_) => "services",
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        match self {
            Object::Namespace(name) | Object::Pod(name) | Object::Service(name) => name,
        }
    }
}

fn within(namespace: &str) -> String {
    format!(" in namespace {namespace}")
}

/// Keeps standard input in memory, where it can be read as a file.
fn from_input() -> io::Result<File> {
    let mut file = File::from(memfd_create(c"kubeconfig", MFdFlags::MFD_CLOEXEC)?);
    let mut input = io::stdin().lock().take(LONGEST_INPUT);
    io::copy(&mut input, &mut file)?;
    Ok(file)
}

/// Returns the kubeconfig that kubectl would use.
fn usual() -> Option<PathBuf> {
    let named = env::var_os("KUBECONFIG").unwrap_or_default();
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    let mut candidates = env::split_paths(&named).chain(home);
    candidates.find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn refused(message: &str) -> Failure {
        let status = Status::failure(message, "Forbidden").with_code(403);
        let error = kube::Error::Api(Box::new(status));
        Failure::new("create", "pods", &within("n"), &error)
    }

    #[test]
    fn what_is_refused_names_verb_and_resource() {
        let failure = refused("pods is forbidden: User \"jane\" cannot create resource");
        let text = failure.to_string();
        for words in ["create pods in namespace n", "jane", "--kubeconfig"] {
            assert!(text.contains(words), "{text}");
        }
        assert!(!failure.is_too_early());
    }

    /// The message is that of `plugin/pkg/admission/serviceaccount` of kube-apiserver.
    #[test]
    fn a_namespace_without_its_service_account_is_new() {
        let failure = refused(
            "pods \"a\" is forbidden: error looking up service account n/default: \
             serviceaccount \"default\" not found",
        );
        assert!(failure.is_too_early());
    }
}
