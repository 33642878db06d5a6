//! What one process leaves to the next: the records of the holder, who had which endpoint, and
//! what they send each other while one takes over.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tripod::hold::read_anything(bytes);
    tripod::modes::userspace::read_anything(bytes);
    tripod::start::fuzz::handover(bytes);
});
