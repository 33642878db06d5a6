//! The API: its access rules, and its unix socket.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream,
    },
    time::Duration,
};

use serde_json::Value;

use super::{SOON, started, status, tripod};
use crate::lab::{Capture, Lab, Service, Tripod, eventually, get, run, tcp, tripod_binary};

const SOCKET: &str = "/run/tripod/tripod.sock";

/// Sends `request` to the unix socket. Returns the answer.
fn exchange(request: &str) -> String {
    let mut stream = UnixStream::connect(SOCKET).expect("the socket");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a time-out");
    // The server need not read all of it.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("text")
}

fn ask(method: &str, path: &str) -> String {
    exchange(&format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

/// The status of an answer, and its body.
fn parts(answer: &str) -> (u16, &str) {
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (status.unwrap_or_default(), body)
}

/// Method and path of a request, the status of its answer, and words in that.
const ANSWERS: [(&str, &str, u16, &str); 20] = [
    (
        "GET",
        "/v1/status",
        200,
        r#""apiVersion":"tripod.proxy/v1""#,
    ),
    ("GET", "/v1/health", 200, r#""kind":"Health","syncs":[{"#),
    ("GET", "/v1/syncs", 200, r#""full":true,"servicePorts":"#),
    ("GET", "/v1/services", 200, r#""continue":null"#),
    ("GET", "/v1/services/default", 200, r#""name":"web""#),
    ("GET", "/v1/services/default/web", 200, r#""name":"web""#),
    ("GET", "/v1/services/elsewhere", 200, r#""items":[]"#),
    (
        "GET",
        "/v1/services?continue=default/web/udp/UDP/IPv6",
        200,
        r#""items":[]"#,
    ),
    (
        "GET",
        "/v1/services/default/none",
        404,
        "no Service default/none",
    ),
    ("GET", "/v1/services/a/b/c", 400, "a namespace and a name"),
    (
        "GET",
        "/v1/services?limit=1",
        400,
        "only parameter is continue",
    ),
    (
        "GET",
        "/v1/services?continue=a/b",
        400,
        "the value of an answer",
    ),
    (
        "GET",
        "/v1/dials?servicePort=default/web:tcp&protocol=udp&after=0",
        200,
        r#""items":[],"next":0"#,
    ),
    ("GET", "/v1/dials", 400, "servicePort=NAMESPACE/NAME:PORT"),
    ("GET", "/v1/dials?after=x", 400, "next of an earlier answer"),
    ("GET", "/v1/servicesx", 404, "there are /v1/status"),
    ("GET", "/", 404, "there are /v1/status"),
    ("GET", "/metrics", 404, "there are /v1/status"),
    ("POST", "/v1/status", 405, "only GET"),
    ("DELETE", "/v1/services/default/web", 405, "only GET"),
];

#[test]
fn it_answers_what_may_be_asked_and_refuses_the_rest() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1));
        let _running = started(lab, &[]);
        for (method, path, status, words) in ANSWERS {
            let answer = ask(method, path);
            let (code, body) = parts(&answer);
            assert_eq!(code, status, "{method} {path}: {answer}");
            assert!(body.contains(words), "{method} {path}: {answer}");
            if status != 405 {
                serde_json::from_str::<Value>(body)
                    .unwrap_or_else(|error| panic!("{method} {path}: {error}: {answer}"));
            }
        }
        let long = ask("GET", &format!("/v1/status?{}", "x".repeat(100_000)));
        assert_eq!(parts(&long).0, 431, "{long}");
    });
}

/// At the metrics address processes of the node may ask, and no others.
#[test]
fn others_than_the_node_are_refused() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1));
        let mut command = lab.node.command(tripod_binary());
        command
            .args(["--proxy-mode=userspace", "--hostname-override=node"])
            .args(["--metrics-bind-address=0.0.0.0:10250", "--manifests"])
            .arg(lab.manifests());
        let _running = Tripod::start_on(&lab.node, command);
        let here = ([127, 0, 0, 1], 10250).into();
        let node = (lab.node.addresses[0], 10250).into();
        let explain = "/v1/explain?to=10.96.0.1:80";
        let paths = [
            "/v1/status",
            "/v1/services",
            "/v1/health",
            "/v1/syncs",
            "/v1/diff",
            explain,
            "/",
        ];
        for path in paths {
            let own = get(&lab.node, here, path).expect("an answer");
            assert!(own.starts_with("HTTP/1.1 200"), "{own}");
            let other = get(&lab.outside, node, path).expect("an answer");
            assert!(other.starts_with("HTTP/1.1 403"), "{other}");
            assert!(!other.contains("default"), "{other}");
        }
        // Another host name that resolves to a loopback address belongs to a web page, not to the
        // node.
        for (host, status) in [("localhost:10250", 200), ("example.org", 403)] {
            for path in ["/v1/status", "/"] {
                let mut stream = tcp(&lab.node, here).expect("a connection");
                write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("written");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).expect("an answer");
                assert_eq!(parts(&answer).0, status, "{host} {path}: {answer}");
            }
        }
        let mode = get(&lab.outside, node, "/proxyMode").expect("an answer");
        assert!(mode.starts_with("HTTP/1.1 200"), "{mode}");
    });
}

