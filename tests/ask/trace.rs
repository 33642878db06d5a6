//! `tripod trace`: real packets are followed, and no traces are left behind.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use super::{SOON, started, started_in, tripod};
use crate::lab::{
    BACKEND_PORT, Capture, Lab, Service, ask, eventually,
    guest::{Profile, in_guest},
    run, tripod_binary, udp_ask,
};

/// A running trace, whose first line has been read.
struct Trace {
    process: Child,
    lines: BufReader<ChildStdout>,
    /// The facts that are known before the first packet.
    start: Value,
}

impl Trace {
    /// Traces on the node the packets `to` an address.
    fn begin(lab: &Lab, to: &str, arguments: &[&str]) -> Trace {
        let mut command: Command = lab.node.command(tripod_binary());
        command
            .args(["trace", "--output=json", "--to", to])
            .args(arguments);
        if !arguments.iter().any(|word| word.starts_with("--timeout")) {
            command.arg("--timeout=30s");
        }
        command.stdout(Stdio::piped());
        let mut process = command.spawn().expect("starting tripod");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped"));
        let start = line(&mut lines).expect("a first line");
        assert_eq!(start["kind"], "TraceStart");
        Trace {
            process,
            lines,
            start,
        }
    }

    /// Waits for its end, and returns its output of each kind.
    fn end(mut self) -> Output {
        let mut output = Output::default();
        while let Some(report) = line(&mut self.lines) {
            assert_eq!(report["apiVersion"], "tripod.proxy/v1");
            match report["kind"].as_str() {
                Some("TracedConnection") => output.connections.push(report),
                Some("TraceSummary") => output.summary = report,
                _ => output.others.push(report),
            }
        }
        let status = self.process.wait().expect("its status");
        assert!(status.success(), "{status}: {output:#?}");
        output
    }
}

fn line(lines: &mut impl BufRead) -> Option<Value> {
    let mut line = String::new();
    lines.read_line(&mut line).expect("reading");
    (!line.is_empty()).then(|| serde_json::from_str(&line).expect("JSON"))
}

#[derive(Debug, Default)]
struct Output {
    connections: Vec<Value>,
    others: Vec<Value>,
    summary: Value,
}

fn endpoint(lab: &mut Lab, name: &str, family: usize) -> String {
    let ip = lab.backend(name).host().addresses[family];
    SocketAddr::new(ip, BACKEND_PORT).to_string()
}

/// Words of each step of a connection.
fn steps(connection: &Value) -> Vec<String> {
    let steps = connection["steps"].as_array().expect("a list").iter();
    let words = steps.map(|step| {
        let text = |field: &str| step[field].as_str().unwrap_or_default().to_owned();
        text("at") + ": " + &text("verdict")
    });
    words.collect()
}

/// Checks that some step has all of `words`.
fn passes(connection: &Value, words: &[&str]) {
    let steps = steps(connection);
    let has = |step: &String| words.iter().all(|word| step.contains(word));
    assert!(steps.iter().any(has), "no {words:?} in {connection:#}");
    let ends = |step: &String| step.contains("handle 0 ");
    assert!(!steps.iter().any(ends), "ends of chains in {connection:#}");
}

/// The tables of traces.
fn tables(lab: &Lab) -> String {
    let listed = lab.node.command("nft").args(["list", "tables"]).output();
    let listed = listed.expect("running nft").stdout;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let traces = listed.lines().filter(|line| line.contains("trace"));
    traces.collect::<Vec<_>>().join("\n")
}

