//! Credentials from a program.

use std::{fs, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tripod::{
    api_client::{Access, Connection},
    watch::api::Settings,
};

use super::{
    lists::shop,
    objects::service,
    recorder::{NODE, Recorder},
    site::Site,
    tls::Authority,
};

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
async fn site(name: &str, token: &str, seconds: i64) -> Site {
    let site = Site::open(shop(), name, &Authority::new(), false).await;
    site.write("answer", &answer(token, seconds));
    let (file, runs) = (site.file("answer"), site.file("runs"));
    let script = format!(
        "echo run >> {}; exec cat {} || exec sleep 1000",
        runs.display(),
        file.display()
    );
    let script = script.replace("exec cat", "cat");
    site.write("plugin", &script);
    site.configure(
        &format!(
            "server: \"https://{}\", certificate-authority: ca.crt",
            site.address
        ),
        &format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, \
             args: [\"{}\"], interactiveMode: Never}}",
            site.file("plugin").display()
        ),
    );
    site
}

async fn recorder(site: &Site) -> Recorder {
    let connection = Connection {
        kubeconfig: Some(site.file("kubeconfig")),
        qps: 1000.0,
        ..Connection::default()
    };
    let settings = Settings {
        first_pause: Duration::from_millis(20),
        longest_pause: Duration::from_millis(100),
        ..Settings::for_node(NODE)
    };
    let access = Access::open(connection).await.unwrap();
    let mut recorder = Recorder::with(access, settings);
    assert_eq!(recorder.next(SOON).await, Some(5));
    recorder
}

fn runs(site: &Site) -> usize {
    let runs = fs::read_to_string(site.file("runs")).unwrap_or_default();
    runs.lines().count()
}

#[tokio::test]
async fn while_a_plugin_hangs_requests_go_on_with_what_it_gave_before() {
    // To be renewed after three seconds.
    let site = site("hangs", "first", 4).await;
    site.server.script().token = Some("first".to_owned());
    let mut recorder = recorder(&site).await;
    fs::remove_file(site.file("answer")).unwrap();
    let deadline = tokio::time::Instant::now() + SOON;
    while runs(&site) < 2 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "it is not run again"
        );
        site.server.end_watches();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for last in 3..6 {
        site.server.end_watches();
        site.server
            .change(|cluster| cluster.put(service(&format!("new-{last}"), last)));
        recorder.catches_up(&site.server, SOON).await;
    }
    // It is not run by each who waits.
    assert_eq!(runs(&site), 2);
}

#[tokio::test]
async fn credentials_are_renewed_before_they_expire() {
    let site = site("renewed", "first", 4).await;
    site.server.script().token = Some("first".to_owned());
    let mut recorder = recorder(&site).await;
    site.write("answer", &answer("second", 3600));
    let deadline = tokio::time::Instant::now() + SOON;
    while runs(&site) < 2 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "it is not run again"
        );
        site.server.end_watches();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    site.server.script().token = Some("second".to_owned());
    site.server.change(|cluster| cluster.put(service("new", 3)));
    site.server.end_watches();
    recorder.catches_up(&site.server, SOON).await;
}
