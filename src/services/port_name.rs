//! The name of a ServicePort.

use std::{fmt, ops::Deref, sync::Arc};

use net::{Family, Protocol};

use super::{ServiceName, service::Port};

/// Identity of a ServicePort. Prints as kube-proxy prints it
/// (`namespace/name:port`, without the colon for an unnamed port).
///
/// Clones share the parts: several tables of each mode use the name as their key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortName(Arc<NameParts>);

/// The parts of a [`ServicePortName`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameParts {
    /// The Service that the port belongs to.
    pub service: ServiceName,
    /// Name of the port; empty for a Service's only, unnamed port.
    pub port: Arc<str>,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// Family of the addresses.
    pub family: Family,
}

impl ServicePortName {
    /// Names the ServicePort of `port` of the Service `service` in `family`.
    pub fn new(service: &ServiceName, port: &Port, family: Family) -> ServicePortName {
        let parts = NameParts {
            service: service.clone(),
            port: Arc::clone(&port.name),
            protocol: port.protocol,
            family,
        };
        parts.into()
    }

    /// Names the ServicePort of the same port in `family`.
    pub fn in_family(&self, family: Family) -> ServicePortName {
        if family == self.family {
            return self.clone();
        }
        let parts = NameParts::clone(self);
        NameParts { family, ..parts }.into()
    }
}

#[cfg(test)]
impl ServicePortName {
    /// Names the same port over `protocol`.
    pub fn over(&self, protocol: Protocol) -> ServicePortName {
        let parts = NameParts::clone(self);
        NameParts { protocol, ..parts }.into()
    }

    /// Names the port `port` of the same Service.
    pub fn of_port(&self, port: &str) -> ServicePortName {
        let (parts, port) = (NameParts::clone(self), port.into());
        NameParts { port, ..parts }.into()
    }
}

impl From<NameParts> for ServicePortName {
    fn from(parts: NameParts) -> ServicePortName {
        ServicePortName(Arc::new(parts))
    }
}

impl Deref for ServicePortName {
    type Target = NameParts;

    fn deref(&self) -> &NameParts {
        &self.0
    }
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.service)?;
        if !self.port.is_empty() {
            write!(f, ":{}", self.port)?;
        }
        Ok(())
    }
}
