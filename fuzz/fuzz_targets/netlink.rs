//! Datagrams of the kernel, and the answers of each subsystem.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tripod::kernel::tests::fuzz::netlink(bytes));
