//! Address and credentials of the API server, followed as they change.

use std::{
    io::ErrorKind,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use http::{Method, Uri};
use kube::{Client, config::KubeconfigError};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tracing::{info, warn};

use super::{
    budget::Budget,
    causes::causes,
    credentials::{self, Loaded},
    exec::PluginError,
    metrics::{Asked, RequestMetrics},
    proxy::ProxyError,
    transports::OpenTransport,
};
use crate::log_once::LogOnce;

/// How long a request waits for credentials that are being reloaded, before it is made with the
/// previous ones. Reading files takes no time, but a plugin may take long.
const BRIEFLY: Duration = Duration::from_secs(1);

/// Shortest time between two renewals of a plugin's credentials, however short their
/// lifetime is.
const RENEW_AT_MOST: Duration = Duration::from_secs(1);

/// Time until a plugin that failed is run again; its previous credentials may still be
/// valid for some time.
const PLUGIN_AGAIN: Duration = Duration::from_secs(10);

/// How to reach the API server, as the user configures it (`--kubeconfig`, `--master`,
/// and `clientConnection` of KubeProxyConfiguration).
///
/// Objects always come as JSON: `clientConnection.contentType` and `acceptContentTypes`,
/// whose default is protobuf, choose an encoding but not its content, so they are not
/// used here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Connection {
    /// Path of a kubeconfig file; `None` if there is none. If `master` is `None` as well, the
    /// service account of the pod is used.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, which takes precedence over that of the kubeconfig; `None`: that of
    /// the kubeconfig.
    pub master: Option<String>,
    /// Requests per second; 0 means 5, a negative number no limit.
    pub qps: f32,
    /// Requests that may be made at once before `qps` applies; 0 means 10.
    pub burst: u32,
}

