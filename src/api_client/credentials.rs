//! Reads the credentials for the API server: the service account of the pod, or a kubeconfig with
//! the files and the plugin that it names.

use std::{
    env,
    error::Error,
    io,
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
use serde_json::json;

use super::{
    AccessError, Connection, RequestMetrics,
    connect::{self, Http2},
    exec,
    proxy::{Environment, Proxy},
    transports::OpenTransport,
};

/// Where a pod finds its token and the server's CA (the same path as in
/// `rest.InClusterConfig` of client-go).
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How long before their expiry credentials of a plugin are renewed; but not before the
/// last quarter of their lifetime.
const BEFORE_EXPIRY: Duration = Duration::from_secs(60);

/// A client, and how long it may be used.
pub(super) struct Loaded {
    pub(super) client: Client,
    /// Counts the client among those that are kept.
    pub(super) transport: OpenTransport,
    /// The address of the API server.
    pub(super) server: Uri,
    pub(super) files: Files,
    /// Time until the credentials must be renewed; `None` if that depends only on a changed file or
    /// a refusal of the server.
    pub(super) renew_in: Option<Duration>,
    /// Warnings to log once.
    pub(super) warnings: Vec<String>,
}

/// The files that credentials were read from, with their stamps at that time.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(Vec<(PathBuf, Option<Stamp>)>);

/// Identity and age of a file: both show when a projected volume swaps a link, and when
/// an editor writes in place.
type Stamp = (u64, u64, u64, i64, i64);

impl Files {
    fn add(&mut self, path: &Path) {
        self.0.push((path.to_owned(), stamp(path)));
    }

    /// Returns whether any of them has changed since it was read.
    pub(super) fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, was)| stamp(path) != *was)
    }

    /// Returns the same files with their present stamps.
    pub(super) fn as_they_are(&self) -> Files {
        let files = self.0.iter();
        Files(files.map(|(path, _)| (path.clone(), stamp(path))).collect())
    }
}

/// The sources of a configuration, in addition to the kubeconfig itself.
#[derive(Default)]
struct Origin {
    files: Files,
    /// `proxy-url` of the cluster.
    proxy: Option<String>,
}

/// Reads everything, and runs the plugin if there is one.
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
            let config = in_cluster(|name| env::var(name).ok(), Path::new(SERVICE_ACCOUNT)).await;
            config.map_err(AccessError::InCluster)?
        }
    };
    if let Some(master) = &connection.master {
        config.cluster_url = server_url(master, has_tls(&config))?;
    } else if config.cluster_url.scheme().is_none() {
        config.cluster_url = server_url(&config.cluster_url.to_string(), has_tls(&config))?;
    }
    let mut warnings = Vec::new();
    if config.accept_invalid_certs {
        let server = &config.cluster_url;
        warnings.push(format!(
            "the certificate of {server} is not verified (insecure-skip-tls-verify)"
        ));
    }
    warnings.extend(leave_out_secrets(&mut config));
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
    // The proxy that this program chose applies.
    config.proxy_url = None;
    let server = config.cluster_url.clone();
    let settings = connect::Settings {
        config,
        http2: Http2::of_this_process(),
        metrics: metrics.clone(),
    };
    let client = move || connect::client(settings, proxy);
    // Creating it may read the system's certificates.
    let client = tokio::task::spawn_blocking(client).await;
    let client = client
        .map_err(|_| AccessError::Interrupted)?
        .map_err(AccessError::Credentials)?;
    metrics.transports.given(certificate);
    Ok(Loaded {
        client,
        transport: metrics.transports.made(),
        server,
        files: origin.files,
        renew_in,
        warnings,
    })
}

fn left_to_renew(expires: Timestamp) -> Duration {
    let left = Timestamp::now().duration_until(expires);
    let left = Duration::try_from(left).unwrap_or_default();
    left.saturating_sub(BEFORE_EXPIRY.min(left / 4))
}

