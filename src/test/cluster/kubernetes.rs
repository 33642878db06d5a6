//! Requests to the API server, with the user's own kubeconfig.

use std::{
    env, fmt,
    fs::File,
    io::{self, Read},
    net::IpAddr,
    os::fd::AsRawFd,
    path::PathBuf,
};

use http::Request as HttpRequest;
use kube::{
    api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams},
    core::{Request, request},
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::{Value, json};

use crate::api_client::{Access, Connection, RequestMetrics};

/// The DaemonSet whose image the pods get, as `deploy/` and kubeadm name it.
const DAEMON_SET: [&str; 2] = ["kube-system", "kube-proxy"];

/// Number of objects on a page of a list: some Nodes have 50 kB, because they list their images.
const PAGE: u32 = 100;

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
    fn new(verb: &str, of: &Collection, error: &kube::Error) -> Failure {
        let request = format!("{verb} {of}");
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
    /// Objects that were created, or may have been.
    made: Mutex<Vec<(Collection, String)>>,
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
                made: Mutex::default(),
                _input: input,
            })
            .map_err(|error| format!("{error}; name another kubeconfig with --kubeconfig"))
    }

    async fn send(
        &self,
        verb: &str,
        of: &Collection,
        request: Result<HttpRequest<Vec<u8>>, request::Error>,
    ) -> Result<Value, Failure> {
        let client = self.access.client().await;
        let done = match request {
            Ok(request) => client.request(request).await,
            Err(error) => Err(kube::Error::BuildRequest(error)),
        };
        done.map_err(|error| Failure::new(verb, of, &error))
    }

    /// Creates an object. Returns it as stored.
    ///
    /// # Errors
    /// Says why it was not created.
    pub async fn create(&self, of: &Collection, object: &Value) -> Result<Value, Failure> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let made = (of.clone(), name.to_owned());
        // Before the request, whose answer may get lost.
        let is_known = self.made.lock().contains(&made);
        if !is_known {
            self.made.lock().push(made);
        }
        let body = object.to_string().into_bytes();
        let request = of.requests().create(&PostParams::default(), body);
        self.send("create", of, request).await
    }

    /// Returns the objects that were created, or may have been, the last one first.
    pub fn made(&self) -> Vec<(Collection, String)> {
        let objects = self.made.lock();
        objects.iter().rev().cloned().collect()
    }

    /// Lists the objects; only those that a label selector selects, if there is one.
    ///
    /// # Errors
    /// Says why they could not be listed.
    pub async fn list(
        &self,
        of: &Collection,
        selector: Option<&str>,
    ) -> Result<Vec<Value>, Failure> {
        let mut listed = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector = selector.map(str::to_owned);
        loop {
            let mut page = self.send("list", of, of.requests().list(&params)).await?;
            if let Value::Array(items) = page["items"].take() {
                listed.extend(items);
            }
            let next = page["metadata"]["continue"].as_str().unwrap_or_default();
            if next.is_empty() {
                return Ok(listed);
            }
            params.continue_token = Some(next.to_owned());
        }
    }

    /// Gives a pod's label another value.
    ///
    /// # Errors
    /// Says why it was not changed.
    pub async fn label_pod(
        &self,
        namespace: &str,
        name: &str,
        (key, value): (&str, &str),
    ) -> Result<(), Failure> {
        let of = Collection::new("pods", Some(namespace));
        let patch = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
        let request = of.requests().patch(name, &PatchParams::default(), &patch);
        self.send("patch", &of, request).await.map(drop)
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
    ) -> Result<Value, Failure> {
        let of = Collection::new("services", Some(namespace));
        let ingress: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        let patch = Patch::Merge(json!({"status": {"loadBalancer": {"ingress": ingress}}}));
        let params = PatchParams::default();
        let request = of
            .requests()
            .patch_subresource("status", name, &params, &patch);
        let of = Collection::new("services/status", Some(namespace));
        self.send("patch", &of, request).await
    }

    /// Reads the image of the DaemonSet as which Tripod usually runs.
    ///
    /// # Errors
    /// When it is unknown; the error has the reason.
    pub async fn image(&self) -> Result<String, String> {
        let [namespace, name] = DAEMON_SET;
        let of = Collection::new("daemonsets", Some(namespace));
        let request = of.requests().get(name, &GetParams::default());
        let found = self.send("get", &of, request).await.map_err(|failure| {
            format!("{failure}; name the image of Tripod for the pods with --image")
        })?;
        let containers = found["spec"]["template"]["spec"]["containers"].as_array();
        let mut images = containers.into_iter().flatten();
        let image = images.find_map(|container| container["image"].as_str());
        image.map(str::to_owned).ok_or_else(|| {
            format!("DaemonSet {namespace}/{name} names no image: name Tripod's with --image")
        })
    }

    /// Deletes an object; a missing one is no error.
    ///
    /// # Errors
    /// Says why it was not deleted.
    pub async fn delete(&self, of: &Collection, name: &str) -> Result<(), Failure> {
        let request = of.requests().delete(name, &DeleteParams::default());
        match self.send("delete", of, request).await {
            Err(failure) if failure.code != Some(404) => Err(failure),
            _ => Ok(()),
        }
    }
}

/// The objects of one resource, as kubectl names it, in a namespace or in none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    resource: &'static str,
    namespace: Option<String>,
}

impl Collection {
    pub fn new(resource: &'static str, namespace: Option<&str>) -> Collection {
        let namespace = namespace.map(str::to_owned);
        Collection {
            resource,
            namespace,
        }
    }

    fn requests(&self) -> Request {
        let group = match self.resource {
            "daemonsets" => "apis/apps",
            _ => "api",
        };
        let namespace = self.namespace.as_ref();
        let within = namespace.map(|namespace| format!("namespaces/{namespace}/"));
        let (within, resource) = (within.unwrap_or_default(), self.resource);
        Request::new(format!("/{group}/v1/{within}{resource}"))
    }
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource)?;
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
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
        Failure::new("create", &Collection::new("pods", Some("n")), &error)
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
