//! `tripod.proxy/proxy-protocol: v2`: a header names the client to endpoints.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::lab::{Host, Lab, Service, send_pattern, tcp};

on_each_capture!(
    endpoints_get_the_callers_and_the_called_address,
    streams_follow_the_header_intact,
    each_endpoint_that_is_tried_reads_one_header,
    datagrams_have_no_header_and_that_is_logged,
);

const ANNOTATION: &str = "tripod.proxy/proxy-protocol";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The content of a header: the caller's address and the one it called.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    client: SocketAddr,
    called: SocketAddr,
}

/// Reads a header and nothing after it.
fn read_header(stream: &mut TcpStream) -> io::Result<Header> {
    let mut fixed = [0; 16];
    stream.read_exact(&mut fixed)?;
    assert_eq!(fixed[..12], *SIGNATURE);
    assert_eq!(fixed[12], 0x21, "version 2, PROXY");
    let mut rest = vec![0; u16::from_be_bytes([fixed[14], fixed[15]]).into()];
    stream.read_exact(&mut rest)?;
    let size = match (fixed[13], rest.len()) {
        (0x11, 12) => 4,
        (0x21, 36) => 16,
        other => panic!("not TCP over IPv4 or IPv6: {other:?}"),
    };
    let ip = |at: usize| -> IpAddr {
        match <[u8; 4]>::try_from(&rest[at..at + size]) {
            Ok(four) => four.into(),
            Err(_) => <[u8; 16]>::try_from(&rest[at..at + size])
                .expect("sixteen")
                .into(),
        }
    };
    let port = |at: usize| u16::from_be_bytes([rest[2 * size + at], rest[2 * size + at + 1]]);
    Ok(Header {
        client: SocketAddr::new(ip(0), port(0)),
        called: SocketAddr::new(ip(size), port(2)),
    })
}

/// Starts a process for a pod in place of the usual one; it passes each connection to `serve`, and
/// lives as long as the test.
fn listen(
    lab: &mut Lab,
    pod: &str,
    serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
) {
    let backend = lab.backend(pod);
    backend.kill();
    let listener = backend
        .host()
        .enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, 8080)))
        .expect("the port is free now");
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(stream));
        }
    });
}

/// First sends the header's content, then echoes everything that arrives.
fn report(mut stream: TcpStream) -> io::Result<()> {
    let Header { client, called } = read_header(&mut stream)?;
    writeln!(stream, "{client} {called}")?;
    let mut reader = stream.try_clone()?;
    io::copy(&mut reader, &mut stream).map(drop)
}

/// Reads the header that the backend got, which it sends before it is asked anything.
fn header(stream: &TcpStream) -> Header {
    let mut line = String::new();
    let mut reader = BufReader::with_capacity(1, stream);
    reader
        .read_line(&mut line)
        .expect("a backend that got a header");
    let (client, called) = line.trim().split_once(' ').expect("two addresses");
    Header {
        client: client.parse().expect("an address"),
        called: called.parse().expect("an address"),
    }
}

fn web() -> Service {
    let web = Service::new("web", 10).annotated(ANNOTATION, "v2");
    web.with_node_port().with_external_ip().with_load_balancer()
}

fn endpoints_get_the_callers_and_the_called_address(lab: &mut Lab) {
    let (web, plain) = (web(), Service::new("plain", 11));
    lab.add_backends(&["a", "b"]);
    lab.publish(&web, &["a"]);
    lab.publish(&plain, &["b"]);
    listen(lab, "a", report);
    let _tripod = lab.tripod();
    let node_ports = lab
        .node
        .addresses
        .map(|ip| SocketAddr::new(ip, web.node_port()));
    let call = |from: &Host, to: SocketAddr| {
        let stream = tcp(from, to).unwrap_or_else(|e| panic!("{to} from {}: {e}", from.name()));
        let client = stream.local_addr().expect("an open socket");
        let header = header(&stream);
        assert_eq!(
            header,
            Header { client, called: to },
            "from {}",
            from.name()
        );
    };
    for to in [web.cluster(), node_ports, web.external(), web.ingress()].concat() {
        for from in lab.cluster_clients() {
            call(from, to);
        }
    }
    for to in [node_ports, web.external(), web.ingress()].concat() {
        call(&lab.outside, to);
    }
    for to in plain.cluster() {
        let answer = crate::lab::ask(&lab.client, to).expect("a Service without headers");
        assert_eq!(answer, "b");
    }
}

fn streams_follow_the_header_intact(lab: &mut Lab) {
    const LONG: u64 = 8 << 20;
    let web = web();
    lab.add_backends(&["a"]).publish_all(&web);
    listen(lab, "a", report);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        let stream = tcp(&lab.client, to).expect("a connection");
        assert_eq!(header(&stream).called, to);
        let mut writer = stream.try_clone().expect("a second handle");
        let sender = std::thread::spawn(move || {
            send_pattern(&mut writer, LONG)?;
            writer.shutdown(std::net::Shutdown::Write)
        });
        let mut reader = &stream;
        let seen = crate::lab::verify_pattern(&mut reader, None).expect("all of it, unchanged");
        assert_eq!(seen, LONG);
        sender.join().expect("the sender").expect("sending");
    }
}

/// `a` accepts the connection and the question and ends; `b` answers.
fn each_endpoint_that_is_tried_reads_one_header(lab: &mut Lab) {
    const CALLS: usize = 6;
    let web = web();
    lab.add_backends(&["a", "b"]).publish_all(&web);
    let met = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&met);
    listen(lab, "a", move |mut stream| {
        read_header(&mut stream)?;
        // The header is read, but not the question, so the end is a reset.
        stream.peek(&mut [0])?;
        count.fetch_add(1, Relaxed);
        Ok(())
    });
    listen(lab, "b", report);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        let before = met.load(Relaxed);
        let mut calls = 0;
        while met.load(Relaxed) == before || calls < CALLS {
            calls += 1;
            assert!(calls < 100, "a was never met");
            let mut stream = tcp(&lab.client, to).expect("a connection");
            let client = stream.local_addr().expect("an open socket");
            stream.write_all(b"question\n").expect("asking");
            assert_eq!(header(&stream), Header { client, called: to });
            let mut answer = [0; 9];
            stream
                .read_exact(&mut answer)
                .expect("what was sent comes back");
            assert_eq!(answer, *b"question\n", "nothing else was sent to b");
        }
    }
}

fn datagrams_have_no_header_and_that_is_logged(lab: &mut Lab) {
    let web = web();
    lab.add_backends(&["a"]).publish_all(&web);
    let tripod = lab.tripod();
    for to in web.cluster() {
        let answer = crate::lab::udp_ask(&lab.client, to).expect("an answer");
        assert_eq!(answer, "a");
    }
    let message = ["Service default/web", ANNOTATION, "not on UDP datagrams"];
    tripod.logs_once(&message);
    assert_eq!(
        tripod.logged(&[ANNOTATION]),
        1,
        "TCP is honoured: {}",
        tripod.log()
    );
}
