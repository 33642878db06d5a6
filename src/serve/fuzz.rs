//! Requests with arbitrary bytes.

use std::{cell::RefCell, collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use prometheus::Registry;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    runtime::{Builder, Runtime},
};

use super::{
    Introspection, Running,
    connections::Connections,
    http::{self, Methods},
    status_api,
};
use crate::config::ModeName;

/// Longer than any answer here, so that neither side waits for the other.
const ROOM: usize = 1 << 20;

thread_local! {
    static SERVED: RefCell<(Runtime, Arc<Introspection>)> = RefCell::new(served());
}

fn served() -> (Runtime, Arc<Introspection>) {
    let runtime = Builder::new_current_thread().enable_time().build();
    let running = Running {
        mode: ModeName::Userspace,
        named: false,
        passed_over: Vec::new(),
        wanting: Vec::new(),
        gates: Vec::new(),
    };
    let configuration = json!({"mode": "userspace"});
    let about = Introspection::new(Registry::new(), running, configuration, BTreeMap::new());
    (runtime.expect("a runtime"), Arc::new(about))
}

/// Serves a client that sends only `bytes`, as at the metrics address, and parses them as
/// parameters of a question; for tests with arbitrary bytes. Returns the answer.
pub fn read_anything(bytes: &[u8]) -> Vec<u8> {
    status_api::read_anything(&String::from_utf8_lossy(bytes));
    SERVED.with_borrow(|(runtime, about)| {
        runtime.block_on(async {
            let (mut client, server) = duplex(ROOM);
            client.write_all(bytes).await.expect("room for the request");
            client.shutdown().await.expect("the end of the request");
            let place = Arc::new(Connections::default()).enter(1, Ipv4Addr::LOCALHOST.into());
            http::answer_once(server, place.answered(), async |request| {
                let peer = http::Peer::Elsewhere;
                http::respond(&request, peer, None, Methods::Read, &**about).await
            })
            .await;
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.expect("an answer");
            answer
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_request_is_answered_or_closed(
            head in "(GET|HEAD|PUT) /(|v1/explain|metrics|statusz|%[0-9a-f]{2})(\\?\\PC{0,20})? HTTP/1\\.[01]\r\n",
            rest in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let bytes = [head.as_bytes(), &rest].concat();
            let answer = read_anything(&bytes);
            prop_assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
            let answer = read_anything(&[head.as_bytes(), b"\r\n"].concat());
            prop_assert!(answer.starts_with(b"HTTP/1."), "{head}");
        }
    }
}
