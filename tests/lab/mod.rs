//! The laboratory: a node, a client pod, backends and an outside host, each a
//! network namespace of its own.
//!
//! ```text
//!   outside 192.0.2.20 ──── 192.0.2.10 node 10.244.0.1 ──┬── client  10.244.0.9
//!          2001:db8::20   2001:db8::10      fd00:244::1  ├── a       10.244.0.11
//!                                                        ├── b       10.244.0.12
//!                                                        └── c       10.244.0.13
//! ```
//!
//! No interface has a service address: pods and the outside host send packets for it to
//! the node, where Tripod handles them.

mod backend;
mod browser;
mod call;
mod checks;
mod container;
pub mod guest;
mod host;
mod installed;
mod limits;
mod manifests;
mod memory;
mod netlink;
mod pattern;
mod process;
mod programs;
pub mod recorded;
mod sandbox;
mod service_ports;
mod topology;
mod tripod;
mod wait;

pub use backend::{Backend, answer_in};
pub use browser::Browser;
pub use call::{
    FirstByte, ask, ask_from_within, ask_within, bind_new, connect_from_new_port,
    none_gets_through, say, tcp, tcp_from, tcp_from_new_port, udp, udp_ask, udp_from, udp_say,
};
pub use container::{in_container, init_container};
pub use host::Host;
pub use installed::{is_installed, path_with_tools};
pub use limits::{limited, own_address, remark_on_limits};
pub use manifests::{BACKEND_PORT, EndpointChoice, Service};
pub use memory::{CgroupVersion, MemoryCgroup};
pub use netlink::Netlink;
pub use pattern::{Pattern, send_pattern, verify_pattern};
pub use process::{Group, die_with_parent};
pub use programs::{ProgramFault, Programs};
pub use sandbox::{SOAK_ENDS, acceptance, figure, is_inside, is_soak, run, soak_length};
pub use service_ports::{endpoint, endpoints, service_port};
pub use testing::skip;
pub use topology::{Capture, Lab};
pub use tripod::{Tripod, get, tripod_binary};
pub use wait::eventually;

/// Declares each named function, which takes `&mut Lab`, as two tests: one for each way
/// to capture traffic.
macro_rules! on_each_capture {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            #[test]
            fn redirect() { on_one_capture!(Redirect, super::$name); }
            #[test]
            fn local() { on_one_capture!(Local, super::$name); }
        }
    )+ };
}

/// Like [`on_each_capture`], for tests that make sense only with local capture.
macro_rules! on_local_capture {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            #[test]
            fn local() { on_one_capture!(Local, super::$name); }
        }
    )+ };
}

macro_rules! on_one_capture {
    ($capture:ident, $body:path) => {
        $crate::lab::run(|| $body(&mut $crate::lab::Lab::new($crate::lab::Capture::$capture)))
    };
}
