//! Differences of the node from the desired state, in any mode.

use super::StatusApi;
use crate::{
    runner::question::{Difference, Found},
    services::ServiceName,
};

impl StatusApi {
    /// Returns the node's differences from the desired state: in settings of the kernel, and in
    /// listeners of health-check node ports; if a Service is given, only in those of that Service.
    pub(super) fn node_differences(&self, of: Option<&ServiceName>) -> Vec<Difference> {
        let settings = self.node_settings.iter().copied();
        let mut differences = Difference::of_settings(settings);
        let missing = self.health_listeners.missing().into_iter();
        let missing = missing.filter(|(service, _)| of.is_none_or(|of| of == service));
        differences.extend(missing.map(|(service, at)| {
            let object = format!("listener {at}/TCP, the health-check node port of {service}");
            Difference::new(None, object, Found::Missing)
        }));
        differences
    }
}
