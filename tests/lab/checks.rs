//! The laboratory itself, without Tripod: a test that passes because its
//! laboratory is broken proves nothing.

use std::time::Duration;

use super::*;

fn in_a_sandbox(body: impl FnOnce(&mut Lab)) {
    run(|| body(&mut Lab::new(Capture::Local)));
}

#[test]
fn backends_answer_the_client_directly() {
    in_a_sandbox(|lab| {
        lab.three_backends();
        for backend in &lab.backends {
            for ip in backend.host().addresses {
                let to = (ip, backend.direct().port()).into();
                assert_eq!(ask(&lab.client, to).expect("TCP"), backend.name());
                assert_eq!(udp_ask(&lab.client, to).expect("UDP"), backend.name());
            }
        }
    });
}

#[test]
fn a_killed_backend_refuses_and_a_blackholed_one_is_silent() {
    in_a_sandbox(|lab| {
        lab.add_backends(&["a"]);
        let backend = &mut lab.backends[0];
        let to = backend.direct();
        backend.kill();
        let error = ask(&lab.client, to).expect_err("it is dead");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        backend.restart();
        assert_eq!(ask(&lab.client, to).expect("it is back"), "a");
        backend.blackhole();
        let reached = lab
            .client
            .enter(|| std::net::TcpStream::connect_timeout(&to, Duration::from_millis(300)));
        assert_eq!(
            reached.expect_err("silence").kind(),
            std::io::ErrorKind::TimedOut
        );
        backend.heal();
        assert_eq!(ask(&lab.client, to).expect("it is back"), "a");
    });
}

#[test]
fn the_pattern_notices_a_lost_byte() {
    let mut bytes = Vec::new();
    send_pattern(&mut bytes, 3_000_000).expect("writing to memory");
    assert_eq!(
        verify_pattern(&mut bytes.as_slice(), None).expect("as sent"),
        3_000_000
    );
    bytes.remove(2_000_000);
    assert!(verify_pattern(&mut bytes.as_slice(), None).is_err());
}
