//! Credentials from a program.

use std::{fs, time::Duration};

use super::{
    lists::shop, objects::service, recorder::Recorder, tcp_server::TcpServer, tls::Authority,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

const SOON: Duration = Duration::from_secs(20);

/// The answer with a token that expires after that many seconds.
fn answer(token: &str, seconds: i64) -> String {
    let expires = Timestamp::now() + SignedDuration::from_secs(seconds);
    format!(
        r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{{"token":"{token}","expirationTimestamp":"{expires}"}}}}"#
    )
}

/// A server whose client has a plugin: it says what the file `answer` has, and
/// hangs where there is none.
async fn with_plugin(name: &str, token: &str, seconds: i64) -> TcpServer {
    let tcp = TcpServer::open(shop(), name, &Authority::new(), false).await;
    tcp.write("answer", &answer(token, seconds));
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
    tcp
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

/// Waits until requests have had the plugin run a second time.
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
    // To be renewed after three seconds.
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
    // It is not run by each who waits.
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
