//! Requests to the ports that are served over HTTP.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tripod::serve::read_anything(bytes);
});
