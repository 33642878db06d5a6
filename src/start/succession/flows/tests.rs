//! The present process, with one at the other end that says what was recorded of each version.

use std::net::UdpSocket;

use prometheus::IntGauge;

use super::*;
use crate::hold::{
    Holding,
    recorded::{assert_same, conversation},
};

/// The newest version; the name of the socket stands for it.
const VERSION: u16 = 1;
const PROTOCOL: &str = "flows";
/// Longer than anything here takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// Returns the next record that comes.
async fn next(channel: &Channel) -> Vec<u8> {
    let mut buffer = [0; LONGEST_FLOW];
    let received = timeout(DEADLINE, channel.receive(&mut buffer)).await;
    let received = received.expect("it hangs").expect("a record");
    buffer[..received.expect("no end").len].to_vec()
}

#[tokio::test]
async fn flows_come_as_a_predecessor_of_each_version_sends_them() {
    for version in 1..=VERSION {
        let messages = conversation(PROTOCOL, version);
        let (ours, theirs) = Channel::pair().expect("a pair");
        let (by_successor, by_predecessor) = messages
            .iter()
            .partition::<Vec<_>, _>(|message| message.by == "successor");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for message in by_predecessor {
            let socket = message.with_socket.then(|| socket.as_fd());
            let sent = theirs.send(&message.bytes, socket).await;
            sent.expect("it is read");
        }
        let assignments = Arc::<Assignments>::default();
        let (sender, taken) = unbounded_channel();
        let flows = receive_all(&ours, &assignments, &sender);
        let flows = timeout(DEADLINE, flows).await.expect("it hangs");
        assert_eq!(flows.expect("these are all"), 1);

        let went_on = tokio::spawn(go_on(ours, assignments, sender.clone(), taken));
        sender.send(7).expect("it is read");
        let what = by_successor.first().expect("that it goes on with one");
        assert_same(&next(&theirs).await, what, PROTOCOL);
        drop(theirs);
        let ended = timeout(DEADLINE, went_on).await.expect("it hangs");
        ended.expect("no panic");
    }
}

#[tokio::test]
async fn a_successor_is_told_that_there_are_no_more_and_again_when_it_serves() {
    let messages = conversation(PROTOCOL, VERSION);
    let all = messages
        .iter()
        .find(|message| message.what == "all")
        .expect("all");
    let taken = messages
        .iter()
        .find(|message| message.what == "taken")
        .expect("taken");
    let (ours, theirs) = Channel::pair().expect("a pair");
    let connections = IntGauge::new("connections", "open").expect("a gauge");
    let handover = Handover::new(connections, Holding::default(), Arc::default());
    let successor = handover.clone();
    let passes = tokio::spawn(async move {
        let assignments = handover.assignments().expect("it carries connections");
        pass_on(&ours, assignments, &handover).await
    });
    assert_same(&next(&theirs).await, all, PROTOCOL);
    // A flow that has ended, and what is no number.
    theirs.send(&taken.bytes, None).await.expect("it is read");
    theirs.send(&[1, 2, 3], None).await.expect("it is read");
    let mut successor = successor.give_way(1).await;
    successor.serves();
    assert_same(&next(&theirs).await, all, PROTOCOL);
    drop(theirs);
    let ended = timeout(DEADLINE, passes).await.expect("it hangs");
    ended.expect("no panic").expect("a good end");
}
