//! The program and an API server, where the program's environment matters.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use super::{
    cluster::SERVICES, forward_proxy::ForwardProxy, lists::shop, objects::service, server::Server,
    tcp_server::TcpServer, tls::Authority,
};
use crate::lab::{Tripod, eventually, run, tripod_binary};

const SOON: Duration = Duration::from_secs(30);
/// Not a loopback address, for which no proxy is used.
const SERVER: &str = "192.0.2.1";
const PROXY: &str = "192.0.2.2";

fn ip(line: &str) {
    let done = Command::new("ip").args(line.split(' ')).status();
    assert!(done.expect("ip(8)").success(), "{line}");
}

/// The program with that kubeconfig, in the sandbox itself.
pub fn tripod(tcp: &TcpServer, variables: &[(&str, &str)]) -> Tripod {
    let mut command = command(tcp);
    command.envs(variables.iter().copied());
    Tripod::spawn(command)
}

/// The command that starts it.
pub fn command(tcp: &TcpServer) -> Command {
    let mut command = Command::new(tripod_binary());
    command
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .arg("--kubeconfig")
        .arg(tcp.file("kubeconfig"))
        .args(["--proxy-mode=userspace", "--userspace-capture=local"])
        .args(["--hostname-override=node-a", "--conntrack-max-per-core=0"])
        .args(["--kube-api-qps=1000", "--v=2"]);
    command
}