/// Builds the configuration of a pod from these `variables` and this `service_account`, like
/// `rest.InClusterConfig` of client-go: unlike `kube`, it needs no namespace.
async fn in_cluster(
    variables: impl Fn(&str) -> Option<String>,
    service_account: &Path,
) -> Result<Config, Box<dyn Error + Send + Sync>> {
    let [host, port] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"].map(|name| {
        variables(name)
            .filter(|value| !value.is_empty())
            .ok_or(name)
    });
    let missing = |name| format!("the variable {name} is not set");
    let (host, port) = (host.map_err(missing)?, port.map_err(missing)?);
    let server = if host.contains(':') {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    };
    let file = |name| service_account.join(name);
    let kubeconfig = json!({
        "clusters": [{"name": "pod", "cluster": {
            "server": server, "certificate-authority": file("ca.crt")}}],
        "users": [{"name": "pod", "user": {"tokenFile": file("token")}}],
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        "current-context": "pod",
    });
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig)?;
    let options = KubeConfigOptions::default();
    Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?)
}

/// Leaves out what would be readable by others on a connection without TLS, as client-go does
/// (`ClientConfig` of its `tools/clientcmd/client_config.go`): a server gets credentials only at an
/// https URL. Returns a warning if there were any.
fn leave_out_secrets(config: &mut Config) -> Option<String> {
    if config.cluster_url.scheme_str() == Some("https") {
        return None;
    }
    let user = &mut config.auth_info;
    let had = [
        user.token.take().map(|_| "token"),
        user.token_file.take().map(|_| "tokenFile"),
        user.username.take().map(|_| "username"),
        user.password.take().map(|_| "password"),
        user.exec.take().map(|_| "exec"),
        user.auth_provider.take().map(|_| "auth-provider"),
    ];
    let had: Vec<&str> = had.into_iter().flatten().collect();
    (!had.is_empty()).then(|| {
        format!(
            "requests to {} carry no credentials ({} of the kubeconfig), which others could read \
             without TLS; name the API server by an https URL",
            config.cluster_url,
            had.join(", ")
        )
    })
}