/// The answer to a process of this user on the node.
fn asked_by(lab: &Lab, user: u32, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n");
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/10249; printf '{request}' >&3; cat <&3");
    let mut command = lab.node.command("setpriv");
    command
        .args([&format!("--reuid={user}"), &format!("--regid={user}")])
        .args(["--clear-groups", "bash", "-c", &script]);
    let output = command.output().expect("bash");
    let answer = String::from_utf8_lossy(&output.stdout);
    let (status, body) = parts(&answer);
    (status, body.to_owned())
}

/// Reading the kernel delays syncs and takes memory.
#[test]
fn the_kernel_is_read_for_root_alone() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1));
        let _running = started(lab, &[]);
        let explain = "/v1/explain?to=10.96.0.1:80";
        let alone = &*format!("{explain}&kernel=false");
        for (user, path, status) in [
            (0, "/v1/diff", 200),
            (0, explain, 200),
            (65534, "/v1/diff", 403),
            (65534, explain, 403),
            (65534, alone, 200),
            (65534, "/v1/status", 200),
        ] {
            let (found, body) = asked_by(lab, user, path);
            assert_eq!(found, status, "{user} {path}: {body}");
            assert_eq!(
                status == 403,
                body.contains("for root and the user of Tripod")
            );
        }
    });
}

/// A client that connects again and again, with or without a request, keeps no other client out,
/// and costs a limited number of descriptors.
#[test]
fn many_idle_clients_take_few_descriptors_and_others_are_answered() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1));
        let running = started(lab, &[]);
        let before = running.descriptors();
        let mut idle = Vec::new();
        for _ in 0..1_000 {
            let mut stream = UnixStream::connect(SOCKET).expect("the socket");
            let _ = stream.write_all(b"GET /v1/status");
            idle.push(stream);
        }
        assert_eq!(parts(&ask("GET", "/v1/status")).0, 200);
        let more = running.descriptors().saturating_sub(before);
        assert!(more <= 64, "{more} descriptors");
    });
}

#[test]
fn the_socket_is_roots_and_replaced_when_its_process_has_ended() {
    run(|| {
        let lab = Lab::new(Capture::Redirect);
        let mut first = started(&lab, &[]);
        let socket = fs::metadata(SOCKET).expect("the socket");
        assert!(socket.file_type().is_socket());
        assert_eq!(socket.permissions().mode() & 0o777, 0o600);
        let folder = fs::metadata("/run/tripod").expect("its folder");
        assert_eq!(folder.permissions().mode() & 0o777, 0o755);
        assert_eq!(status(&lab)["pid"], first.pid());

        // Another process next to it does not take it.
        let second = Tripod::start_beside(&lab, "iptables", 1, &[]);
        let words = [
            "INFO",
            SOCKET,
            "another process answers queries",
            "--status-socket",
        ];
        second.logs_once(&words);
        assert_eq!(status(&lab)["pid"], first.pid());
        // When the first one has ended, in whatever way, the second one does.
        first.kill();
        eventually("the second one answers", SOON, || {
            let printed = tripod(&lab.node, &["status", "--output=json"]);
            match printed.status {
                Some(0) if printed.json()["pid"] == second.pid() => Ok(()),
                _ => Err(format!("{printed:?}")),
            }
        });
        second.logs_once(&["answering queries at", SOCKET]);
        drop(second);
        assert!(
            fs::metadata(SOCKET).is_ok(),
            "the killed one leaves it behind"
        );
        let printed = tripod(&lab.node, &["status"]);
        assert_eq!(printed.status, Some(2));
        assert!(printed.error.contains("has ended"), "{printed:?}");

        let elsewhere = ["--status-socket=/run/own/socket"];
        let _third = Tripod::start_beside(&lab, "iptables", 2, &elsewhere);
        eventually("the third one answers elsewhere", SOON, || {
            let printed = tripod(&lab.node, &["status", elsewhere[0]]);
            match printed.status {
                Some(0) => Ok(()),
                _ => Err(format!("{printed:?}")),
            }
        });
    });
}

#[test]
fn a_socket_that_cannot_be_opened_stops_nothing_else() {
    run(|| {
        let lab = Lab::new(Capture::Redirect);
        fs::write("/run/file", "").expect("a file");
        for (path, why) in [
            ("/run/file", "there is a file that is no socket"),
            ("/run/file/socket", "File exists"),
            ("/proc/tripod/socket", "No such file or directory"),
        ] {
            let running = Tripod::start_with(&lab, &[&format!("--status-socket={path}")]);
            running.logs_once(&["WARN", path, why, "Choose another path"]);
        }
        assert_eq!(fs::read_to_string("/run/file").expect("the file"), "");
        let running = Tripod::start_with(&lab, &["--status-socket="]);
        assert_eq!(running.logged(&["cannot open the unix socket"]), 0);
        assert!(fs::metadata(SOCKET).is_err(), "there is none");
    });
}
