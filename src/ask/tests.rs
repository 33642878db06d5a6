//! The exit status of the commands, by the answers of a server in the proxy's place.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};

use super::{ask, connection::Connection};
use crate::{
    cli::{self, Ask, Common, Format, Output, Probe},
    status_api::{STATUS_PATH, Status},
};

const DIFFERENCE: &str = r#"{"found": "missing", "object": "set a"}"#;

/// Returns an answer to `tripod diff`.
fn diff(families: &str, node: &str) -> String {
    let total = usize::from(!node.is_empty());
    format!(
        r#"{{"apiVersion": "tripod.proxy/v1", "kind": "Diff", "mode": "userspace",
            "families": [{families}], "node": {{"total": {total}, "items": [{node}]}}}}"#
    )
}

fn family(error: &str, total: usize) -> String {
    format!(
        r#"{{"family": "IPv4", "error": {error}, "differences": {{"total": {total}, "items": []}}}}"#
    )
}

/// Runs `tripod diff` against a server that answers once, with this status and body. Returns its
/// exit status.
async fn exits_with(status: &str, body: &str) -> ExitCode {
    asked(Ask::Diff, status, body).await
}

/// Runs `tripod status` with that probe in the same way.
async fn probed(probe: Probe, body: &str) -> ExitCode {
    let question = |common| {
        Ask::Status(cli::Status {
            common,
            probe: Some(probe),
        })
    };
    asked(question, "200 OK", body).await
}

async fn asked(question: impl FnOnce(Common) -> Ask, status: &str, body: &str) -> ExitCode {
    let socket = socket_path();
    let listener = UnixListener::bind(&socket).unwrap();
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    let code = ask(&question(Common {
        format: Format {
            output: Output::Json,
        },
        socket: socket.clone(),
    }))
    .await;
    serving.await.unwrap();
    std::fs::remove_file(socket).unwrap();
    code
}

/// Returns a socket path that no other test has.
fn socket_path() -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let name = format!("tripod-ask-{}-{number}.sock", std::process::id());
    let socket = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&socket);
    socket
}

/// The queue of connections is full while the proxy is stopped: it must not be started again then.
#[tokio::test]
async fn a_proxy_that_accepts_nothing_runs() {
    let path = socket_path();
    let connection = Connection::new(&path);
    assert!(!connection.is_listened_on().await);
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
    listener.listen(0).unwrap();
    let _waits = UnixStream::connect(&path).await.unwrap();
    let answer = connection.get::<Status>(STATUS_PATH).await;
    let why = answer.expect_err("nothing is accepted").why;
    assert!(
        why.contains("a Tripod runs there, but accepts no connection"),
        "{why}"
    );
    assert!(connection.is_listened_on().await);
    std::fs::remove_file(path).unwrap();
}

/// `tripod trace` requests a shorter limit than the usual one.
#[tokio::test]
async fn an_answer_is_waited_for_no_longer_than_asked() {
    let path = socket_path();
    let _listener = UnixListener::bind(&path).unwrap();
    let connection = Connection::new(&path).within(Duration::from_millis(100));
    let answer = connection.get::<Status>(STATUS_PATH).await;
    let why = answer.expect_err("nothing answers").why;
    assert!(why.ends_with("no answer within 0.1 s"), "{why}");
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn who_could_not_be_asked_is_no_difference() {
    let error = |why: &str| format!(r#"{{"error": "{why}"}}"#);
    let same = family("null", 0);
    for (status, body, expected) in [
        ("200 OK", diff(&same, ""), 0),
        ("200 OK", diff(&family("null", 1), ""), 1),
        ("200 OK", diff(&same, DIFFERENCE), 1),
        ("200 OK", diff(&family(r#""a lock""#, 0), ""), 2),
        // Another process knows the desired state.
        ("200 OK", diff("", ""), 2),
        ("400 Bad Request", error("to is missing"), 1),
        ("404 Not Found", error("no such Service"), 1),
        ("429 Too Many Requests", error("try again"), 2),
        ("503 Service Unavailable", error("it is ending"), 2),
    ] {
        let found = exits_with(status, &body).await;
        assert_eq!(found, ExitCode::from(expected), "{status} {body}");
    }
}

/// Returns an answer to `tripod status` of a proxy whose IPv6 has this `last` and `overdue`.
fn status(last: &str, overdue: bool) -> String {
    let none = r#"{"total": 0, "items": []}"#;
    let sync = |family: &str, last: &str, overdue: bool| {
        format!(
            r#"{{"family": "{family}", "last": {last}, "underWaySince": null, "trouble": null,
                "overdue": {overdue}, "draining": 0}}"#
        )
    };
    let syncs = [sync("IPv4", SYNCED, false), sync("IPv6", last, overdue)].join(", ");
    format!(
        r#"{{"apiVersion": "tripod.proxy/v1", "kind": "Status", "version": "1", "pid": 1,
            "node": "n", "started": "2026-11-20T12:00:00Z", "healthy": false,
            "problems": ["another one"],
            "mode": {{"name": "nftables", "passedOver": [], "lost": []}},
            "objects": {{"source": "s", "kinds": []}}, "syncs": [{syncs}],
            "counts": {{"services": 0, "servicePorts": 0, "endpoints": 0, "endpointsInUse": 0}},
            "failing": {none}, "unsupported": {none}, "conflicts": {none}}}"#
    )
}

const SYNCED: &str = r#"{"ended": "2026-11-20T12:00:00Z", "seconds": 1, "full": true}"#;

/// One Service that fails does not keep a pod from being ready.
#[tokio::test]
async fn a_pod_is_ready_when_families_are_in_force_and_lives_while_none_is_overdue() {
    for (last, overdue, live, ready) in [
        (SYNCED, false, 0, 0),
        ("null", false, 0, 1),
        (SYNCED, true, 1, 1),
        // The node may not be able to serve the family.
        ("null", true, 0, 0),
    ] {
        for (probe, expected) in [(Probe::Liveness, live), (Probe::Readiness, ready)] {
            let answer = status(last, overdue);
            let code = probed(probe, &answer).await;
            assert_eq!(code, ExitCode::from(expected), "{probe:?} {answer}");
        }
    }
    let none = status("null", true).replace(SYNCED, "null");
    let both = none.replace(r#""overdue": false"#, r#""overdue": true"#);
    // A family that is not served, or has no Services, serves nothing.
    let with = |field: &str| {
        let first = r#""draining": 0"#;
        status("null", true).replacen(first, &format!("{first}, {field}"), 1)
    };
    let [unserved, empty] = [r#""notServed": "no""#, r#""empty": true"#].map(with);
    let code = probed(Probe::Readiness, &empty).await;
    assert_eq!(code, ExitCode::from(1), "{empty}");
    let code = probed(Probe::Liveness, &empty).await;
    assert_eq!(code, ExitCode::SUCCESS, "as for /livez: {empty}");
    for answer in [none, both, unserved] {
        let code = probed(Probe::Liveness, &answer).await;
        assert_eq!(code, ExitCode::from(1), "nothing is served: {answer}");
    }
}
