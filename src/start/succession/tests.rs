//! The present process, with one at the other end that says what was recorded of each version.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use prometheus::IntGauge;

use super::*;
use crate::hold::{
    Holding,
    recorded::{Recorded, assert_same, conversation},
};

/// The newest version. The socket's name stands for it: a process that says or understands
/// something else listens on a socket of another name, and also on this one for as long as there
/// may be processes that look for it.
const VERSION: u16 = 1;
const PROTOCOL: &str = "succession";
/// Longer than anything here takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

fn handover() -> Handover {
    let connections = IntGauge::new("connections", "open").expect("a gauge");
    Handover::new(connections, Holding::default(), Arc::default())
}

/// Says what was recorded of `side`, and compares what the other one says.
async fn replay(stream: &mut UnixStream, side: &str, messages: &[Recorded]) {
    for message in messages.iter().filter(|message| message.what != "ends") {
        if message.by == side {
            stream.write_all(&message.bytes).await.expect(&message.what);
            continue;
        }
        let mut read = vec![0; message.bytes.len()];
        stream.read_exact(&mut read).await.expect(&message.what);
        assert_same(&read, message, PROTOCOL);
    }
}

async fn until(condition: impl Fn() -> bool) {
    let waits = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, waits).await.expect("it hangs");
}

#[tokio::test]
async fn this_process_gives_way_to_a_successor_of_each_version() {
    for version in 1..=VERSION {
        let messages = conversation(PROTOCOL, version);
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let handover = handover();
        let gives_way = tokio::spawn(give_way(ours, handover.clone()));
        let serves = messages.iter().position(|message| message.what == "serves");
        let (before, after) = messages.split_at(serves.expect("that it serves"));
        replay(&mut theirs, "successor", before).await;
        assert!(handover.has_successor() && !handover.is_succeeded());
        replay(&mut theirs, "successor", after).await;
        until(|| handover.is_succeeded()).await;
        drop(theirs);
        until(|| !handover.has_successor()).await;
        timeout(DEADLINE, gives_way)
            .await
            .expect("it hangs")
            .expect("it ends");
    }
}

/// A listener at a path of its own.
struct Predecessor(PathBuf);

impl Predecessor {
    fn listen() -> (Predecessor, UnixListener) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tripod-succession-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A socket left by an earlier process with this number.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("a listener");
        (Predecessor(path), listener)
    }

    fn name(&self) -> &str {
        self.0.to_str().expect("a path")
    }
}

