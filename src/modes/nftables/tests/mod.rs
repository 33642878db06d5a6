//! Tests of nftables mode.

mod hashed;
mod increments;
mod instructions;
mod kernel;
mod model;
mod random;
mod world;

use std::io;

use super::log_read;
use crate::{log::lines, log_once::LogOnce};

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
