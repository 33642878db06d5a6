//! The proxy through which the API server is reached: that of the kubeconfig
//! (`proxy-url`), or the one in the environment, by the rules of Go's
//! `golang.org/x/net/http/httpproxy`, which client-go follows.

use std::{env, net::IpAddr};

use http::{HeaderValue, Uri, uri::Scheme};
use ipnet::IpNet;
use percent_encoding::percent_decode_str;

/// A proxy between this program and the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proxy {
    pub(super) kind: ProxyKind,
    /// Its URL, with scheme and port, without user.
    pub(super) url: Uri,
    /// User and password; `None` if the proxy needs no credentials.
    pub(super) user: Option<(String, String)>,
}

/// The protocol spoken with a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyKind {
    /// HTTP, over TCP.
    Http,
    /// HTTP, over TLS.
    Https,
    /// SOCKS 5 (RFC 1928); the proxy resolves names.
    Socks5,
}

/// Why a proxy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// It is not a URL.
    #[error("{origin} is {url:?}, which is not a URL such as http://192.0.2.1:3128")]
    Url {
        /// Where it was found.
        origin: String,
        /// The value found there.
        url: String,
    },
    /// Its scheme is not supported.
    #[error("{origin}: a proxy of scheme {scheme:?} is not supported, only http, https and socks5")]
    Scheme {
        /// Where it was found.
        origin: String,
        /// The scheme of the URL.
        scheme: String,
    },
    /// `HTTP_PROXY` may have been set by the sender of a request.
    #[error("HTTP_PROXY is not used where REQUEST_METHOD is set, as in a CGI program")]
    Cgi,
}

/// The environment variables about proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Environment {
    http: String,
    https: String,
    none: String,
    cgi: bool,
}

impl Environment {
    pub(super) fn of_this_process() -> Environment {
        let any = |names: [&str; 2]| {
            let mut values = names.into_iter().filter_map(|name| env::var(name).ok());
            values.find(|value| !value.is_empty()).unwrap_or_default()
        };
        Environment {
            http: any(["HTTP_PROXY", "http_proxy"]),
            https: any(["HTTPS_PROXY", "https_proxy"]),
            none: any(["NO_PROXY", "no_proxy"]),
            cgi: env::var_os("REQUEST_METHOD").is_some_and(|method| !method.is_empty()),
        }
    }

    /// Returns the proxy through which `server` is reached; `None` if it is reached directly.
    ///
    /// # Errors
    /// When the proxy for it cannot be used.
    pub(super) fn proxy_for(&self, server: &Uri) -> Result<Option<Proxy>, ProxyError> {
        let secure = server.scheme() == Some(&Scheme::HTTPS);
        let (origin, url) = if secure {
            ("HTTPS_PROXY", &self.https)
        } else {
            ("HTTP_PROXY", &self.http)
        };
        if url.is_empty() {
            return Ok(None);
        }
        if self.cgi && !secure {
            return Err(ProxyError::Cgi);
        }
        let port = server.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let host = server.host().unwrap_or_default();
        if self.passes_by(host, port) {
            Ok(None)
        } else {
            Proxy::parse(origin, url).map(Some)
        }
    }

    /// Returns whether NO_PROXY exempts the server, so that it is reached without a proxy.
    fn passes_by(&self, host: &str, port: u16) -> bool {
        let host = bare(host).to_ascii_lowercase();
        let ip: Option<IpAddr> = host.parse().ok();
        if host == "localhost" || ip.is_some_and(|ip| ip.to_canonical().is_loopback()) {
            return true;
        }
        let entries = self.none.split(',').map(str::trim);
        let mut entries = entries.filter(|entry| !entry.is_empty());
        entries.any(|entry| matches(&entry.to_ascii_lowercase(), &host, ip, port))
    }
}

/// Returns whether an entry of NO_PROXY applies to `host`, which is `ip` if it
/// is an address.
fn matches(entry: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return ip.is_some_and(|ip| network.contains(&ip.to_canonical()));
    }
    let (name, of_port) = split_port(entry);
    if of_port.is_some_and(|of| of != port.to_string()) {
        return false;
    }
    if let Ok(address) = bare(name).parse::<IpAddr>() {
        return ip.is_some_and(|ip| ip.to_canonical() == address.to_canonical());
    }
    // A name never matches an address.
    if ip.is_some() || name.is_empty() {
        return false;
    }
    let name = name
        .strip_prefix('*')
        .filter(|rest| rest.starts_with('.'))
        .unwrap_or(name);
    if name.starts_with('.') {
        host.ends_with(name)
    } else {
        host == name
            || host
                .strip_suffix(name)
                .is_some_and(|rest| rest.ends_with('.'))
    }
}

/// Returns an IPv6 address without its brackets.
fn bare(host: &str) -> &str {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host)
}

/// Splits `host:port`; an IPv6 address with a port must be in brackets.
fn split_port(entry: &str) -> (&str, Option<&str>) {
    match entry.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (entry, None),
    }
}

