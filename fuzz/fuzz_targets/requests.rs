//! Requests to the HTTP ports.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tripod::serve::read_anything(bytes);
});
