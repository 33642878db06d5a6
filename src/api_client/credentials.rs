//! Reads what is needed to speak to the API server: the service account of the
//! pod, or a kubeconfig with the files and the plugin that it names.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use http::Uri;
use jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::{
    AccessError, Connection, RequestMetrics,
    connect::{self, Http2},
    exec,
    proxy::{Environment, Proxy},
    transports::Kept,
};

/// Where a pod finds its token and the server's CA (`rest.InClusterConfig` of
/// client-go has the same).
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How long before they expire credentials of a plugin are renewed; in the last
/// quarter of their time at the latest.
const BEFORE_EXPIRY: Duration = Duration::from_secs(60);

/// A client, and how long it may be used.
pub(super) struct Loaded {
    pub(super) client: Client,
    /// Counts the client among those that are kept.
    pub(super) kept: Kept,
    /// The address of the API server.
    pub(super) server: Uri,
    pub(super) files: Files,
    /// When the credentials are to be renewed; `None`: when a file changes, or
    /// the server refuses them.
    pub(super) renew_in: Option<Duration>,
    /// The server, if its certificate is not verified.
    pub(super) unverified: Option<String>,
}

/// The files that credentials were read from, as they were then.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(Vec<(PathBuf, Option<Stamp>)>);

/// Identity and age of a file; a projected volume swaps a link, an editor
/// writes in place, and both show here.
type Stamp = (u64, u64, u64, i64, i64);

impl Files {
    fn add(&mut self, path: &Path) {
        self.0.push((path.to_owned(), stamp(path)));
    }

    /// Returns whether one of them differs from what was read.
    pub(super) fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, was)| stamp(path) != *was)
    }

    /// Returns the same files as they are now.
    pub(super) fn as_they_are(&self) -> Files {
        let files = self.0.iter();
        Files(files.map(|(path, _)| (path.clone(), stamp(path))).collect())
    }
}

/// What a configuration comes from, beside itself.
#[derive(Default)]
struct Origin {
    files: Files,
    /// `proxy-url` of the cluster.
    proxy: Option<String>,
}

/// Reads everything, and asks the plugin if there is one.
///
/// # Errors
/// Says which file, plugin or value cannot be used.
pub(super) async fn load(
    connection: &Connection,
    metrics: &RequestMetrics,
) -> Result<Loaded, AccessError> {
    let mut origin = Origin::default();
    let mut config = match &connection.kubeconfig {
        Some(path) => from_kubeconfig(path, connection.master.as_deref(), &mut origin).await?,
        None if connection.master.is_some() => Config::new(Uri::default()),
        None => {
            for file in ["token", "ca.crt"] {
                origin.files.add(&Path::new(SERVICE_ACCOUNT).join(file));
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
    let unverified = config.accept_invalid_certs;
    let unverified = unverified.then(|| config.cluster_url.to_string());
    read_token(&mut config)?;
    let (mut renew_in, mut certificate) = (None, None);
    if let (Some(plugin), Some(path)) = (exec::of(&config.auth_info), &connection.kubeconfig) {
        let credentials = exec::run(plugin).await;
        let credentials = credentials.map_err(|reason| AccessError::Plugin {
            path: path.clone(),
            command: plugin.command.clone().unwrap_or_default(),
            reason,
        })?;
        renew_in = credentials.expires.map(left_to_renew);
        certificate = credentials.certificate().map(str::to_owned);
        credentials.put_into(&mut config.auth_info);
    }
    let proxy = match &origin.proxy {
        Some(url) => Some(Proxy::parse("proxy-url of the kubeconfig", url)?),
        None => Environment::of_this_process().proxy_for(&config.cluster_url)?,
    };
    // This program's own value counts.
    config.proxy_url = None;
    let server = config.cluster_url.clone();
    let settings = connect::Settings {
        config,
        http2: Http2::of_this_process(),
        metrics: metrics.clone(),
    };
    let client = move || connect::client(settings, proxy);
    // It may read the system's certificates.
    let client = tokio::task::spawn_blocking(client).await;
    let client = client
        .map_err(|_| AccessError::Interrupted)?
        .map_err(AccessError::Credentials)?;
    metrics.transports.given(certificate);
    Ok(Loaded {
        client,
        kept: metrics.transports.made(),
        server,
        files: origin.files,
        renew_in,
        unverified,
    })
}

fn left_to_renew(expires: Timestamp) -> Duration {
    let left = Timestamp::now().duration_until(expires);
    let left = Duration::try_from(left).unwrap_or_default();
    left.saturating_sub(BEFORE_EXPIRY.min(left / 4))
}

fn read_token(config: &mut Config) -> Result<(), AccessError> {
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
    Ok(())
}

async fn from_kubeconfig(
    path: &Path,
    master: Option<&str>,
    origin: &mut Origin,
) -> Result<Config, AccessError> {
    let explain = |reason| AccessError::Kubeconfig {
        path: path.to_owned(),
        reason: Box::new(reason),
    };
    // Before reading: what changes meanwhile will be seen as a change.
    origin.files.add(path);
    let mut file = Kubeconfig::read_from(path).map_err(explain)?;
    let context = file
        .contexts
        .iter()
        .find(|context| Some(&context.name) == file.current_context.as_ref());
    let of_context = context.and_then(|named| Some(named.context.as_ref()?.cluster.clone()));
    for named in &mut file.clusters {
        let Some(cluster) = &mut named.cluster else {
            continue;
        };
        if let Some(master) = master {
            cluster.server = Some(master.to_owned());
        }
        let proxy = cluster.proxy_url.clone().filter(|url| !url.is_empty());
        if of_context.as_ref() == Some(&named.name) {
            origin.proxy = proxy;
        }
    }
    for named in named(&file) {
        origin.files.add(named);
    }
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(file, &options).await;
    config.map_err(explain)
}

/// Returns the files that a kubeconfig names: certificates, keys and tokens.
fn named(file: &Kubeconfig) -> impl Iterator<Item = &Path> {
    let clusters = file.clusters.iter();
    let clusters = clusters.filter_map(|named| named.cluster.as_ref());
    let authorities = clusters.filter_map(|cluster| cluster.certificate_authority.as_ref());
    let users = file.auth_infos.iter();
    let users = users.filter_map(|named| named.auth_info.as_ref());
    let of_users = users.flat_map(|user| {
        let files = [&user.client_certificate, &user.client_key, &user.token_file];
        files.into_iter().flatten()
    });
    authorities.chain(of_users).map(Path::new)
}

/// Returns the files that credentials are read from besides the `kubeconfig`; without one
/// those of a pod.
pub fn files(kubeconfig: Option<&Path>) -> Vec<PathBuf> {
    match kubeconfig.map(Kubeconfig::read_from) {
        None => vec![SERVICE_ACCOUNT.into()],
        // Said when it is used.
        Some(Err(_)) => Vec::new(),
        Some(Ok(file)) => named(&file).map(Path::to_owned).collect(),
    }
}

/// Returns whether the `kubeconfig` names a program that gives credentials, for any user. One that
/// cannot be read may name one.
pub fn names_program(kubeconfig: Option<&Path>) -> bool {
    let read = kubeconfig.map(Kubeconfig::read_from);
    read.is_some_and(|read| {
        read.map_or(true, |file| {
            let users = file.auth_infos.iter();
            let mut users = users.filter_map(|user| user.auth_info.as_ref());
            users.any(|user| exec::of(user).is_some())
        })
    })
}

/// Without a scheme it is plain HTTP, as client-go reads it.
fn master_url(text: &str) -> Result<Uri, AccessError> {
    let full = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
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
