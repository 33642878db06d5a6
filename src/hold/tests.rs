//! A holder and what talks to it, over a real socket.

mod recorded;

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use net::Protocol;
use tokio::{task::JoinHandle, time::timeout};

use super::{
    Holding, Listening, SocketDescription, hold,
    message::{LONGEST, Message, OLDEST, VERSION},
};
use crate::kernel::socket::{
    bound::BoundAddress,
    listening::{self, Bind},
    records::{Channel, Listener},
};

/// Longer than anything here takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// A path of this test's own for the holder, in a folder that is removed with it.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Place {
        let name = format!("tripod-hold-{}-{test}", std::process::id());
        Place(std::env::temp_dir().join(name))
    }

    fn socket(&self) -> PathBuf {
        self.0.join("holder.sock")
    }

    /// Returns a connection to the holder, once it listens.
    async fn connect(&self) -> Channel {
        loop {
            match Channel::connect(&self.socket()) {
                Ok(channel) => return channel,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }
}

impl Place {
    /// Waits until the holder has noticed the end of every connection, and kept what it left.
    async fn until_left(&self) {
        let path = self.socket().display().to_string();
        // Connections that were accepted have the address of the listening socket.
        until(|| {
            let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap();
            table.lines().filter(|line| line.ends_with(&path)).count() == 1
        })
        .await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `body` while there is a holder.
async fn beside_a_holder(place: &Place, body: impl Future<Output = ()>) {
    let path = place.socket();
    tokio::select! {
        ended = hold(&path) => panic!("the holder ended: {ended:?}"),
        done = timeout(DEADLINE, body) => done.expect("it hangs"),
    }
}

impl Listening for TcpListener {
    fn leave(&self, _: bool) {}
}

async fn receive(channel: &Channel) -> Option<Message> {
    let mut buffer = [0; LONGEST];
    let received = channel.receive(&mut buffer).await.unwrap()?;
    Some(Message::parse(&buffer[..received.len]).expect("a record"))
}

async fn send(channel: &Channel, message: Message, socket: Option<&TcpListener>) {
    let descriptor = socket.map(AsFd::as_fd);
    channel.send(&message.encode(), descriptor).await.unwrap();
}

fn listener() -> (Arc<TcpListener>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (Arc::new(listener), address)
}

fn description(protocol: Protocol, address: SocketAddr) -> SocketDescription {
    SocketDescription {
        bound: BoundAddress { protocol, address },
        label: "internal default/web".into(),
    }
}

/// Waits until `condition` holds; tasks run meanwhile.
async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_socket_that_is_not_what_it_is_said_to_be_is_not_held() {
    let place = Place::new("descriptions");
    beside_a_holder(&place, async {
        let proxy = place.connect().await;
        send(&proxy, Message::Hello(VERSION), None).await;
        assert_eq!(receive(&proxy).await, Some(Message::Hello(VERSION)));
        assert_eq!(receive(&proxy).await, Some(Message::All));
        let (socket, address) = listener();
        let (_, other) = listener();
        for (number, wrong) in [
            description(Protocol::Udp, address),
            description(Protocol::Tcp, other),
            description(Protocol::Tcp, address),
        ]
        .into_iter()
        .enumerate()
        {
            // The last one is right, but comes without a socket.
            let beside = (number < 2).then_some(&*socket);
            send(&proxy, Message::Hold(number as u64, wrong), beside).await;
        }
        let right = description(Protocol::Tcp, address);
        send(&proxy, Message::Hold(3, right.clone()), Some(&socket)).await;
        assert_eq!(receive(&proxy).await, Some(Message::Held(3)));
        drop((proxy, socket));

        let waits = TcpStream::connect(address).expect("the holder keeps it open");
        let next = Holding::at(place.socket());
        let running = tokio::spawn(next.clone().run());
        next.arrived().await;
        let inherited = next.take_inherited(|_| true);
        let descriptions: Vec<_> = inherited
            .iter()
            .map(|inherited| inherited.description().clone())
            .collect();
        assert_eq!(descriptions, [right]);
        let (socket, _release) = inherited.into_iter().next().unwrap().take();
        let (_, peer) = TcpListener::from(socket).accept().unwrap();
        assert_eq!(peer, waits.local_addr().unwrap());
        running.abort();
    })
    .await;
}

#[tokio::test]
async fn what_a_proxy_closes_is_closed_and_what_it_leaves_is_kept() {
    let place = Place::new("closes");
    beside_a_holder(&place, async {
        drop(place.connect().await);
        let (closed, at_closed) = listener();
        let (left, at_left) = listener();
        let proxy = Holding::at(place.socket());
        let running = tokio::spawn(proxy.clone().run());
        let keep = |socket: &Arc<TcpListener>, address| {
            let socket: Weak<TcpListener> = Arc::downgrade(socket);
            proxy
                .hold(description(Protocol::Tcp, address), socket, false)
                .unwrap()
        };
        let entries = (keep(&closed, at_closed), keep(&left, at_left));
        assert!(!proxy.is_complete());
        until(|| proxy.is_complete()).await;
        drop((entries.0, closed));
        until(|| TcpStream::connect(at_closed).is_err()).await;
        proxy.leave();
        drop((entries.1, left));
        stop(running).await;

        let next = Holding::at(place.socket());
        let running = tokio::spawn(next.clone().run());
        next.arrived().await;
        let inherited = next.take_inherited(|_| true);
        assert_eq!(inherited.len(), 1);
        assert_eq!(inherited[0].description().bound.address, at_left);
        for socket in inherited {
            socket.close();
        }
        assert!(TcpStream::connect(at_left).is_err(), "at once");
        running.abort();
    })
    .await;
}

/// What is served would end if its own sockets were given to a proxy as those of an ended process,
/// which are closed: it is the same socket.
#[tokio::test]
async fn a_proxy_whose_connection_broke_is_not_given_its_own_sockets() {
    let place = Place::new("broken");
    beside_a_holder(&place, async {
        let (socket, address) = listener();
        let proxy = Holding::at(place.socket());
        let running = tokio::spawn(proxy.clone().run());
        let open: Weak<TcpListener> = Arc::downgrade(&socket);
        let entry = proxy
            .hold(description(Protocol::Tcp, address), open, false)
            .unwrap();
        until(|| proxy.is_complete()).await;
        proxy.note(vec![b"note".to_vec()]);
        until(|| proxy.is_sent()).await;
        let running = connects_anew(&place, &proxy, running).await;
        assert_eq!(proxy.take_inherited(|_| true).len(), 0);
        until(|| proxy.is_sent()).await;
        proxy.leave();
        drop((entry, socket));
        stop(running).await;
        let next = Holding::at(place.socket());
        let running = tokio::spawn(next.clone().run());
        until(|| !next.take_notes().is_empty()).await;
        assert_eq!(next.take_inherited(|_| true).len(), 1, "it is held once");
        running.abort();
    })
    .await;
}

/// A second descriptor of what a proxy already has would be closed as one that is not needed, and
/// with it the socket.
#[tokio::test]
async fn a_socket_that_waits_to_be_taken_is_given_once_though_the_connection_breaks() {
    let place = Place::new("twice");
    beside_a_holder(&place, async {
        let ((one, at_one), (other, at_other)) = (listener(), listener());
        leaves(&place, &[&one, &other]).await;
        drop((one, other));
        place.until_left().await;
        let proxy = Holding::at(place.socket());
        let running = tokio::spawn(proxy.clone().run());
        // Notes come after the sockets.
        until(|| !proxy.take_notes().is_empty()).await;
        let mut inherited = proxy.take_inherited(|_| true);
        inherited.sort_by_key(|inherited| inherited.description().bound.address == at_one);
        assert_eq!(inherited.len(), 2);
        let running = connects_anew(&place, &proxy, running).await;
        assert_eq!(proxy.take_inherited(|_| true).len(), 0);
        drop(inherited.pop());
        until(|| TcpStream::connect(at_one).is_err()).await;
        TcpStream::connect(at_other).expect("it waits on");
        stop(running).await;
        drop(inherited);
        TcpStream::connect(at_other).expect("the holder keeps it");
    })
    .await;
}

#[tokio::test]
async fn a_proxy_of_a_later_version_gets_the_sockets() {
    let place = Place::new("later");
    beside_a_holder(&place, async {
        let (socket, _) = listener();
        leaves(&place, &[&socket]).await;
        let proxy = place.connect().await;
        send(&proxy, Message::Hello(VERSION + 1), None).await;
        assert_eq!(receive(&proxy).await, Some(Message::Hello(VERSION)));
        let given = receive(&proxy).await;
        assert!(matches!(given, Some(Message::Give(..))), "{given:?}");
    })
    .await;
}

/// Ends the connection of a proxy.
async fn stop(running: JoinHandle<()>) {
    running.abort();
    let _ = running.await;
}

/// Has the connection of `proxy` break and come about again. Returns when it has been given what is
/// left there, of which notes come last.
async fn connects_anew(place: &Place, proxy: &Holding, running: JoinHandle<()>) -> JoinHandle<()> {
    stop(running).await;
    place.until_left().await;
    let running = tokio::spawn(proxy.clone().run());
    until(|| !proxy.take_notes().is_empty()).await;
    running
}

/// Has a proxy leave these sockets and a note to the holder, and end.
async fn leaves(place: &Place, sockets: &[&TcpListener]) {
    let proxy = place.connect().await;
    send(&proxy, Message::Hello(VERSION), None).await;
    assert_eq!(receive(&proxy).await, Some(Message::Hello(VERSION)));
    assert_eq!(receive(&proxy).await, Some(Message::All));
    for (number, socket) in (0..).zip(sockets) {
        let description = description(Protocol::Tcp, socket.local_addr().unwrap());
        send(&proxy, Message::Hold(number, description), Some(socket)).await;
        assert_eq!(receive(&proxy).await, Some(Message::Held(number)));
    }
    send(&proxy, Message::Note(b"note".to_vec()), None).await;
}

#[tokio::test]
async fn nothing_waits_when_a_proxy_comes_that_has_no_version_in_common() {
    let place = Place::new("version");
    beside_a_holder(&place, async {
        let (socket, address) = listener();
        leaves(&place, &[&socket]).await;
        drop(socket);
        TcpStream::connect(address).expect("the holder keeps it open");
        let proxy = place.connect().await;
        send(&proxy, Message::Hello(OLDEST - 1), None).await;
        assert_eq!(receive(&proxy).await, Some(Message::Hello(VERSION)));
        assert_eq!(receive(&proxy).await, None);
        TcpStream::connect(address).expect_err("it is closed");
    })
    .await;
}

#[tokio::test]
async fn a_proxy_whose_connection_broke_goes_on_when_its_sockets_are_given_up() {
    let place = Place::new("serves");
    beside_a_holder(&place, async {
        let (socket, address) = listener();
        leaves(&place, &[&socket]).await;
        place.until_left().await;
        let other = place.connect().await;
        send(&other, Message::Hello(OLDEST - 1), None).await;
        assert_eq!(receive(&other).await, Some(Message::Hello(VERSION)));
        assert_eq!(receive(&other).await, None);
        let client = TcpStream::connect(address).expect("it listens");
        let (_, peer) = socket.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    })
    .await;
}

/// A socket that shares its address with others of the kind.
fn shared(at: SocketAddr) -> TcpListener {
    let socket = listening::tcp(Bind::of_node(at)).expect("a socket");
    listening::start(socket).expect("it listens")
}

#[tokio::test]
async fn nothing_waits_where_a_proxy_serves_that_uses_no_holder() {
    let place = Place::new("none");
    beside_a_holder(&place, async {
        let sockets = ["127.0.0.1:0"; 2].map(|at| shared(at.parse().unwrap()));
        let [address, alone] = sockets
            .each_ref()
            .map(|socket| socket.local_addr().unwrap());
        leaves(&place, &sockets.each_ref()).await;
        drop(sockets);
        let serves = shared(address);
        serves.set_nonblocking(true).unwrap();
        // Of that many some would reach the socket of the holder.
        let all_served = || {
            let calls: Vec<_> = (0..16).map(|_| TcpStream::connect(address)).collect();
            let accepted = calls.iter().filter(|_| serves.accept().is_ok()).count();
            accepted == calls.len()
        };
        while !all_served() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        TcpStream::connect(alone).expect("the other one waits on");
    })
    .await;
}

#[tokio::test]
async fn a_holder_that_sends_anything_else_is_left() {
    let place = Place::new("wrong");
    let listener = Listener::open(&place.socket()).unwrap();
    let proxy = Holding::at(place.socket());
    let running = tokio::spawn(proxy.clone().run());
    let (socket, address) = self::listener();
    for wrong in [Message::Hello(OLDEST - 1), Message::All] {
        let holder = timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
        assert_eq!(receive(&holder).await, Some(Message::Hello(VERSION)));
        send(&holder, wrong, None).await;
        assert_eq!(receive(&holder).await, None);
    }
    let holder = timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
    assert_eq!(receive(&holder).await, Some(Message::Hello(VERSION)));
    send(&holder, Message::Hello(VERSION), None).await;
    let wrong = Message::Give(u64::MAX, description(Protocol::Udp, address));
    send(&holder, wrong, Some(&socket)).await;
    let answer = receive(&holder).await;
    assert_eq!(answer, Some(Message::Release(u64::MAX)), "it is closed");
    holder.send(&[0xff; 3], None).await.unwrap();
    assert_eq!(receive(&holder).await, None);
    assert!(proxy.take_inherited(|_| true).is_empty());
    proxy.answered().await;
    running.abort();
}

#[tokio::test]
async fn all_that_a_proxy_sent_before_it_was_killed_is_kept() {
    const SOCKETS: u64 = 50;
    let place = Place::new("killed");
    beside_a_holder(&place, async {
        let proxy = place.connect().await;
        send(&proxy, Message::Hello(VERSION), None).await;
        assert_eq!(receive(&proxy).await, Some(Message::Hello(VERSION)));
        // It reads nothing more, so that its end is a reset for the holder.
        for number in 0..SOCKETS {
            let (socket, address) = listener();
            let description = description(Protocol::Tcp, address);
            send(&proxy, Message::Hold(number, description), Some(&socket)).await;
        }
        send(&proxy, Message::Note(b"note".to_vec()), None).await;
        drop(proxy);
        let next = Holding::at(place.socket());
        let running = tokio::spawn(next.clone().run());
        let (mut inherited, mut notes) = (Vec::new(), Vec::new());
        until(|| {
            inherited.extend(next.take_inherited(|_| true));
            notes.extend(next.take_notes());
            inherited.len() as u64 == SOCKETS && !notes.is_empty()
        })
        .await;
        assert_eq!(notes, [b"note"]);
        running.abort();
    })
    .await;
}
