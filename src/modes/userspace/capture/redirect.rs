//! nat rules.

use ipnet::IpNet;

use super::{Error, Frontend, Report, Want};
use crate::services::IpFamily;

/// On which of the node's addresses node ports answer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum NodePortAddresses {
    /// All of them.
    #[default]
    All,
    /// Those within one of these networks.
    Within(Vec<IpNet>),
}

/// Captures by nat rules.
pub struct Redirect {}

impl Redirect {
    /// For these families.
    ///
    /// # Errors
    /// When no iptables works.
    pub async fn new(
        _families: &[IpFamily],
        _node_ports: NodePortAddresses,
    ) -> Result<Redirect, Error> {
        Ok(Redirect {})
    }

    /// Makes the kernel capture what is wanted.
    ///
    /// # Errors
    /// When the kernel refused.
    pub async fn sync(
        &mut self,
        _want: &Want,
        _changed: Option<&[Frontend]>,
    ) -> Result<Report, Error> {
        Ok(Report::default())
    }

    /// Removes everything.
    ///
    /// # Errors
    /// When something could not be removed.
    pub async fn cleanup() -> Result<(), Error> {
        Ok(())
    }
}
