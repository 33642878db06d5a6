//! Files of manifests, up to the plan of each mode.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| tripod::start::fuzz::manifests(text));
