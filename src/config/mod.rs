//! Values that users set, in kube-proxy's notations.

pub mod duration;
pub mod port_range;
