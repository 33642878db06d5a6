//! A ServiceCIDR object, reduced to what proxying needs.

use std::sync::Arc;

use ipnet::IpNet;
use net::address::parse_cidr;

use super::{
    invalid::{Inspection, Invalid, Reduced},
    names::Names,
    wire,
};

/// Networks from which cluster IPs are allocated (KEP-1880).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Name of the ServiceCIDR.
    pub name: Arc<str>,
    /// One network, or one of each family.
    pub networks: Box<[IpNet]>,
}

impl ServiceCidr {
    /// Reduces a ServiceCIDR of the API.
    ///
    /// # Errors
    /// When the ServiceCIDR has no name.
    pub fn reduce(
        object: &wire::ServiceCidr,
        names: &mut Names,
    ) -> Result<Reduced<ServiceCidr>, Invalid> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let mut inspection = Inspection::of("ServiceCIDR", name);
        if name.is_empty() {
            return Err(inspection.refuse("metadata.name", "", "an object needs a name"));
        }
        let spec = object.spec.as_ref();
        let listed = spec.and_then(|spec| spec.cidrs.as_deref());
        let mut networks = Vec::new();
        for (i, text) in listed.unwrap_or_default().iter().enumerate() {
            match parse_cidr(text) {
                Some(network) => networks.push(network),
                None => {
                    let field = format!("spec.cidrs[{i}]");
                    inspection.skip(field, text, "not a CIDR such as 10.96.0.0/12");
                }
            }
        }
        let object = ServiceCidr {
            name: names.share(name),
            networks: networks.into(),
        };
        Ok(inspection.finish(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, cidrs: &[&str]) -> wire::ServiceCidr {
        let object = serde_json::json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn networks_that_cannot_be_read_are_left_out() {
        let object = object("kubernetes", &["10.96.0.0/12", "ten", "fd00:10:96::/112"]);
        let reduced = ServiceCidr::reduce(&object, &mut Names::default()).unwrap();
        let networks = ["10.96.0.0/12", "fd00:10:96::/112"].map(|net| net.parse().unwrap());
        assert_eq!(*reduced.object.networks, networks);
        let warnings: Vec<String> = reduced.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings,
            ["ServiceCIDR kubernetes: spec.cidrs[1] is \"ten\": not a CIDR such as 10.96.0.0/12"]
        );
    }

    #[test]
    fn one_without_a_name_is_refused() {
        let refused = ServiceCidr::reduce(&object("", &[]), &mut Names::default());
        assert_eq!(refused.unwrap_err().field, "metadata.name");
    }
}
