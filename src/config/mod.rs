//! kube-proxy's configuration: `KubeProxyConfiguration` v1alpha1 with its defaults and
//! checks, and the notations in which its values are written.
//!
//! A file is [decoded](decode) into a [`KubeProxyConfiguration`], which flags
//! may change (`crate::cli`), and which is then made into [`Effective`] values;
//! everything that is wrong with it is reported at once.

pub mod bind;
mod check;
pub mod decode;
mod detect_local;
mod effective;
mod encode;
mod gates;
mod kube_proxy;
mod mode_name;
mod node_port_addresses;
pub mod notation;
pub mod port_range;
mod problem;
pub mod quantity;
mod section;
mod tree;
mod watch_file;
mod without_effect;

pub use check::{Checked, check};
pub use detect_local::DetectLocal;
pub use effective::Effective;
pub use gates::FeatureGate;
pub use kube_proxy::{
    ClientConnection, Conntrack, Detect, Iptables, Ipvs, KubeProxyConfiguration, LogOptions,
    Logging, Nftables, StreamOptions, VmoduleItem, Winkernel,
};
pub use mode_name::ModeName;
pub use node_port_addresses::NodePortAddresses;
pub use problem::Problem;
pub use watch_file::{ConfigFile, watch_file};
pub use without_effect::fields_without_effect;
