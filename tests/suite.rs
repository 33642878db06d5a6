//! Tests of the program as users meet it: real namespaces, real sockets, the real binary. `lab` is
//! the laboratory; the other modules are the tests.

#[macro_use]
mod lab;
mod api;
mod architecture;
mod ask;
mod conformance;
mod deploy;
mod docs;
mod faults;
mod iptables;
mod ipvs;
mod live;
mod modes;
mod mutants;
mod nftables;
mod test;
mod userspace;