impl Drop for Predecessor {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn this_process_takes_over_from_a_predecessor_of_each_version() {
    for version in 1..=VERSION {
        let messages = conversation(PROTOCOL, version);
        let (predecessor, listener) = Predecessor::listen();
        let there = async {
            let (mut stream, _) = listener.accept().await.expect("a successor");
            replay(&mut stream, "predecessor", &messages).await;
        };
        let here = async {
            let asked = ask(predecessor.name(), 2).await.expect("an answer");
            let (read, write) = asked.expect("it gives way");
            let _follows = handover().follows();
            stay(GaveWay {
                read,
                write,
                _follows,
            })
            .await;
        };
        let both = async { tokio::join!(there, here) };
        timeout(DEADLINE, both).await.expect("it hangs");
    }
}

/// The predecessor is in the middle of a long sync.
#[tokio::test(start_paused = true)]
async fn who_gives_way_late_is_held_to_it_all_the_same() {
    let (predecessor, listener) = Predecessor::listen();
    let (asked, mut theirs) = tokio::join!(ask(predecessor.name(), 2), async {
        let (mut stream, _) = listener.accept().await.expect("a successor");
        stream.read_u32().await.expect("the number of sockets");
        stream
    });
    let (read, write) = asked.expect("no error").expect("a connection");
    let _follows = handover().follows();
    let stays = tokio::spawn(stay(GaveWay {
        read,
        write,
        _follows,
    }));
    theirs.write_u8(DONE).await.expect("it is read");
    assert_eq!(theirs.read_u8().await.expect("that it serves"), DONE);
    tokio::task::yield_now().await;
    assert!(!stays.is_finished(), "else the other one serves again");
    drop(theirs);
    stays.await.expect("it ends");
}

/// Its end is no news to a process that serves again.
#[tokio::test(start_paused = true)]
async fn a_successor_that_dies_late_has_nobody_give_way_again() {
    for serves in [false, true] {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let handover = handover();
        let gives_way = tokio::spawn(give_way(ours, handover.clone()));
        theirs.write_u32(2).await.expect("it is read");
        assert_eq!(theirs.read_u8().await.expect("an answer"), DONE);
        assert!(handover.has_successor());
        tokio::time::sleep(FIRST_SYNC + Duration::from_secs(1)).await;
        assert!(!handover.has_successor(), "it is late");
        let others = handover.watch();
        if serves {
            theirs.write_u8(DONE).await.expect("it is read");
            until(|| handover.is_succeeded()).await;
        }
        drop(theirs);
        gives_way.await.expect("it ends");
        assert_eq!(others.has_changed().expect("a sender"), serves);
        assert!(!handover.has_successor());
    }
}

#[tokio::test]
async fn who_says_something_else_is_passed_over() {
    // Fewer bytes than any version of this process sends.
    let (ours, mut theirs) = UnixStream::pair().expect("a pair");
    let handover = handover();
    theirs.write_all(&[0xff; 3]).await.expect("it is read");
    drop(theirs);
    give_way(ours, handover.clone()).await;
    assert!(!handover.has_successor(), "it goes on serving");

    let (predecessor, listener) = Predecessor::listen();
    let there = async { drop(listener.accept().await.expect("a successor")) };
    let (asked, ()) = tokio::join!(ask(predecessor.name(), 2), there);
    assert!(
        !matches!(asked, Ok(Some(_))),
        "it is none to take over from"
    );
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
    tokio::time::sleep(2 * FIRST_SYNC).await;
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
    assert!(waits.is_finished(), "both are in force");
    assert!(OTHER_FAMILY < FIRST_SYNC);
}

#[test]
fn the_sockets_have_the_names_that_other_versions_look_for() {
    let name = |kind| format!("{FOLDER}{kind}");
    assert_eq!(name(SOCKET), "/run/tripod/succession/userspace-");
    assert_eq!(
        name(assignments::SOCKET),
        "/run/tripod/succession/assignments-"
    );
    assert_eq!(name(flows::SOCKET), "/run/tripod/succession/flows-");
    // They read any number.
    for namespace in [0, 4_026_531_840, u64::from(u32::MAX)] {
        let named: Vec<_> = names(SOCKET, namespace).collect();
        assert_eq!(named.len(), 64);
        for (name, number) in named.iter().zip(64 * namespace..) {
            let read = name.strip_prefix("/run/tripod/succession/userspace-");
            assert_eq!(read.map(str::parse), Some(Ok(number)));
        }
    }
}

#[test]
fn processes_of_different_network_namespaces_have_different_names() {
    let one: Vec<_> = names(SOCKET, 4_026_531_840).collect();
    let other: Vec<_> = names(SOCKET, 4_026_531_841).collect();
    assert!(one.iter().all(|name| !other.contains(name)));
    assert!(one[0].len() < 100, "the path of a socket is short");
}

#[tokio::test]
async fn assignments_come_as_processes_of_each_version_send_them() {
    for version in 1..=VERSION {
        let messages = conversation("assignments", version);
        let records: Vec<Vec<u8>> = messages
            .iter()
            .map(|message| message.bytes.clone())
            .collect();
        let mut stream = Vec::new();
        for record in &records {
            stream.extend((record.len() as u16).to_be_bytes());
            stream.extend(record);
        }
        let (predecessor, listener) = Predecessor::listen();
        let there = async {
            let (mut connected, _) = listener.accept().await.expect("a successor");
            connected.write_all(&stream).await.expect("it is read");
        };
        let (received, ()) =
            tokio::join!(assignments::receive(predecessor.name(), DEADLINE), there);
        assert!(received.trouble.is_none(), "{received:?}");
        assert_eq!(received.records, records);
        assert_eq!(
            handover()
                .assignments()
                .map(|assignments| assignments.inherit(records.clone())),
            Some(records.len())
        );

        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let mut sent = Vec::new();
        let (done, read) = tokio::join!(
            assignments::send(ours, records),
            theirs.read_to_end(&mut sent)
        );
        done.expect("it is sent");
        read.expect("it is read");
        assert_eq!(sent, stream);
    }
}

/// Sends `stream` to a reader of assignments, and then keeps the connection, or ends it.
async fn received(stream: &[u8], keeps: bool, within: Duration) -> assignments::Received {
    let (predecessor, listener) = Predecessor::listen();
    let there = async {
        let (mut connected, _) = listener.accept().await.expect("a successor");
        connected.write_all(stream).await.expect("it is read");
        keeps.then_some(connected)
    };
    let (received, _) = tokio::join!(assignments::receive(predecessor.name(), within), there);
    received
}

#[tokio::test]
async fn assignments_that_came_stay_whatever_comes_after_them() {
    let record = |bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).expect("a short record");
        [&length.to_be_bytes()[..], bytes].concat()
    };
    let (first, last) = (record(b"first"), record(b"last"));
    let expected = [b"first".to_vec(), b"last".to_vec()];

    let too_long = record(&[7; 2000]);
    let stream = [&first[..], &too_long, &last].concat();
    let found = received(&stream, false, DEADLINE).await;
    assert_eq!(found.records, expected);
    assert_eq!((found.too_long, found.trouble.is_none()), (1, true));

    let cut = [&first[..], &last, &record(b"cut")[..4]].concat();
    let found = received(&cut, false, DEADLINE).await;
    assert_eq!(found.records, expected);
    let kind = found.trouble.map(|error| error.kind());
    assert_eq!(kind, Some(io::ErrorKind::UnexpectedEof));

    let all = [&first[..], &last].concat();
    let found = received(&all, true, Duration::from_secs(1)).await;
    assert_eq!(found.records, expected);
    let kind = found.trouble.map(|error| error.kind());
    assert_eq!(kind, Some(io::ErrorKind::TimedOut));
}