/// Reads the file with the token. A token that is given as well is used only if the file
/// cannot be read, as in client-go (`NewBearerAuthWithRefreshRoundTripper`).
fn read_token(config: &mut Config) -> Result<(), AccessError> {
    let Some(path) = config.auth_info.token_file.take() else {
        return Ok(());
    };
    let read = std::fs::read_to_string(&path).and_then(|text| match text.trim() {
        "" => Err(io::Error::other("it is empty")),
        // Files that people write end with a newline, which a header must not contain.
        token => Ok(token.to_owned()),
    });
    match read {
        Ok(token) => config.auth_info.token = Some(token.into()),
        Err(_) if config.auth_info.token.is_some() => {}
        Err(reason) => {
            let path = path.into();
            return Err(AccessError::Token { path, reason });
        }
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
    // Before reading, so that what changes meanwhile is seen as a change.
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

/// Returns the files that credentials are read from, apart from the `kubeconfig` itself;
/// without one those of a pod.
pub fn files(kubeconfig: Option<&Path>) -> Vec<PathBuf> {
    match kubeconfig.map(Kubeconfig::read_from) {
        None => vec![SERVICE_ACCOUNT.into()],
        // Reported when it is used.
        Some(Err(_)) => Vec::new(),
        Some(Ok(file)) => named(&file).map(Path::to_owned).collect(),
    }
}

/// Returns whether the `kubeconfig` names a credential plugin for any user; true if it cannot be
/// read, since it may name one.
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

/// Returns whether any TLS setting is configured, apart from the server's address.
fn has_tls(config: &Config) -> bool {
    let user = &config.auth_info;
    config.root_cert.is_some()
        || config.accept_invalid_certs
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some()
}

/// Returns the URL of a server's address. Without a scheme it is HTTPS if there is any TLS
/// setting, else plain HTTP, as in client-go (`DefaultServerUrlFor` of its `rest/url_utils.go`).
fn server_url(text: &str, has_tls: bool) -> Result<Uri, AccessError> {
    let full = if text.contains("://") {
        text.to_owned()
    } else {
        let scheme = if has_tls { "https" } else { "http" };
        format!("{scheme}://{text}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_scheme_is_https_where_something_of_tls_is_configured() {
        for (text, has_tls, url) in [
            ("192.0.2.1:6443", true, "https://192.0.2.1:6443/"),
            ("192.0.2.1:8080", false, "http://192.0.2.1:8080/"),
            ("localhost", true, "https://localhost/"),
            ("http://192.0.2.1", true, "http://192.0.2.1/"),
        ] {
            assert_eq!(server_url(text, has_tls).unwrap().to_string(), url);
        }
        assert!(server_url("http://", false).is_err());
    }

    #[test]
    fn credentials_are_for_a_server_with_tls() {
        let user = json!({
            "token": "t", "tokenFile": "/token", "username": "u", "password": "p", "as": "someone",
            "exec": {"command": "plugin"}, "auth-provider": {"name": "oidc", "config": {}},
        });
        for (url, is_safe) in [
            ("https://192.0.2.1:6443", true),
            ("http://192.0.2.1:8080", false),
        ] {
            let mut config = Config::new(url.parse().unwrap());
            config.auth_info = serde_json::from_value(user.clone()).unwrap();
            let warning = leave_out_secrets(&mut config);
            let left = serde_json::to_value(&config.auth_info).unwrap();
            assert_eq!(left["as"], "someone");
            for secret in ["token", "tokenFile", "username", "password", "exec"] {
                assert_eq!(
                    left.get(secret).is_some_and(|v| !v.is_null()),
                    is_safe,
                    "{left}"
                );
            }
            assert_eq!(config.auth_info.auth_provider.is_some(), is_safe);
            assert_eq!(warning.is_none(), is_safe);
            let names = "(token, tokenFile, username, password, exec, auth-provider of";
            assert!(warning.is_none_or(|warning| warning.contains(names)));
            assert_eq!(leave_out_secrets(&mut config), None, "there are none left");
        }
    }

    #[tokio::test]
    async fn the_token_of_a_file_counts_before_one_beside_it() {
        let folder = env::temp_dir().join(format!("tripod-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("token");
        let read = |token: Option<&str>| {
            let mut config = Config::new(Uri::default());
            config.auth_info.token_file = Some(path.display().to_string());
            config.auth_info.token = token.map(|token| token.to_owned().into());
            let read = read_token(&mut config);
            read.map(|()| serde_json::to_value(&config.auth_info).unwrap()["token"].clone())
        };
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(read(Some("old")).unwrap(), "new");
        assert_eq!(read(None).unwrap(), "new");
        std::fs::write(&path, "\n").unwrap();
        assert_eq!(read(Some("old")).unwrap(), "old");
        assert!(read(None).unwrap_err().to_string().contains("it is empty"));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read(Some("old")).unwrap(), "old");
        assert!(read(None).is_err());
    }

    #[tokio::test]
    async fn a_pod_needs_a_token_and_the_certificate_of_the_server_alone() {
        let folder = env::temp_dir().join(format!("tripod-pod-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let certificate = rcgen::generate_simple_self_signed(["kubernetes".to_owned()]).unwrap();
        std::fs::write(folder.join("ca.crt"), certificate.cert.pem()).unwrap();
        for (host, url) in [
            ("10.96.0.1", "https://10.96.0.1:443/"),
            ("fd00::1", "https://[fd00::1]:443/"),
        ] {
            let variables = |name: &str| match name {
                "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
                _ => Some("443".to_owned()),
            };
            let config = in_cluster(variables, &folder).await.unwrap();
            assert_eq!(config.cluster_url.to_string(), url);
            assert!(
                config
                    .root_cert
                    .is_some_and(|certificates| certificates.len() == 1)
            );
            let token = folder.join("token").display().to_string();
            assert_eq!(config.auth_info.token_file, Some(token));
        }
        let error = in_cluster(|_| None, &folder).await.unwrap_err();
        assert!(
            error.to_string().contains("KUBERNETES_SERVICE_HOST"),
            "{error}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
