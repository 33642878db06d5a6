//! Counters of packets by name.

use std::collections::BTreeSet;

use netlink::{Message, netfilter_kind};
use nix::{errno::Errno, libc};

/// `NFNL_MSG_ACCT_NEW`.
pub const NEW: u16 = netfilter_kind(libc::NFNL_SUBSYS_ACCT, 0);
/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;
/// `NFACCT_NAME` of `linux/netfilter/nfnetlink_acct.h`.
const NAME: u16 = 1;

/// Counters of packets by name.
#[derive(Clone, Default)]
pub struct Accounts(BTreeSet<String>);

impl Accounts {
    /// Returns true if there is a counter of that name.
    pub(super) fn contain(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Carries a request out.
    pub(super) fn change(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        let mut attributes = message.attributes(HEADER).flatten();
        let name = attributes.find(|attribute| attribute.kind == NAME);
        let name = name.and_then(|name| name.text().ok());
        let name = name.ok_or(Errno::EINVAL)?;
        if message.kind != NEW {
            return Err(Errno::EOPNOTSUPP);
        }
        if !self.0.insert(name.to_owned()) {
            return Err(Errno::EEXIST);
        }
        Ok(())
    }
}