pub fn in_sandbox(body: impl AsyncFnOnce()) {
    run(|| {
        for line in [
            "link set lo up",
            "addr add 192.0.2.1/32 dev lo",
            "addr add 192.0.2.2/32 dev lo",
        ] {
            ip(line);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(body());
    });
}

/// Fetches the body of an answer, in the sandbox itself. HTTP/1.0, so that it comes in one piece.
pub fn fetch(from: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(from)?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    Ok(body.unwrap_or_default().to_owned())
}

fn watches_of_services(server: &Server) -> usize {
    let script = server.script();
    let calls = script.calls.iter();
    calls.filter(|(_, _, path)| path == SERVICES).count()
}

/// The environment names a proxy for the server. A proxy that keeps its connections but transfers
/// nothing any more is noticed by HTTP/2's pings, while keep-alive of TCP succeeds.
#[test]
fn the_environments_proxy_is_used_and_noticed_when_it_stalls() {
    in_sandbox(async || {
        let authority = Authority::new();
        let tcp = TcpServer::open_at(SERVER, shop(), "program", &authority, false).await;
        tcp.configure(
            &format!(
                "server: \"https://{}\", certificate-authority: ca.crt",
                tcp.address
            ),
            "tokenFile: token",
        );
        let proxy = ForwardProxy::open(PROXY, tcp.address, tcp.server.clone()).await;
        let url = format!("http://user:secret@{}", proxy.address);
        let tripod = tripod(
            &tcp,
            &[
                ("HTTPS_PROXY", &url),
                ("NO_PROXY", "198.51.100.0/24"),
                ("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1"),
                ("HTTP2_PING_TIMEOUT_SECONDS", "1"),
            ],
        );
        eventually(
            "Services are asked for",
            SOON,
            || match watches_of_services(&tcp.server) {
                0 => Err(tripod.log()),
                _ => Ok(()),
            },
        );
        let requests = proxy.requests();
        let expected = format!("CONNECT {} ", tcp.address);
        assert!(
            !requests.is_empty() && requests.iter().all(|head| head.starts_with(&expected)),
            "{requests:?}"
        );
        assert!(
            requests[0]
                .to_lowercase()
                .contains("proxy-authorization: basic ")
        );

        let before = watches_of_services(&tcp.server);
        proxy.stall();
        tcp.server.change(|cluster| cluster.put(service("new", 3)));
        eventually(
            "the tunnel that stalls is given up",
            SOON,
            || match watches_of_services(&tcp.server) {
                n if n > before => Ok(()),
                n => Err(format!("{n} requests")),
            },
        );
    });
}

#[test]
fn a_certificate_that_is_not_verified_is_logged_once() {
    in_sandbox(async || {
        let authority = Authority::new();
        let tcp = TcpServer::open(shop(), "insecure", &authority, false).await;
        tcp.configure(
            &format!(
                "server: \"https://{}\", insecure-skip-tls-verify: true",
                tcp.address
            ),
            "tokenFile: token",
        );
        let tripod = tripod(&tcp, &[]);
        for _ in 0..3 {
            let before = watches_of_services(&tcp.server);
            eventually(
                "Services are asked for again",
                SOON,
                || match watches_of_services(&tcp.server) {
                    n if n > before => Ok(()),
                    _ => Err(tripod.log()),
                },
            );
            // All connections break, and are made again.
            tcp.server.down();
            tcp.server.up();
        }
        tripod.logs_once(&["certificate", "not verified"]);
        assert_eq!(tripod.logged(&["bypassed"]), 0);
    });
}

/// Files of credentials in separate folders, replaced by others, are read.
#[test]
fn credentials_are_read_where_only_files_of_the_settings_are() {
    in_sandbox(async || {
        let authority = Authority::new();
        let tcp = TcpServer::open_at(SERVER, shop(), "confined", &authority, false).await;
        let elsewhere = tcp.file("credentials");
        std::fs::create_dir(&elsewhere).expect("a folder");
        let (token, ca) = (elsewhere.join("token"), elsewhere.join("ca.crt"));
        std::fs::copy(tcp.file("ca.crt"), &ca).expect("a file");
        let write = |text: &str| {
            let beside = elsewhere.join("beside");
            std::fs::write(&beside, text).expect("a file");
            std::fs::rename(beside, &token).expect("a file");
        };
        write("first");
        tcp.configure(
            &format!(
                "server: \"https://{}\", certificate-authority: {}",
                tcp.address,
                ca.display()
            ),
            &format!("tokenFile: {}", token.display()),
        );
        tcp.server.script().token = Some("first".to_owned());
        let mut command = command(&tcp);
        command.arg("--confine=files");
        let tripod = Tripod::spawn(command);
        let asked_again = |before| {
            eventually(
                "Services are asked for",
                SOON,
                || match watches_of_services(&tcp.server) {
                    n if n > before => Ok(()),
                    _ => Err(tripod.log()),
                },
            );
        };
        asked_again(0);
        tcp.server.script().token = Some("second".to_owned());
        let before = watches_of_services(&tcp.server);
        write("second");
        tcp.server.down();
        tcp.server.up();
        asked_again(before);
        comes_to_say(0, &["is healthy"], &["not followed"]);
    });
}

/// Waits until `tripod status`, in the sandbox itself, exits with `code` and prints all of
/// `words` and none of `absent`. Returns the output.
fn comes_to_say(code: i32, words: &[&str], absent: &[&str]) -> String {
    let what = format!("tripod status exits with {code}");
    eventually(&what, SOON, || {
        let output = Command::new(tripod_binary()).arg("status").output();
        let output = output.expect("running tripod");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let says_all = words.iter().all(|words| text.contains(words));
        let says_other = absent.iter().any(|words| text.contains(words));
        if output.status.code() == Some(code) && says_all && !says_other {
            Ok(text)
        } else {
            Err(format!("{text}{output:?}"))
        }
    })
}

/// Rules of an earlier process may still forward connections: an answer without any Service would
/// be wrong.
#[test]
fn what_follows_from_objects_is_not_answered_before_they_are_known() {
    in_sandbox(async || {
        let tcp = TcpServer::open(shop(), "unknown", &Authority::new(), false).await;
        tcp.server.down();
        let _tripod = tripod(&tcp, &[]);
        let no_sync = "no sync yet: only what an earlier process left in the kernel is served";
        let known = "serving        not known yet";
        let waits = "Services cannot be read: ";
        comes_to_say(
            1,
            &["is not healthy", no_sync, known, waits],
            &["nothing is served"],
        );
        let explain = ["explain", "--to=10.96.0.1:80", "--desired-only"];
        for arguments in [
            &["services"][..],
            &["services", "default/front"],
            &["services", "--watch"],
            &explain,
            &["diff"],
        ] {
            let begun = Instant::now();
            let output = Command::new(tripod_binary()).args(arguments).output();
            let output = output.expect("running tripod");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(
                output.status.code(),
                Some(2),
                "{arguments:?}: {text}{output:?}"
            );
            let why = "error: objects are not known yet: ";
            assert!(
                text.starts_with(why) && text.contains(waits),
                "{arguments:?}: {text}"
            );
            assert!(begun.elapsed() < Duration::from_secs(10), "{arguments:?}");
        }
        tcp.server.up();
        comes_to_say(0, &["is healthy"], &["not known"]);
        let output = Command::new(tripod_binary()).args(explain).output();
        assert!(output.expect("running tripod").status.success());
    });
}

/// The last known state stays applied, and the status says how old it is.
#[test]
fn a_server_that_is_away_makes_the_proxy_unhealthy_and_says_since_when() {
    in_sandbox(async || {
        let tcp = TcpServer::open(shop(), "away", &Authority::new(), false).await;
        let _tripod = tripod(&tcp, &[]);
        let serving = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("serving"));
            line.map(str::to_owned)
        };
        let before = comes_to_say(0, &["is healthy"], &["not followed"]);
        tcp.server.down();
        let away = comes_to_say(
            1,
            &[
                "is not healthy",
                "Services cannot be followed, the last known state stays applied: ",
                "Services: known; not followed, since ",
                "EndpointSlices: known; not followed, since ",
            ],
            &[],
        );
        assert_eq!(serving(&away), serving(&before));
        tcp.server.up();
        // The node's own object may be followed a moment later than the others.
        comes_to_say(0, &["is healthy"], &["not followed"]);
    });
}

