//! Files of manifests, to what each mode makes of them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| tripod::start::fuzz::manifests(text));