/// Calls are followed in `mode` to the endpoint; `rule` are words of a rule that they pass,
/// `refusing` of the rule that refuses them when there is no endpoint.
fn calls_are_followed(mode: &str, rule: &[&str], refusing: &[&str]) {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1);
        lab.add_backends(&["a", "b"]).publish(&web, &["a"]);
        let _running = started_in(&lab, mode);
        for (family, to) in web.cluster().into_iter().enumerate() {
            let trace = Trace::begin(&lab, &to.to_string(), &["--count=3"]);
            assert_eq!(trace.start["mode"], mode, "{:#}", trace.start);
            assert_eq!(trace.start["servicePort"], "default/web:tcp");
            let steps = ["it is the cluster IP of default/web:tcp (TCP)"];
            assert_eq!(
                trace.start["steps"],
                json!(steps),
                "others depend on the caller"
            );
            for client in [&lab.client, &lab.node, &lab.client] {
                assert_eq!(ask(client, to).expect("an answer"), "a");
            }
            let output = trace.end();
            let expected = endpoint(&mut lab, "a", family);
            assert_eq!(output.connections.len(), 3, "{output:#?}");
            for connection in &output.connections {
                assert_eq!(connection["outcome"], "forwarded", "{connection:#}");
                assert_eq!(connection["endpoint"], *expected);
                passes(connection, rule);
            }
            assert_eq!(output.connections[0]["input"], "cni0", "{output:#?}");
            let endpoints = &output.summary["endpoints"];
            assert_eq!(endpoints[0]["what"], *expected, "{endpoints:#}");
            assert_eq!(endpoints[0]["connections"], 3);
        }
        let to = web.cluster()[0];
        lab.publish(&web, &[]);
        eventually("it is refused", SOON, || match ask(&lab.client, to) {
            Err(_) => Ok(()),
            Ok(answer) => Err(answer),
        });
        let trace = Trace::begin(&lab, &to.to_string(), &["--count=1"]);
        assert!(ask(&lab.client, to).is_err());
        let output = trace.end();
        assert_eq!(output.connections[0]["outcome"], "refused", "{output:#?}");
        passes(&output.connections[0], refusing);
        assert_eq!(
            output.summary["refused"][0]["connections"], 1,
            "{output:#?}"
        );
        assert_eq!(tables(&lab), "");
    });
}

#[test]
fn in_nftables_mode() {
    let rule = ["rule @services", "of table tripod"];
    calls_are_followed("nftables", &rule, &["of table tripod: reject"]);
}

#[test]
fn in_iptables_mode() {
    let rule = ["default/web:tcp", "of table nat: jump KUBE-SVC-"];
    calls_are_followed("iptables", &rule, &["of table filter: reject"]);
}

/// Begins a connection, in the calling thread's namespace.
fn begin(to: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("a socket");
    socket.set_nonblocking(true).expect("a socket");
    let _ = socket.connect(&to.into());
    socket
}

/// In `mode`, another program drops packets to the endpoint, once that was chosen.
fn who_drops_is_named(mode: &str) {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1);
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let _running = started_in(&lab, mode);
        let to = web.cluster()[0];
        assert_eq!(ask(&lab.client, to).expect("an answer"), "a");
        let pod = lab.backend("a").host().addresses[0].to_string();
        let rule = ["-I", "FORWARD", "-d", &pod, "-j", "DROP"];
        let done = lab.node.command("iptables").args(rule).status();
        assert!(done.expect("running iptables").success());
        let trace = Trace::begin(&lab, &to.to_string(), &["--count=1"]);
        // No answer comes, so the test does not wait for one.
        let _call = lab.client.enter(|| begin(to));
        let output = trace.end();
        let connection = &output.connections[0];
        assert_eq!(connection["outcome"], "dropped", "{output:#?}");
        let by = connection["by"].as_str().expect("a rule");
        for words in ["rule with handle ", " of chain FORWARD of table filter"] {
            assert!(by.contains(words), "no {words:?} in {output:#?}");
        }
        let dropped = &output.summary["dropped"][0];
        assert_eq!(dropped["connections"], 1, "{output:#?}");
        assert_eq!(dropped["what"], *by, "{output:#?}");
    });
}

#[test]
fn who_drops_is_named_in_nftables_mode() {
    who_drops_is_named("nftables");
}

#[test]
fn who_drops_is_named_in_iptables_mode() {
    who_drops_is_named("iptables");
}

/// Runs `body` in nftables mode, with a Service at this address that has backend `a`.
fn served(body: impl FnOnce(&mut Lab, SocketAddr)) {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1);
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let _running = started_in(&lab, "nftables");
        body(&mut lab, web.cluster()[0]);
    });
}

#[test]
fn a_udp_client_and_who_is_asked_for() {
    served(|lab, to| {
        let from = lab.client.addresses[0].to_string();
        let arguments = ["--count=1", "--from", &from];
        let trace = Trace::begin(lab, &format!("{to}/udp"), &arguments);
        // Calls from another address, and over another protocol.
        udp_ask(&lab.node, to).expect("an answer");
        ask(&lab.client, to).expect("an answer");
        udp_ask(&lab.client, to).expect("an answer");
        let output = trace.end();
        assert_eq!(output.connections.len(), 1, "{output:#?}");
        let client = output.connections[0]["client"]
            .as_str()
            .expect("an address");
        assert!(client.starts_with(&from), "{output:#?}");
        let expected = endpoint(lab, "a", 0);
        assert_eq!(output.connections[0]["endpoint"], *expected, "{output:#?}");
    });
}

