//! Where the API server is and who we are to it, also after that changed.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::Uri;
use kube::{
    Client, Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::sync::Mutex;
use tracing::{info, warn};

use super::{budget::Budget, connect};

/// Where a pod finds its token and the server's CA (`rest.InClusterConfig` of
/// client-go has the same).
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How to reach the API server, as the user says it (`--kubeconfig`,
/// `--master`, and `clientConnection` of KubeProxyConfiguration).
///
/// Objects always come as JSON: `clientConnection.contentType` and
/// `acceptContentTypes`, whose default is protobuf, choose an encoding but not
/// what is in it, so they have no part here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Connection {
    /// A kubeconfig file. With neither this nor `master`, the service account
    /// of the pod is used.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server; it wins over that of the kubeconfig.
    pub master: Option<String>,
    /// Requests a second; 0 means 5, a negative number no limit.
    pub qps: f32,
    /// Requests that may be made at once before `qps` holds; 0 means 10.
    pub burst: u32,
}

/// Why there is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Not in a pod, or in one without service account.
    #[error(
        "neither a kubeconfig file nor a master URL was given, and the pod's service account \
         cannot be used ({0}); give --kubeconfig, or run as a pod with automountServiceAccountToken"
    )]
    InCluster(#[source] InClusterError),
    /// The kubeconfig cannot be used.
    #[error("kubeconfig {}: {reason}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        reason: Box<KubeconfigError>,
    },
    /// The kubeconfig asks for something that we do not have.
    #[error(
        "kubeconfig {}: proxy-url is not supported; the API server must be reachable directly",
        .0.display()
    )]
    Proxy(PathBuf),
    /// `--master` is not a URL.
    #[error("master {url:?} is not a URL such as https://192.0.2.1:6443: {reason}")]
    Master {
        /// What was given.
        url: String,
        /// What is wrong with it.
        #[source]
        reason: http::uri::InvalidUri,
    },
    /// A file with a token cannot be read.
    #[error("token file {}: {reason}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        reason: std::io::Error,
    },
    /// Certificates, keys or credentials cannot be used.
    #[error("the credentials for the API server cannot be used: {0}")]
    Credentials(#[source] Box<kube::Error>),
    /// The task that read them was stopped.
    #[error("reading the credentials was interrupted")]
    Interrupted,
}

/// A way to the API server that follows its credentials: kubeconfig, token,
/// CA, certificate and key files are looked at before each request, and when
/// one has changed, all are read again. Clones share everything.
#[derive(Clone)]
pub struct Access {
    source: Source,
    state: Arc<Mutex<State>>,
    budget: Arc<Budget>,
}

#[derive(Clone)]
enum Source {
    Connection(Connection),
    Fixed,
}

struct State {
    client: Client,
    files: Vec<(PathBuf, Option<Stamp>)>,
    /// By the server, since they were read.
    refused: bool,
}

/// Identity and age of a file; a projected volume swaps a link, an editor
/// writes in place, and both show here.
type Stamp = (u64, u64, u64, i64, i64);

impl Access {
    /// Reads the credentials. Makes no request yet.
    ///
    /// # Errors
    /// Says which file or value cannot be used.
    pub async fn open(connection: Connection) -> Result<Access, AccessError> {
        let budget = Budget::new(connection.qps, connection.burst);
        let state = load(&connection).await?;
        Ok(Access {
            source: Source::Connection(connection),
            state: Arc::new(Mutex::new(state)),
            budget: Arc::new(budget),
        })
    }

    /// Through a client made elsewhere, whose credentials do not change.
    pub fn fixed(client: Client) -> Access {
        Access {
            source: Source::Fixed,
            state: Arc::new(Mutex::new(State {
                client,
                files: Vec::new(),
                refused: false,
            })),
            budget: Arc::new(Budget::new(-1.0, 0)),
        }
    }