/// A process that may no longer start programs ends when its kubeconfig names one, and the next one
/// runs it.
#[test]
fn a_kubeconfig_that_comes_to_name_a_program_is_used_by_the_next_process() {
    in_sandbox(async || {
        let authority = Authority::new();
        let tcp = TcpServer::open_at(SERVER, shop(), "confined", &authority, false).await;
        let cluster = format!(
            "server: \"https://{}\", certificate-authority: ca.crt",
            tcp.address
        );
        tcp.configure(&cluster, "token: any");
        let start = || {
            let mut command = command(&tcp);
            command.args(["--confine=calls", "--userspace-drain-timeout=1s"]);
            Tripod::spawn(command)
        };
        let mut confined = start();
        eventually("it serves", SOON, || match confined.logged(&["synced"]) {
            0 => Err(confined.log()),
            _ => Ok(()),
        });
        confined.logs_once(&["programs: none can be started from now on"]);
        let answer = "{apiVersion: client.authentication.k8s.io/v1, kind: ExecCredential, \
                      status: {token: given}}";
        tcp.write("answer", answer);
        tcp.configure(
            &cluster,
            &format!(
                "exec: {{apiVersion: client.authentication.k8s.io/v1, command: cat, \
                 args: [\"{}\"], interactiveMode: Never}}",
                tcp.file("answer").display()
            ),
        );
        tcp.server.end_watches();
        let ended = confined.ended_within(SOON);
        assert!(!ended.success(), "{}", confined.log());
        confined.logs(&[
            "the kubeconfig now names a credential plugin",
            "so that the next process can run it",
        ]);
        tcp.server.script().token = Some("given".to_owned());
        let next = start();
        eventually("the next one serves", SOON, || {
            match next.logged(&["synced"]) {
                0 => Err(next.log()),
                _ => Ok(()),
            }
        });
    });
}
