//! The rules of one ServicePort.

use super::{Options, ServiceRules};
use crate::services::ServicePort;

/// The rules of one ServicePort of the options' family.
pub fn service_port(_port: &ServicePort, _options: &Options) -> ServiceRules {
    ServiceRules::default()
}