    /// A client with the credentials as they now are. Where new ones cannot be
    /// used (a file is half-written), those from before stay.
    pub async fn client(&self) -> Client {
        let mut state = self.state.lock().await;
        let changed = state.files.iter().any(|(path, was)| stamp(path) != *was);
        if (changed || state.refused)
            && let Source::Connection(connection) = &self.source
        {
            state.refused = false;
            match load(connection).await {
                Ok(new) => {
                    if changed {
                        info!("credentials for the API server have changed and were read again");
                    }
                    *state = new;
                }
                Err(error) => {
                    warn!("{error}; the credentials from before stay in use");
                    for (path, was) in &mut state.files {
                        *was = stamp(path);
                    }
                }
            }
        }
        state.client.clone()
    }

    /// Has the next request read the credentials again: the server refused
    /// them.
    pub(super) async fn distrust(&self) {
        self.state.lock().await.refused = true;
    }

    /// Waits until the rate limit lets a request pass.
    pub(super) async fn turn(&self) {
        self.budget.take().await;
    }
}

async fn load(connection: &Connection) -> Result<State, AccessError> {
    let mut files = Vec::new();
    // Before reading: what changes meanwhile will be seen as a change.
    let mut note = |path: &Path| files.push((path.to_owned(), stamp(path)));
    let mut config = match (&connection.kubeconfig, &connection.master) {
        (Some(path), master) => {
            note(path);
            from_kubeconfig(path, master.as_deref(), &mut note).await?
        }
        (None, Some(_)) => Config::new(Uri::default()),
        (None, None) => {
            for file in ["token", "ca.crt"] {
                note(&Path::new(SERVICE_ACCOUNT).join(file));
            }
            let mut config = Config::incluster().map_err(AccessError::InCluster)?;
            // `root_cert` holds the same, as fresh as we are.
            config.root_cert_file = None;
            config
        }
    };
    if let Some(master) = &connection.master {
        config.cluster_url = master_url(master)?;
    }
    if let Some(path) = config.auth_info.token_file.take()
        && config.auth_info.token.is_none()
    {
        let token = std::fs::read_to_string(&path).map_err(|reason| AccessError::Token {
            path: path.into(),
            reason,
        })?;
        // Files that people write end with a newline, headers must not.
        config.auth_info.token = Some(token.trim().to_owned().into());
    }
    // A plugin that gives credentials is a program that we wait for.
    let client = tokio::task::spawn_blocking(move || connect::client(config));
    let client = client.await.map_err(|_| AccessError::Interrupted)?;
    Ok(State {
        client: client.map_err(|error| AccessError::Credentials(Box::new(error)))?,
        files,
        refused: false,
    })
}

async fn from_kubeconfig(
    path: &Path,
    master: Option<&str>,
    note: &mut impl FnMut(&Path),
) -> Result<Config, AccessError> {
    let explain = |reason| AccessError::Kubeconfig {
        path: path.to_owned(),
        reason: Box::new(reason),
    };
    let mut file = Kubeconfig::read_from(path).map_err(explain)?;
    let clusters = file.clusters.iter_mut();
    for cluster in clusters.filter_map(|named| named.cluster.as_mut()) {
        if let Some(master) = master {
            cluster.server = Some(master.to_owned());
        }
        if cluster
            .proxy_url
            .as_ref()
            .is_some_and(|url| !url.is_empty())
        {
            return Err(AccessError::Proxy(path.to_owned()));
        }
        cluster
            .certificate_authority
            .iter()
            .for_each(|path| note(path.as_ref()));
    }
    for user in file
        .auth_infos
        .iter()
        .filter_map(|named| named.auth_info.as_ref())
    {
        let files = [&user.client_certificate, &user.client_key, &user.token_file];
        files
            .into_iter()
            .flatten()
            .for_each(|path| note(path.as_ref()));
    }
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(file, &options).await;
    config.map_err(explain)
}

/// Without a scheme it is plain HTTP, as client-go reads it.
fn master_url(text: &str) -> Result<Uri, AccessError> {
    let full = match text.contains("://") {
        true => text.to_owned(),
        false => format!("http://{text}"),
    };
    full.parse().map_err(|reason| AccessError::Master {
        url: text.to_owned(),
        reason,
    })
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some((
        meta.dev(),
        meta.ino(),
        meta.size(),
        meta.mtime(),
        meta.mtime_nsec(),
    ))
}
