//! The written Events.

use std::time::Duration;

use tokio::time::Instant;
use tripod::{
    api_client::Connection,
    events::{Event, Recorder, post},
    services::ServiceName,
};

use super::{lists::shop, tcp_server::TcpServer, tls::Authority};

#[tokio::test]
async fn events_are_written_at_the_rate_that_is_allowed() {
    let tcp = TcpServer::open(shop(), "events", &Authority::new(), false).await;
    let connection = Connection {
        qps: 20.0,
        burst: 5,
        ..tcp.connection()
    };
    let access = super::open(connection).await.expect("access");
    let (recorder, events) = Recorder::new(100);
    for i in 0..100 {
        let service = ServiceName {
            namespace: "ns".into(),
            name: format!("web-{i}").into(),
        };
        recorder.post(Event::unsupported(service, "no lc".to_owned()));
    }
    let begun = Instant::now();
    let posting = tokio::spawn(post(access, "node".to_owned(), events));
    let posted = || tcp.server.script().calls.len();
    while posted() < 20 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{} posted",
            posted()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    posting.abort();
    // 20 a second, regardless of the burst.
    assert!(
        begun.elapsed() > Duration::from_millis(900),
        "{:?}",
        begun.elapsed()
    );
}
