//! Credentials from a program.

use std::{fs, time::Duration};

use super::{
    lists::shop,
    objects::service,
    recorder::Recorder,
    tcp_server::TcpServer,
    tls::{Authority, Identity},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use prometheus::{Registry, TextEncoder};
use serde_json::json;
use tripod::api_client::{Access, RequestMetrics};

const SOON: Duration = Duration::from_secs(20);

/// The answer with a token that expires after that many seconds.
fn answer(token: &str, seconds: i64) -> String {
    let expires = Timestamp::now() + SignedDuration::from_secs(seconds);
    format!(
        r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{{"token":"{token}","expirationTimestamp":"{expires}"}}}}"#
    )
}

/// A server whose client has a plugin: it prints the file `answer`, and hangs if there is none.
async fn with_plugin(name: &str, token: &str, seconds: i64) -> TcpServer {
    let tcp = TcpServer::open(shop(), name, &Authority::new(), false).await;
    tcp.write("answer", &answer(token, seconds));
    point_to_plugin(&tcp);
    tcp
}

fn point_to_plugin(tcp: &TcpServer) {
    let (file, runs) = (tcp.file("answer"), tcp.file("runs"));
    let script = format!(
        "echo run >> {}; exec cat {} || exec sleep 1000",
        runs.display(),
        file.display()
    );
    let script = script.replace("exec cat", "cat");
    tcp.write("plugin", &script);
    tcp.configure(
        &format!(
            "server: \"https://{}\", certificate-authority: ca.crt",
            tcp.address
        ),
        &format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, \
             args: [\"{}\"], interactiveMode: Never}}",
            tcp.file("plugin").display()
        ),
    );
}

async fn recorder(tcp: &TcpServer) -> Recorder {
    let mut recorder = Recorder::connect(tcp.connection()).await;
    assert_eq!(recorder.next(SOON).await, Some(5));
    recorder
}

fn runs(tcp: &TcpServer) -> usize {
    let runs = fs::read_to_string(tcp.file("runs")).unwrap_or_default();
    runs.lines().count()
}

/// Waits until requests have made the plugin run a second time.
async fn is_run_again(tcp: &TcpServer) {
    let deadline = tokio::time::Instant::now() + SOON;
    while runs(tcp) < 2 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "it is not run again"
        );
        tcp.server.end_watches();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn while_a_plugin_hangs_requests_go_on_with_what_it_gave_before() {
    // Due for renewal after three seconds.
    let tcp = with_plugin("hangs", "first", 4).await;
    tcp.server.script().token = Some("first".to_owned());
    let mut recorder = recorder(&tcp).await;
    fs::remove_file(tcp.file("answer")).unwrap();
    is_run_again(&tcp).await;
    for last in 3..6 {
        tcp.server.end_watches();
        tcp.server
            .change(|cluster| cluster.put(service(&format!("new-{last}"), last)));
        recorder.catches_up(&tcp.server, SOON).await;
    }
    // Waiting requests share one run.
    assert_eq!(runs(&tcp), 2);
}

#[tokio::test]
async fn credentials_are_renewed_before_they_expire() {
    let tcp = with_plugin("renewed", "first", 4).await;
    tcp.server.script().token = Some("first".to_owned());
    let mut recorder = recorder(&tcp).await;
    tcp.write("answer", &answer("second", 3600));
    is_run_again(&tcp).await;
    tcp.server.script().token = Some("second".to_owned());
    tcp.server.change(|cluster| cluster.put(service("new", 3)));
    tcp.server.end_watches();
    recorder.catches_up(&tcp.server, SOON).await;
}

/// The answer with a client certificate that expires after that many seconds.
fn certificate(identity: &Identity, seconds: i64) -> String {
    let expires = Timestamp::now() + SignedDuration::from_secs(seconds);
    let answer = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": {
            "clientCertificateData": identity.certificate,
            "clientKeyData": identity.key,
            "expirationTimestamp": expires.to_string(),
        },
    });
    answer.to_string()
}

#[tokio::test]
async fn certificates_of_a_plugin_and_transports_are_measured() {
    let authority = Authority::new();
    let tcp = TcpServer::open(shop(), "certificates", &authority, true).await;
    let [first, second] = ["first", "second"].map(|name| authority.identity(name));
    tcp.write("answer", &certificate(&first, 4));
    point_to_plugin(&tcp);
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry).expect("metrics");
    let value = |series: &str| {
        let text = TextEncoder::new().encode_to_string(&registry.gather());
        let text = text.expect("metrics are text");
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(&format!("rest_client_{series} ")));
        value.map(|number| number.parse::<f64>().expect("a number"))
    };
    assert_eq!(value("exec_plugin_ttl_seconds"), Some(f64::INFINITY));
    let access = Access::open(tcp.connection(), metrics).await;
    let mut recorder = Recorder::start(access.expect("it can be used"));
    assert_eq!(recorder.next(SOON).await, Some(5));
    let left = value("exec_plugin_ttl_seconds");
    assert!(
        left.is_some_and(|left| left > 1e6 && left.is_finite()),
        "{left:?}"
    );
    let made = "transport_create_calls_total{result=\"miss\"}";
    assert_eq!(value(made), Some(1.0));
    tcp.write("answer", &certificate(&second, 3600));
    is_run_again(&tcp).await;
    tcp.server.change(|cluster| cluster.put(service("new", 3)));
    tcp.server.end_watches();
    recorder.catches_up(&tcp.server, SOON).await;
    assert_eq!(value(made), Some(2.0));
    assert_eq!(value("transport_cache_entries"), Some(1.0));
    let age = "exec_plugin_certificate_rotation_age";
    assert_eq!(value(&format!("{age}_count")), Some(1.0));
    let old = value(&format!("{age}_sum"));
    assert!(old.is_some_and(|old| old > 1e6), "{old:?}");
}