impl Proxy {
    /// Reads a proxy's URL, which was found at `origin`; without a scheme it means HTTP.
    ///
    /// # Errors
    /// When it is not a URL, or its scheme is not supported.
    pub(super) fn parse(origin: &str, text: &str) -> Result<Proxy, ProxyError> {
        let wrong = || ProxyError::Url {
            origin: origin.to_owned(),
            url: without_password(text),
        };
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let (kind, scheme, port) = match &*scheme.to_ascii_lowercase() {
            "http" => (ProxyKind::Http, "http", 80),
            "https" => (ProxyKind::Https, "https", 443),
            "socks5" | "socks5h" => (ProxyKind::Socks5, "socks5", 1080),
            other => {
                return Err(ProxyError::Scheme {
                    origin: origin.to_owned(),
                    scheme: other.to_owned(),
                });
            }
        };
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        let user = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
            (decoded(name), decoded(password))
        });
        let url: Uri = format!("{scheme}://{place}").parse().map_err(|_| wrong())?;
        if url.host().is_none_or(str::is_empty) {
            return Err(wrong());
        }
        let url = match url.port() {
            Some(_) => url,
            None => format!("{scheme}://{place}:{port}")
                .parse()
                .map_err(|_| wrong())?,
        };
        Ok(Proxy { kind, url, user })
    }

    /// Builds the value of `Proxy-Authorization` for an HTTP proxy; `None` if the proxy has no
    /// credentials, or they cannot be sent in a header.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let (name, password) = self.user.as_ref()?;
        let encoded = data_encoding::BASE64.encode(format!("{name}:{password}").as_bytes());
        let mut value = HeaderValue::try_from(format!("Basic {encoded}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// Shows the proxy in messages, without credentials.
fn without_password(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((_, place)) => format!("...@{place}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(http: &str, https: &str, none: &str) -> Environment {
        Environment {
            http: http.to_owned(),
            https: https.to_owned(),
            none: none.to_owned(),
            cgi: false,
        }
    }

    /// Returns the proxy's URL, or says that there is none, or describes the error.
    fn found(environment: &Environment, server: &str) -> String {
        match environment.proxy_for(&server.parse().unwrap()) {
            Ok(Some(proxy)) => proxy.url.to_string(),
            Ok(None) => "none".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn each_scheme_has_its_proxy() {
        let both = environment("plain:3128", "https://secure", "");
        assert_eq!(
            found(&both, "https://api.example:6443"),
            "https://secure:443/"
        );
        assert_eq!(found(&both, "http://api.example"), "http://plain:3128/");
        assert_eq!(
            found(&environment("plain:1", "", ""), "https://api"),
            "none"
        );
        let cgi = Environment { cgi: true, ..both };
        assert!(found(&cgi, "http://api.example").contains("REQUEST_METHOD"));
        assert_eq!(found(&cgi, "https://api.example"), "https://secure:443/");
    }

    /// Each case: NO_PROXY, a server, and whether it is reached without a proxy.
    #[test]
    fn no_proxy_names_servers_as_in_go() {
        let cases = [
            ("", "https://api.example", false),
            ("", "https://localhost:6443", true),
            ("", "https://127.0.0.9", true),
            ("", "https://[::1]:6443", true),
            ("*", "https://api.example", true),
            ("other, example", "https://api.example", true),
            ("EXAMPLE", "https://api.example", true),
            ("api.example", "https://api.example", true),
            ("pi.example", "https://api.example", false),
            (".api.example", "https://api.example", false),
            (".example", "https://api.example", true),
            ("*.example", "https://api.example", true),
            ("*.example", "https://example", false),
            ("example:443", "https://api.example", true),
            ("example:6443", "https://api.example", false),
            ("example:6443", "https://api.example:6443", true),
            (":443", "https://api.example", false),
            ("10.96.0.0/12", "https://10.96.0.1:443", true),
            ("10.96.0.0/12", "https://10.112.0.1", false),
            ("10.96.0.1", "https://10.96.0.1", true),
            ("10.96.0.1:6443", "https://10.96.0.1", false),
            ("96.0.1", "https://10.96.0.1", false),
            ("fd00::/64", "https://[fd00::1]", true),
            ("fd00::1", "https://[fd00::1]:6443", true),
            ("[fd00::1]:6443", "https://[fd00::1]:6443", true),
            ("[fd00::1]:6443", "https://[fd00::1]", false),
            ("fd00::2", "https://[fd00::1]", false),
        ];
        for (none, server, expected) in cases {
            let environment = environment("", "proxy:3128", none);
            let passes_by = found(&environment, server) == "none";
            assert_eq!(passes_by, expected, "{none:?}: {server}");
        }
    }

    #[test]
    fn a_proxys_url_is_taken_apart() {
        let parse = |text: &str| Proxy::parse("HTTPS_PROXY", text);
        let proxy = parse("http://us%65r:p%40s%:s@proxy.example/ignored").unwrap();
        assert_eq!(proxy.kind, ProxyKind::Http);
        assert_eq!(proxy.url, "http://proxy.example:80");
        assert_eq!(proxy.user, Some(("user".into(), "p@s%:s".into())));
        // base64 of `user:p@s%:s`
        let expected = "Basic dXNlcjpwQHMlOnM=";
        assert_eq!(proxy.authorization().unwrap(), expected);
        let socks = parse("socks5://[2001:db8::1]").unwrap();
        assert_eq!(
            (socks.kind, socks.authorization()),
            (ProxyKind::Socks5, None)
        );
        assert_eq!(socks.url, "socks5://[2001:db8::1]:1080");
        for (text, expected) in [
            (
                "socks4://proxy",
                "HTTPS_PROXY: a proxy of scheme \"socks4\"",
            ),
            ("ftp://proxy", "\"ftp\""),
            ("http://", "HTTPS_PROXY is \"http://\""),
            ("http://a:secret@b c", "...@b c"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