/// Tripod's own connections to endpoints, for each client that was reported.
fn dials<'a>(output: &'a Output, client: &'a Value) -> impl Iterator<Item = &'a Value> {
    let dials = output.others.iter();
    dials.filter(move |report| report["kind"] == "TracedDial" && report["client"] == *client)
}

#[test]
fn userspace_mode_names_the_endpoint_of_each_client() {
    Lab::run(|lab| {
        let web = Service::new("web", 1).with_node_port();
        lab.publish(&web, &["a", "b"]);
        lab.backend("b").kill();
        let _running = started(lab, &[]);
        let to = web.cluster()[0];
        let expected = endpoint(lab, "a", 0);
        let refusing = endpoint(lab, "b", 0);
        let trace = Trace::begin(lab, &to.to_string(), &["--count=4"]);
        assert_eq!(trace.start["mode"], "userspace");
        // To another address of the ServicePort: the client is not among those reported.
        let node_port = (lab.node.addresses[0], web.node_port()).into();
        assert_eq!(ask(&lab.client, node_port).expect("an answer"), "a");
        for _ in 0..4 {
            assert_eq!(ask(&lab.client, to).expect("an answer"), "a");
        }
        let output = trace.end();
        assert_eq!(output.connections.len(), 4, "{output:#?}");
        for connection in &output.connections {
            assert_eq!(connection["outcome"], "relayed", "{connection:#}");
            passes(connection, &["of table nat"]);
            let last = dials(&output, &connection["client"]).last();
            let last = last.unwrap_or_else(|| panic!("no endpoint: {output:#?}"));
            assert_eq!(last["endpoint"], *expected, "{output:#?}");
            assert_eq!(last["to"], *to.to_string());
            assert_eq!(last["error"], Value::Null);
            let from = last["from"].as_str().expect("its own address");
            let from: SocketAddr = from.parse().expect("an address");
            assert!(!lab.client.addresses.contains(&from.ip()), "{output:#?}");
        }
        let all = output.others.iter();
        let all: Vec<_> = all.filter(|one| one["kind"] == "TracedDial").collect();
        let failed: Vec<_> = all
            .iter()
            .filter(|one| one["error"] != Value::Null)
            .collect();
        assert_eq!(all.len(), 4 + failed.len(), "{output:#?}");
        for one in &failed {
            assert_eq!(one["endpoint"], *refusing, "{one:#}");
        }
        let counted = |list: &str| output.summary[list][0]["connections"].clone();
        assert_eq!(counted("dialed"), 4, "{output:#?}");
        assert_eq!(output.summary["lost"], false);
    });
}

#[test]
fn userspace_mode_says_what_an_endpoint_that_does_not_answer_is_replaced_by() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish(&web, &["a", "b"]);
        lab.backend("b").kill();
        let _running = started(lab, &[]);
        let to = web.cluster()[0];
        let (expected, refusing) = (endpoint(lab, "a", 0), endpoint(lab, "b", 0));
        let trace = Trace::begin(lab, &format!("{to}/udp"), &["--count=4"]);
        let answers = (0..4).map(|_| udp_ask(&lab.client, to).expect("an answer"));
        assert!(answers.into_iter().all(|answer| answer == "a"));
        let output = trace.end();
        let ends = |connection: &Value| {
            let mut dials = dials(&output, &connection["client"]);
            dials.any(|one| one["endpoint"] == *expected && one["error"] == Value::Null)
        };
        assert!(output.connections.iter().all(ends), "{output:#?}");
        let mut others = output.others.iter();
        let refused = |one: &Value| one["endpoint"] == *refusing && one["error"] != Value::Null;
        assert!(others.any(refused), "{output:#?}");
    });
}