/// Why the API server cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The process is not in a pod, or in one without a service account.
    #[error(
        "neither a kubeconfig file nor a master URL was given, and the pod's service account \
         cannot be used ({0}); give --kubeconfig, or run as a pod with automountServiceAccountToken"
    )]
    InCluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The kubeconfig cannot be used.
    #[error("kubeconfig {}: {reason}", path.display())]
    Kubeconfig {
        /// Path of the kubeconfig.
        path: PathBuf,
        /// The cause.
        #[source]
        reason: Box<KubeconfigError>,
    },
    /// The proxy that the kubeconfig or the environment names cannot be used.
    #[error("the API server's proxy: {0}; name another one, or exempt the server in NO_PROXY")]
    Proxy(#[from] ProxyError),
    /// The kubeconfig's credential plugin provides no credentials.
    #[error("kubeconfig {}: credential plugin {command:?}: {reason}", path.display())]
    Plugin {
        /// Path of the kubeconfig.
        path: PathBuf,
        /// Path of the program.
        command: String,
        /// Why it provides none.
        #[source]
        reason: PluginError,
    },
    /// `--master` is not a URL.
    #[error("master {url:?} is not a URL such as https://192.0.2.1:6443: {reason}")]
    Master {
        /// The given text.
        url: String,
        /// The cause.
        #[source]
        reason: http::uri::InvalidUri,
    },
    /// A file with a token cannot be read.
    #[error("token file {}: {reason}", path.display())]
    Token {
        /// Path of the file with the token.
        path: PathBuf,
        /// Why it cannot be used.
        #[source]
        reason: std::io::Error,
    },
    /// Certificates, keys or credentials cannot be used.
    #[error("the credentials for the API server cannot be used: {0}")]
    Credentials(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The task that read the credentials was stopped.
    #[error("reading the credentials was interrupted")]
    Interrupted,
}

/// A connection to the API server that follows its credentials: kubeconfig, token, CA,
/// certificate and key files are checked before each request, and when one has changed,
/// all are read again. Credentials of a plugin are renewed before they expire. Clones
/// share everything.
#[derive(Clone)]
pub struct Access {
    shared: Arc<Shared>,
    budget: Arc<Budget>,
}

struct Shared {
    source: Source,
    current: ArcSwap<Current>,
    /// Whether the server refused the credentials after they were last read.
    refused: AtomicBool,
    /// Closed when the reading in progress ends: its sender is dropped then.
    reading: Mutex<Option<watch::Receiver<()>>>,
    /// The last reason why they could not be read again, to log each reason once: a failing plugin
    /// is run again every ten seconds.
    unreadable: Mutex<LogOnce>,
    /// Notifies that the system refused to start a plugin.
    program_refused: Notify,
}

enum Source {
    Connection(Connection, RequestMetrics),
    Fixed,
}

struct Current {
    client: Client,
    /// Counts the client for as long as it is in use; `None` if it was made elsewhere.
    transport: Option<Arc<OpenTransport>>,
    server: Uri,
    files: credentials::Files,
    renew_at: Option<Instant>,
    /// Warnings that have been logged.
    warnings: Vec<String>,
}

impl Current {
    fn new(loaded: Loaded, before: Option<&Current>) -> Current {
        let warned = before.map_or(&[][..], |before| &before.warnings);
        for new in loaded.warnings.iter().filter(|one| !warned.contains(one)) {
            warn!("{new}");
        }
        let renew_in = loaded.renew_in.map(|left| left.max(RENEW_AT_MOST));
        Current {
            client: loaded.client,
            transport: Some(Arc::new(loaded.transport)),
            server: loaded.server,
            files: loaded.files,
            renew_at: renew_in.map(|left| Instant::now() + left),
            warnings: loaded.warnings,
        }
    }
}

impl Access {
    /// Reads the credentials. Makes no request yet; each request will count in `metrics`.
    ///
    /// # Errors
    /// Says which file or value cannot be used.
    pub async fn open(
        connection: Connection,
        metrics: RequestMetrics,
    ) -> Result<Access, AccessError> {
        let budget = Budget::new(connection.qps, connection.burst);
        let loaded = credentials::load(&connection, &metrics).await?;
        let current = Current::new(loaded, None);
        let source = Source::Connection(connection, metrics);
        Ok(Access::new(source, current, budget))
    }

    /// Returns access through a client made elsewhere, whose credentials do not change.
    pub fn fixed(client: Client) -> Access {
        let current = Current {
            client,
            transport: None,
            server: Uri::default(),
            files: credentials::Files::default(),
            renew_at: None,
            warnings: Vec::new(),
        };
        Access::new(Source::Fixed, current, Budget::new(-1.0, 0))
    }

    fn new(source: Source, current: Current, budget: Budget) -> Access {
        Access {
            shared: Arc::new(Shared {
                source,
                current: ArcSwap::from_pointee(current),
                refused: AtomicBool::new(false),
                reading: Mutex::default(),
                unreadable: Mutex::default(),
                program_refused: Notify::new(),
            }),
            budget: Arc::new(budget),
        }
    }

    /// Returns the same access with a rate limit of its own: `qps` requests per second,
    /// and `burst` at once before that applies.
    pub(crate) fn with_rate(&self, qps: f32, burst: u32) -> Access {
        if let Source::Connection(_, metrics) = &self.shared.source {
            metrics.transports.shared();
        }
        Access {
            shared: Arc::clone(&self.shared),
            budget: Arc::new(Budget::new(qps, burst)),
        }
    }

    /// Returns a client with the present credentials. If new ones cannot be used (a file
    /// is half-written) or are not available yet (a plugin takes long), the previous ones
    /// stay.
    pub async fn client(&self) -> Client {
        if self.is_outdated() {
            let mut reading = self.read_again();
            // The reading continues in its own task.
            let _ = timeout(BRIEFLY, reading.changed()).await;
        }
        self.shared.current.load().client.clone()
    }

    fn is_outdated(&self) -> bool {
        let current = self.shared.current.load();
        current.files.have_changed()
            || self.shared.refused.load(Relaxed)
            || current.renew_at.is_some_and(|at| at <= Instant::now())
    }

    /// Makes the credentials be read again, by one task at a time. The returned channel ends with
    /// the reading.
    fn read_again(&self) -> watch::Receiver<()> {
        let mut reading = self.shared.reading.lock();
        if let Some(under_way) = reading.as_ref().filter(|ends| ends.has_changed().is_ok()) {
            return under_way.clone();
        }
        let (ends, under_way) = watch::channel(());
        *reading = Some(under_way.clone());
        let access = self.clone();
        tokio::spawn(async move {
            access.reload().await;
            drop(ends);
        });
        under_way
    }

    async fn reload(&self) {
        let Source::Connection(connection, metrics) = &self.shared.source else {
            return;
        };
        self.shared.refused.store(false, Relaxed);
        let before = self.shared.current.load_full();
        let changed = before.files.have_changed();
        let current = match credentials::load(connection, metrics).await {
            Ok(loaded) => {
                if self.shared.unreadable.lock().end() {
                    info!("credentials for the API server can be read again");
                } else if changed {
                    info!("credentials for the API server have changed and were read again");
                }
                Current::new(loaded, Some(&before))
            }
            Err(error) => {
                if self.shared.unreadable.lock().differs(&error.to_string()) {
                    if let AccessError::Plugin {
                        reason: PluginError::Start(start),
                        ..
                    } = &error
                        && start.kind() == ErrorKind::Unsupported
                    {
                        self.shared.program_refused.notify_one();
                    }
                    let confined = if lacks_rights(&error) { CONFINED } else { "" };
                    warn!(
                        "{error}{confined}; fix this before they expire: the previous credentials \
                         stay in use, and the new ones are tried again"
                    );
                }
                Current {
                    client: before.client.clone(),
                    transport: before.transport.clone(),
                    server: before.server.clone(),
                    files: before.files.as_they_are(),
                    renew_at: before.renew_at.map(|_| Instant::now() + PLUGIN_AGAIN),
                    warnings: before.warnings.clone(),
                }
            }
        };
        self.shared.current.store(Arc::new(current));
    }

    /// Waits until a kubeconfig that was changed names a plugin that this process cannot start
    /// (ENOSYS), because a filter of calls does not let it start programs.
    pub async fn program_is_refused(&self) {
        self.shared.program_refused.notified().await;
    }

    /// Makes the next request read the credentials again, because the server refused them.
    pub(crate) fn distrust(&self) {
        self.shared.refused.store(true, Relaxed);
    }

    /// Waits until the rate limit lets a request with this method pass.
    pub(crate) async fn turn(&self, method: &Method) {
        self.waited(method, self.budget.take().await);
    }

    /// Like [`Access::turn`], for a request that can wait: others may use the burst before it.
    pub(crate) async fn last_turn(&self, method: &Method) {
        self.waited(method, self.budget.take_last().await);
    }

    fn waited(&self, method: &Method, waited: Option<Duration>) {
        if let (Source::Connection(_, metrics), Some(waited)) = (&self.shared.source, waited) {
            let to = Asked::new(method, &self.shared.current.load().server);
            metrics.waited(&to, waited);
        }
    }
}

/// A hint for errors where the system refuses to run a program or to read a file.
const CONFINED: &str = " (--confine may keep this process from what the kubeconfig did not name \
                        when it started: start it again)";

/// Returns whether the system refused a call (ENOSYS, by a filter of calls) or to open a file.
fn lacks_rights(error: &AccessError) -> bool {
    let mut found = causes(error).filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    found.any(|cause| {
        let kind = cause.kind();
        matches!(kind, ErrorKind::Unsupported | ErrorKind::PermissionDenied)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use prometheus::Registry;

    use super::*;
    use crate::log::lines;

    #[test]
    fn credentials_that_cannot_be_read_again_are_logged_once_and_when_they_can() {
        let path = std::env::temp_dir().join(format!("tripod-kubeconfig-{}", std::process::id()));
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
                    contexts: [{name: it, context: {cluster: it, user: it}}]\n\
                    clusters: [{name: it, cluster: {server: \"http://192.0.2.1\"}}]\n\
                    users: [{name: it, user: {token: secret}}]\n";
        fs::write(&path, text).unwrap();
        let connection = Connection {
            kubeconfig: Some(path.clone()),
            ..Connection::default()
        };
        let metrics = RequestMetrics::register(&Registry::new()).unwrap();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let access = runtime.block_on(Access::open(connection, metrics)).unwrap();
        let log = lines(0, || {
            for text in ["broken: [", "broken: [", text] {
                fs::write(&path, text).unwrap();
                runtime.block_on(access.reload());
            }
        });
        fs::remove_file(&path).unwrap();
        let [broken, again] = &log[..] else {
            panic!("{log:#?}");
        };
        assert!(
            broken.contains("the previous credentials stay in use"),
            "{broken}"
        );
        assert!(again.contains("can be read again"), "{again}");
    }

    #[test]
    fn what_a_confined_process_lacks_is_distinguished() {
        let refused = |errno: i32| std::io::Error::from_raw_os_error(errno);
        let path = PathBuf::from("/etc/it");
        for (errno, expected) in [
            (nix::libc::ENOSYS, true),
            (nix::libc::EACCES, true),
            (nix::libc::ENOENT, false),
        ] {
            let plugin = AccessError::Plugin {
                path: path.clone(),
                command: "get".to_owned(),
                reason: PluginError::Start(refused(errno)),
            };
            let kubeconfig = AccessError::Kubeconfig {
                path: path.clone(),
                reason: Box::new(KubeconfigError::ReadConfig(refused(errno), path.clone())),
            };
            let token = AccessError::Token {
                path: path.clone(),
                reason: refused(errno),
            };
            for error in [plugin, kubeconfig, token] {
                assert_eq!(lacks_rights(&error), expected, "{error}");
            }
        }
    }
}
