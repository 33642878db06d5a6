//! The present proxy and the present holder, each with the other side as it was recorded of
//! every version that is spoken.

use std::{net::UdpSocket, os::fd::OwnedFd};

use tokio::sync::Mutex;

use super::*;
use crate::hold::recorded::{Recorded, assert_same, conversation};

/// The recorded sockets are at this address: every machine has it by loopback, and the port is one
/// that these tests do not share with others.
const AT: &str = "127.83.0.10:10053";
const LABEL: &str = "internal kube-system/dns:dns";
const PROTOCOL: &str = "holder";
/// Held by the test that has a socket at [`AT`].
static ALONE: Mutex<()> = Mutex::const_new(());
const NOTE: &[u8] = b"note";
const FLOW: &[u8] = b"flow";

/// Returns what is sent in each version until one side ends, and what is sent afterwards; the
/// newest also by a `side` that greets with the version after it, and speaks this one.
fn sessions(side: &str) -> Vec<[Vec<Recorded>; 2]> {
    let of_versions = (OLDEST..=VERSION).map(|version| conversation(PROTOCOL, version));
    let later = with_version(VERSION + 1, conversation(PROTOCOL, VERSION), |by| {
        by == side
    });
    let all = of_versions.chain([later]);
    // The side that runs, and is not recorded, speaks the newest version.
    let all = all.map(|messages| with_version(VERSION, messages, |by| by != side));
    all.map(in_two).collect()
}

/// Has one side greet with a version.
fn with_version(version: u16, mut all: Vec<Recorded>, is: impl Fn(&str) -> bool) -> Vec<Recorded> {
    let greetings = all.iter_mut().filter(|message| message.what == "hello");
    for message in greetings.filter(|message| is(&message.by)) {
        message.bytes = Message::Hello(version).encode();
    }
    all
}

fn in_two(all: Vec<Recorded>) -> [Vec<Recorded>; 2] {
    let mut parts = all
        .split(|message| message.what == "ends")
        .map(<[Recorded]>::to_vec);
    let [first, second] = [parts.next(), parts.next()].map(|part| part.expect("a session"));
    [first, second]
}

/// Compares what the other side sends with what was recorded. Returns the descriptor that comes
/// with it, if any.
async fn hears(channel: &Channel, message: &Recorded) -> Option<OwnedFd> {
    let mut buffer = [0; LONGEST];
    let received = channel.receive(&mut buffer).await.expect(&message.what);
    let received = received.expect("the other side continues");
    assert_same(&buffer[..received.len], message, PROTOCOL);
    let has_socket = received.descriptor.is_some();
    assert_eq!(has_socket, message.with_socket, "{}", message.what);
    received.descriptor
}

/// Returns a socket, once those of the conversation before are closed.
async fn bound() -> UdpSocket {
    let free = async {
        loop {
            match UdpSocket::bind(AT) {
                Ok(socket) => return socket,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    timeout(DEADLINE, free).await.expect(AT)
}

/// A recorded proxy, and the holder as it is.
async fn replay_proxy(
    place: &Place,
    messages: &[Recorded],
    socket: Option<&OwnedFd>,
) -> Option<OwnedFd> {
    let channel = place.connect().await;
    let mut given = None;
    for message in messages {
        if message.by == "proxy" {
            let beside = socket.filter(|_| message.with_socket).map(AsFd::as_fd);
            channel
                .send(&message.bytes, beside)
                .await
                .expect(&message.what);
            continue;
        }
        given = hears(&channel, message).await.or(given);
    }
    given
}

#[tokio::test]
async fn the_holder_keeps_sockets_of_a_proxy_of_each_version_for_the_next_one() {
    let _alone = ALONE.lock().await;
    for [first, second] in sessions("proxy") {
        let place = Place::new("recorded-proxy");
        beside_a_holder(&place, async {
            let socket = OwnedFd::from(bound().await);
            let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            replay_proxy(&place, &first, Some(&socket)).await;
            drop(socket);
            client
                .send_to(b"while no proxy runs", AT)
                .expect("it is kept");
            let given = replay_proxy(&place, &second, None).await;
            let mut read = [0; 32];
            let socket = UdpSocket::from(given.expect("the socket"));
            let (length, _) = socket.recv_from(&mut read).expect("what waited");
            assert_eq!(&read[..length], b"while no proxy runs");
        })
        .await;
    }
}

impl Listening for UdpSocket {
    fn leave(&self, _: bool) {}
}

/// A recorded holder, and the proxy as it is, which does what its records are about.
async fn replay_holder(
    holder: &Channel,
    proxy: &Holding,
    messages: &[Recorded],
    socket: &Arc<UdpSocket>,
) {
    let at: SocketAddr = AT.parse().expect("an address");
    let mut held = Vec::new();
    for message in messages {
        if message.by == "holder" {
            let beside = message.with_socket.then(|| socket.as_fd());
            holder
                .send(&message.bytes, beside)
                .await
                .expect(&message.what);
            if message.what == "give" {
                proxy.arrived().await;
            }
            continue;
        }
        match &*message.what {
            "hold" => {
                let description = SocketDescription {
                    bound: BoundAddress {
                        protocol: Protocol::Udp,
                        address: at,
                    },
                    label: LABEL.into(),
                };
                let socket: Weak<UdpSocket> = Arc::downgrade(socket);
                held.extend(proxy.hold(description, socket, false));
            }
            "release" => drop(held.pop()),
            "release-given" => drop(proxy.take_inherited(|_| true)),
            "note" => {
                proxy.note(vec![NOTE.to_vec()]);
                let socket: Arc<dyn AsFd + Send + Sync> = Arc::<UdpSocket>::clone(socket);
                proxy.pass([(FLOW.to_vec(), socket)].into_iter());
            }
            _ => {}
        }
        drop(hears(holder, message).await);
    }
    proxy.leave();
}

#[tokio::test]
async fn a_proxy_has_its_sockets_kept_and_given_by_a_holder_of_each_version() {
    let _alone = ALONE.lock().await;
    for sessions in sessions("holder") {
        let place = Place::new("recorded-holder");
        let listener = Listener::open(&place.socket()).expect("a listener");
        for messages in sessions {
            let socket = Arc::new(bound().await);
            let proxy = Holding::at(place.socket());
            let running = tokio::spawn(proxy.clone().run());
            let replayed = async {
                let holder = listener.accept().await.expect("a proxy");
                replay_holder(&holder, &proxy, &messages, &socket).await;
            };
            timeout(DEADLINE, replayed).await.expect("it hangs");
            let is_next = messages.iter().any(|message| message.what == "give");
            if is_next {
                proxy.answered().await;
                assert_eq!(proxy.take_notes(), [NOTE]);
                let flows = messages
                    .iter()
                    .filter(|message| message.what == "flow")
                    .count();
                let taken = proxy.take_flows();
                assert_eq!(taken.len(), flows);
                assert!(taken.iter().all(|(record, _)| record == FLOW));
            }
            running.abort();
            let _ = running.await;
        }
    }
}
