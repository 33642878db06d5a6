//! Lists and watches of an API server.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tripod::watch::api::read_anything(bytes));
