//! The present process as successor and as predecessor, with a test at the other end.

use std::{
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use net::Protocol;
use testing::block_on;
use tokio::task::JoinHandle;

use super::*;
use crate::{
    hold::{
        Held, Holding, Listening, SocketDescription,
        message::{LONGEST, Message, VERSION},
        recorded::{assert_same, conversation},
    },
    kernel::socket::{bound::BoundAddress, records::Channel},
    log::lines,
};

/// Longer than anything here takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

fn handover() -> (Handover, Holding) {
    let holding = Holding::default();
    let handover = Handover::new(holding.clone());
    (handover, holding)
}

fn listener() -> (Arc<TcpListener>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("its address");
    (Arc::new(listener), address)
}

fn description(address: SocketAddr) -> SocketDescription {
    SocketDescription {
        bound: BoundAddress {
            protocol: Protocol::Tcp,
            address,
        },
        label: "internal default/web".into(),
    }
}

/// A socket of a Service that is open in a process.
struct Open {
    socket: Arc<TcpListener>,
    address: SocketAddr,
    is_left: AtomicBool,
}

impl AsFd for Open {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Listening for Open {
    fn leave(&self, to_another: bool) {
        self.is_left.store(to_another, Relaxed);
    }
}

impl Open {
    /// Adds a socket to those of a process, which it may share with its predecessor.
    fn add(holding: &Holding, is_shared: bool) -> (Arc<Open>, Held) {
        let (socket, address) = listener();
        let open = Arc::new(Open {
            socket,
            address,
            is_left: AtomicBool::new(false),
        });
        let socket: Weak<Open> = Arc::downgrade(&open);
        let held = holding.hold(description(address), socket, is_shared);
        (open, held.expect("a short label"))
    }

    /// Whether this process accepts there.
    fn is_ours(&self) -> bool {
        !self.is_left.load(Relaxed)
    }
}

/// Listeners with a socket at an address of the kernel's choice.
fn with_one() -> (Listeners, SocketAddr) {
    let (socket, address) = listener();
    let listeners = Listeners::default();
    listeners.give(socket.as_fd().try_clone_to_owned().expect("a descriptor"));
    listeners.use_inherited(address);
    (listeners, address)
}

async fn until(condition: impl Fn() -> bool) {
    let waits = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, waits).await.expect("it hangs");
}

/// The next record, and whether a descriptor comes with it.
async fn receive(channel: &Channel) -> Option<(Message, bool)> {
    let mut buffer = [0; LONGEST];
    let received = timeout(DEADLINE, channel.receive(&mut buffer)).await;
    let received = received.expect("it hangs").expect("no error")?;
    let message = Message::parse(&buffer[..received.len]).expect("a record");
    Some((message, received.descriptor.is_some()))
}

async fn expect(channel: &Channel, expected: Message) {
    let is_given = matches!(expected, Message::Port(_) | Message::Give(..));
    assert_eq!(receive(channel).await, Some((expected, is_given)));
}

async fn send(channel: &Channel, message: Message, socket: Option<&Arc<TcpListener>>) {
    let descriptor = socket.map(|socket| socket.as_fd());
    let sent = channel.send(&message.encode(), descriptor).await;
    sent.expect("it is read");
}

/// A test's end of the connection to the present process, which is the predecessor.
async fn successor(handover: &Handover, listeners: &Listeners) -> (Channel, JoinHandle<()>) {
    let (ours, theirs) = Channel::pair().expect("a pair");
    let attends = successor::attend(ours, handover.clone(), listeners.clone());
    let attends = tokio::spawn(attends);
    send(&theirs, Message::Hello(VERSION), None).await;
    assert_eq!(
        receive(&theirs).await,
        Some((Message::Hello(VERSION), false))
    );
    (theirs, attends)
}

/// A test's end of the connection to the present process, which takes over.
async fn predecessor(listeners: &Listeners) -> (Channel, Predecessor) {
    let (ours, theirs) = Channel::pair().expect("a pair");
    let meets = Predecessor::meet(String::new(), ours, listeners);
    let answers = async {
        send(&theirs, Message::Hello(VERSION), None).await;
        let hello = receive(&theirs).await;
        assert_eq!(hello, Some((Message::Hello(VERSION), false)));
        send(&theirs, Message::All, None).await;
    };
    let (predecessor, ()) = tokio::join!(meets, answers);
    (theirs, predecessor)
}

#[test]
fn records_have_the_bytes_of_each_version() {
    let address = |text: &str| text.parse().expect("an address");
    let description = SocketDescription {
        bound: BoundAddress {
            protocol: Protocol::Udp,
            address: address("127.83.0.10:10053"),
        },
        label: "internal kube-system/dns:dns".into(),
    };
    let all = [
        Message::Hello(VERSION),
        Message::Hello(VERSION),
        Message::Port(address("127.0.0.1:10256")),
        Message::Port(address("[::]:10256")),
        Message::All,
        Message::TakeOver,
        Message::Give(0, description),
        Message::Flow(b"flow".to_vec()),
        Message::All,
        Message::Port(address("127.0.0.1:10256")),
        Message::Serves,
        Message::Note(b"note".to_vec()),
        Message::All,
    ];
    let recorded = conversation("succession", VERSION);
    assert_eq!(recorded.len(), all.len());
    for (message, recorded) in all.iter().zip(&recorded) {
        assert_same(&message.encode(), recorded, "succession");
        assert_eq!(Message::parse(&recorded.bytes).as_ref(), Some(message));
    }
}

#[tokio::test]
async fn a_predecessor_accepts_until_the_successor_serves_and_again_at_its_end() {
    let (handover, holding) = handover();
    let (listeners, at_port) = with_one();
    let (socket, _held) = Open::add(&holding, false);
    let (other, _other) = Open::add(&holding, false);
    let (theirs, attends) = successor(&handover, &listeners).await;
    expect(&theirs, Message::Port(at_port)).await;
    expect(&theirs, Message::All).await;
    assert!(!handover.has_successor());

    send(&theirs, Message::TakeOver, None).await;
    let mut given = Vec::new();
    for _ in 0..2 {
        let (message, _) = receive(&theirs).await.expect("a record");
        let Message::Give(number, of) = message else {
            panic!("{message:?}");
        };
        given.push((number, of));
    }
    expect(&theirs, Message::All).await;
    assert!(handover.has_successor() && !handover.is_succeeded());
    let taken = given
        .iter()
        .find(|(_, of)| of.bound.address == socket.address);
    send(&theirs, Message::Held(taken.expect("it is given").0), None).await;
    send(&theirs, Message::Port(at_port), None).await;
    until(|| !listeners.is_in_charge()).await;
    assert!(socket.is_ours() && other.is_ours());

    let (late, _late) = Open::add(&holding, false);
    send(&theirs, Message::Serves, None).await;
    let (message, _) = receive(&theirs).await.expect("a record");
    let Message::Give(number, of) = message else {
        panic!("{message:?}");
    };
    assert_eq!(of, description(late.address));
    expect(&theirs, Message::All).await;
    assert!(handover.is_succeeded());
    assert!(!socket.is_ours() && other.is_ours() && late.is_ours());
    send(&theirs, Message::Held(number), None).await;
    until(|| !late.is_ours()).await;

    drop(theirs);
    attends.await.expect("it ends");
    assert!(!handover.has_successor() && socket.is_ours() && late.is_ours());
    assert!(listeners.is_in_charge());
}

/// The first one may still have connections when a third process takes over.
#[tokio::test]
async fn the_first_of_three_processes_leaves_clients_to_the_second() {
    let (handover, holding) = handover();
    let (socket, _held) = Open::add(&holding, false);
    let listeners = Listeners::default();
    let assignments = handover.assignments();
    let records = conversation("assignments", VERSION);
    assignments.inherit(records.iter().map(|record| record.bytes.clone()));
    let mut ends = Vec::new();
    for notes in [records.len(), 0] {
        let (theirs, attends) = successor(&handover, &listeners).await;
        expect(&theirs, Message::All).await;
        send(&theirs, Message::TakeOver, None).await;
        // Only the second one is given it.
        if notes > 0 {
            expect(&theirs, Message::Give(0, description(socket.address))).await;
            send(&theirs, Message::Held(0), None).await;
        }
        expect(&theirs, Message::All).await;
        send(&theirs, Message::Serves, None).await;
        for _ in 0..notes {
            let note = receive(&theirs).await;
            assert!(matches!(note, Some((Message::Note(_), false))), "{note:?}");
        }
        expect(&theirs, Message::All).await;
        ends.push((theirs, attends));
    }
    for (theirs, attends) in ends {
        assert!(!socket.is_ours());
        drop(theirs);
        attends.await.expect("it ends");
    }
    assert!(socket.is_ours());
}

#[tokio::test(start_paused = true)]
async fn a_successor_that_is_late_has_nobody_give_way_until_it_serves() {
    for serves in [false, true] {
        let (handover, _) = handover();
        let (theirs, attends) = successor(&handover, &Listeners::default()).await;
        expect(&theirs, Message::All).await;
        send(&theirs, Message::TakeOver, None).await;
        expect(&theirs, Message::All).await;
        assert!(handover.has_successor());
        tokio::time::sleep(successor::FIRST_SYNC + Duration::from_secs(1)).await;
        assert!(!handover.has_successor(), "it is late");
        let others = handover.watch();
        if serves {
            send(&theirs, Message::Serves, None).await;
            expect(&theirs, Message::All).await;
            assert!(handover.is_succeeded());
        }
        drop(theirs);
        attends.await.expect("it ends");
        assert_eq!(others.has_changed().expect("a sender"), serves);
        assert!(!handover.has_successor());
    }
}

#[tokio::test]
async fn who_sends_anything_else_takes_nothing_over() {
    let (handover, _) = handover();
    for wrong in [&[0xff][..], &[9, 9], &Message::All.encode()] {
        let (theirs, attends) = successor(&handover, &Listeners::default()).await;
        theirs.send(wrong, None).await.expect("it is read");
        attends.await.expect("it ends");
        assert!(!handover.has_successor());
    }
    let (ours, theirs) = Channel::pair().expect("a pair");
    send(&theirs, Message::Hello(0), None).await;
    successor::attend(ours, handover.clone(), Listeners::default()).await;
    assert!(!handover.has_successor());
}

#[tokio::test]
async fn a_successor_accepts_when_its_predecessor_has_stopped() {
    let (handover, holding) = handover();
    let listeners = Listeners::default();
    let (theirs, predecessor) = predecessor(&listeners).await;
    let (port, at_port) = listener();
    send(&theirs, Message::Port(at_port), Some(&port)).await;
    let (socket, address) = listener();
    let gives = async {
        expect(&theirs, Message::TakeOver).await;
        send(
            &theirs,
            Message::Give(7, description(address)),
            Some(&socket),
        )
        .await;
        send(&theirs, Message::All, None).await;
    };
    let (gives_way, ()) = tokio::join!(predecessor.give_way(&handover), gives);
    assert!(gives_way);
    let mut given = holding.take_inherited(|_| true);
    assert_eq!(given.len(), 1);
    assert_eq!(*given[0].description(), description(address));
    drop(given.pop().map(|given| given.take()));
    let (shared, _shared) = Open::add(&holding, true);
    let (own, _own) = Open::add(&holding, false);
    assert!(!shared.is_ours() && own.is_ours());

    listeners.use_inherited(at_port);
    listeners.serve();
    predecessor.serves();
    let mut said = Vec::new();
    for _ in 0..3 {
        said.push(receive(&theirs).await.expect("a record").0);
    }
    let at = |message| said.iter().position(|one| *one == message);
    assert!(at(Message::Port(at_port)).is_some(), "{said:?}");
    assert!(at(Message::Held(7)).is_some() && at(Message::Held(7)) < at(Message::Serves));
    assert!(!shared.is_ours(), "the other one has not stopped");
    let records = conversation("assignments", VERSION);
    for record in &records {
        send(&theirs, Message::Note(record.bytes.clone()), None).await;
    }
    send(&theirs, Message::All, None).await;
    until(|| shared.is_ours()).await;
    assert!(holding.have_stopped());
    assert_eq!(handover.assignments().records().len(), records.len());
}

/// It may have been killed, or hang, before or after this process serves.
#[tokio::test(start_paused = true)]
async fn a_predecessor_that_ends_or_hangs_is_not_waited_for() {
    for (hangs, serves) in [(false, false), (false, true), (true, true)] {
        let (handover, holding) = handover();
        let (shared, _held) = Open::add(&holding, true);
        let (theirs, predecessor) = predecessor(&Listeners::default()).await;
        let gives = async {
            expect(&theirs, Message::TakeOver).await;
            if !hangs {
                send(&theirs, Message::All, None).await;
            }
        };
        let (gives_way, ()) = tokio::join!(predecessor.give_way(&handover), gives);
        assert!(gives_way && !shared.is_ours());
        if serves {
            predecessor.serves();
            expect(&theirs, Message::Serves).await;
        }
        let _kept = if hangs {
            Some(theirs)
        } else {
            drop(theirs);
            None
        };
        timeout(DEADLINE, holding.arrived())
            .await
            .expect("it hangs");
        assert!(shared.is_ours());
    }
}

#[tokio::test]
async fn a_predecessor_of_another_protocol_keeps_its_sockets() {
    for wrong in [Message::Hello(0), Message::All] {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let listeners = Listeners::default();
        send(&theirs, wrong, None).await;
        let predecessor = Predecessor::meet(String::new(), ours, &listeners).await;
        let (handover, holding) = handover();
        assert!(!predecessor.give_way(&handover).await);
        assert_eq!(holding.take_inherited(|_| true).len(), 0);
    }
}

#[test]
fn answering_again_is_logged_only_where_another_process_answered() {
    for answers in [false, true] {
        let ended = async || {
            let (handover, _) = handover();
            let (listeners, address) = with_one();
            let (theirs, attends) = successor(&handover, &listeners).await;
            if answers {
                send(&theirs, Message::Port(address), None).await;
                until(|| !listeners.is_in_charge()).await;
            }
            drop(theirs);
            attends.await.expect("it ends");
        };
        let log = lines(0, || block_on(ended()));
        let again = log.iter().filter(|line| line.contains("again")).count();
        assert_eq!(again, usize::from(answers), "{log:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_family_that_fails_is_waited_for_and_no_longer_than_a_predecessor_waits() {
    let announce = || {
        let (served, serving) = channel(1);
        let families = PerFamily::default();
        let served = Some(served);
        (
            Serving { families, served },
            tokio::spawn(both_served(serving)),
        )
    };
    let map = ServiceMap::default();
    let synced = |serving: &mut Serving, family| serving.synced(family, &map, &Changes::default());

    let (mut serving, waits) = announce();
    tokio::time::sleep(2 * successor::FIRST_SYNC).await;
    assert!(!waits.is_finished(), "nothing is served");
    synced(&mut serving, Family::V4);
    tokio::time::sleep(OTHER_FAMILY / 2).await;
    synced(&mut serving, Family::V4);
    tokio::time::sleep(OTHER_FAMILY / 4).await;
    assert!(!waits.is_finished(), "the other one may still succeed");
    tokio::time::sleep(OTHER_FAMILY / 4 + Duration::from_millis(1)).await;
    assert!(waits.is_finished(), "the node may not be able to serve it");

    let (mut serving, waits) = announce();
    synced(&mut serving, Family::V6);
    synced(&mut serving, Family::V4);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(waits.is_finished(), "both are applied");
    assert!(OTHER_FAMILY < successor::FIRST_SYNC);
}

#[test]
fn processes_of_different_network_namespaces_have_different_names() {
    let one: Vec<_> = names(4_026_531_840).collect();
    let other: Vec<_> = names(4_026_531_841).collect();
    assert_eq!(one.len(), 64);
    assert_eq!(
        one[0],
        format!("/run/tripod/succession/process-{}", 64 * 4_026_531_840_u64)
    );
    assert!(one.iter().all(|name| !other.contains(name)));
    assert!(one[0].len() < 100, "the path of a socket is short");
}
