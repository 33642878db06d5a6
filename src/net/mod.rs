//! The vocabulary that all other modules share. It knows none of them.

pub(crate) mod address;
mod detect_local;
mod family;
mod frontend;
mod mode_name;
mod node_port_addresses;
mod protocol;

pub use self::{
    detect_local::DetectLocal,
    family::{Family, PerFamily},
    frontend::Frontend,
    mode_name::ModeName,
    node_port_addresses::NodePortAddresses,
    protocol::Protocol,
};
