//! Tests of nftables mode.

mod hashed;
mod increments;
mod instructions;
mod kernel;
mod model;
mod random;
mod world;

use std::io;

use net::{Family, Protocol};

use super::{
    log_read,
    plan::{Features, Options},
};
use crate::{
    log::lines, log_once::LogOnce, modes::detect_local::DetectLocal, services::Namespaces,
};

impl Options {
    /// Returns the options where nothing is configured.
    fn usual(family: Family) -> Options {
        Options {
            family,
            detect_local: DetectLocal::Unknown,
            node_ip: None,
            masquerade_all: false,
            masquerade_mark: 0x4000,
            node_ports: None,
            service_cidrs: Vec::new(),
            tcp_be_liberal: false,
            counted: Namespaces::default(),
            features: Features::all(),
            node_addresses: Vec::new(),
            refused_on_loopback: vec![Protocol::Udp, Protocol::Sctp],
            delivers: false,
        }
    }
}

#[test]
fn notifications_that_cannot_be_read_are_logged_once_and_when_they_can() {
    let error = io::Error::from(io::ErrorKind::OutOfMemory);
    let log = lines(0, || {
        let mut logged = LogOnce::default();
        for error in [None, Some(&error), Some(&error), None, None] {
            log_read(&mut logged, error);
        }
    });
    let [failed, over] = &log[..] else {
        panic!("{log:#?}");
    };
    assert!(failed.contains("restart Tripod"), "{failed}");
    assert!(over.contains("can be read again"), "{over}");
}