#[test]
fn userspace_mode_relays_only_what_its_sockets_take() {
    Lab::run(|lab| {
        let web = Service::new("web", 1)
            .with_load_balancer()
            .spec("loadBalancerSourceRanges", json!(["203.0.113.77/32"]));
        let balancer = web.ingress()[0];
        lab.publish(&web, &["a"]);
        let _running = started(lab, &[]);
        for (to, expected) in [
            (balancer, &["unanswered", "unknown"][..]),
            ((lab.node.addresses[0], 30999).into(), &["notTranslated"]),
        ] {
            let trace = Trace::begin(lab, &to.to_string(), &["--count=1", "--timeout=5s"]);
            assert!(ask(&lab.client, to).is_err());
            let output = trace.end();
            assert_eq!(output.connections.len(), 1, "{output:#?}");
            let outcome = output.connections[0]["outcome"].as_str();
            assert!(expected.contains(&outcome.expect("a word")), "{output:#?}");
        }
    });
}

/// It need not wait for a stopped proxy.
#[test]
fn a_proxy_that_does_not_answer_keeps_no_packet_from_being_traced() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1);
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let running = started_in(&lab, "nftables");
        let to = web.cluster()[0];
        running.freeze();
        let begun = Instant::now();
        let trace = Trace::begin(&lab, &to.to_string(), &["--count=1", "--timeout=2s"]);
        assert!(begun.elapsed() < Duration::from_secs(10));
        let unseen = trace.start["unseen"].to_string();
        assert!(unseen.contains("no answer within 2 s"), "{unseen}");
        assert_eq!(ask(&lab.client, to).expect("an answer"), "a");
        assert_eq!(trace.end().connections.len(), 1);
        running.thaw();
    });
}

#[test]
fn nothing_is_left_behind_and_calls_go_on() {
    served(|lab, to| {
        let mut trace = Trace::begin(lab, &to.to_string(), &["--count=1000"]);
        assert!(tables(lab).contains("tripod-trace-"), "{}", tables(lab));
        for at in 0..100 {
            assert_eq!(ask(&lab.client, to).expect("an answer"), "a");
            if at == 50 {
                // After SIGKILL it cannot clean up.
                trace.process.kill().expect("it is killed");
                trace.process.wait().expect("its status");
            }
        }
        eventually("the table is gone", SOON, || match tables(lab) {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        });
    });
}

#[test]
fn it_ends_in_time_and_says_what_was_wrong() {
    Lab::run(|lab| {
        // No proxy is running.
        let to = ["--to", "10.96.0.1:80"];
        let arguments = [&["trace", "--timeout=200ms"], &to[..]].concat();
        let printed = tripod(&lab.node, &arguments);
        assert_eq!(printed.status, Some(0), "{printed:?}");
        for words in ["not seen: which Service it is", "connections: 0\n"] {
            assert!(printed.text.contains(words), "no {words:?} in {printed:?}");
        }
        for (arguments, words) in [
            (&["--from", "::1"][..], "different IP families"),
            (&["--count", "0"], "--count"),
            (&["--timeout", "ten"], "--timeout"),
            (&["--output", "xml"], "--output"),
        ] {
            let arguments = [&["trace"], &to[..], arguments].concat();
            let printed = tripod(&lab.node, &arguments);
            assert_eq!(printed.status, Some(2), "{printed:?}");
            assert!(printed.error.contains(words), "{printed:?}");
        }
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn ipvs_names_the_real_server() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1).with_external_ip();
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let _running = started_in(&lab, "ipvs");
        let to = web.external()[0];
        let trace = Trace::begin(&lab, &to.to_string(), &["--count=2"]);
        assert_eq!(trace.start["mode"], "ipvs");
        // This kernel has no nf_tables for IPv4.
        let unseen = trace.start["unseen"].as_array().expect("a list").iter();
        let mut unseen = unseen.filter_map(Value::as_str);
        assert!(
            unseen.any(|why| why.starts_with("rules of nf_tables, which this kernel cannot trace")),
            "{:#}",
            trace.start
        );
        for _ in 0..2 {
            assert_eq!(ask(&lab.outside, to).expect("an answer"), "a");
        }
        let output = trace.end();
        let expected = endpoint(&mut lab, "a", 0);
        assert_eq!(output.connections.len(), 2, "{output:#?}");
        for connection in &output.connections {
            assert_eq!(connection["outcome"], "forwarded", "{connection:#}");
            assert_eq!(connection["endpoint"], *expected, "{connection:#}");
        }
    });
}

#[test]
fn guest_full_ask_trace() {
    let tests = ["ask::trace::ipvs_names_the_real_server"];
    in_guest(Profile::Full, &tests, &[]);
}
