//! Messages from one process to the next: the records of the holder, the assignments of clients to
//! endpoints, and the messages during a takeover.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tripod::hold::read_anything(bytes);
    tripod::modes::userspace::read_anything(bytes);
});
