//! The output of `iptables-save`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| tripod::kernel::tests::fuzz::saved_tables(text));
