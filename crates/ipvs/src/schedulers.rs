//! Which schedulers this kernel has: known only from trying them.

use net::Protocol;
use netlink::Error;
use nix::errno::Errno;

use super::{Ipvs, ServerId, VirtualServer};

/// The longest name of a scheduler in bytes (`IP_VS_SCHEDNAME_MAXLEN` of
/// `linux/ip_vs.h`, without the NUL).
pub const LONGEST_SCHEDULER_NAME: usize = 15;

/// The schedulers of the kernel (`net/netfilter/ipvs/Kconfig`). The kernel loads the module
/// `ip_vs_NAME` for any name, and not all such modules are schedulers: `ip_vs_ftp` is not.
pub const SCHEDULERS: [&str; 14] = [
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "fo", "ovf", "mh", "twos",
];

/// The virtual server that a scheduler is tried with, at an address that no host
/// has (RFC 5737).
fn trial() -> ServerId {
    ServerId {
        protocol: Protocol::Tcp,
        address: ([192, 0, 2, 1], 1).into(),
    }
}

impl ServerId {
    /// Returns true for the virtual server that schedulers are tried with.
    pub fn is_trial(&self) -> bool {
        *self == trial()
    }
}

impl Ipvs {
    /// Returns why this kernel lacks the scheduler `name`, or `None` if it has
    /// it: a virtual server with it is added, and deleted again.
    ///
    /// # Errors
    /// When the answer says nothing about the name.
    pub fn try_scheduler(&mut self, name: &str) -> Result<Option<Error>, Error> {
        let server = VirtualServer::new(trial(), name.to_owned());
        if name.is_empty() || name.len() > LONGEST_SCHEDULER_NAME {
            let error = Error::new("use", format!("scheduler {name:?}"), Errno::EINVAL);
            let hint = format!("a name has 1 to {LONGEST_SCHEDULER_NAME} bytes");
            return Ok(Some(error.hinted(hint)));
        }
        let mut outcome = self.add(&server);
        if let Err(error) = &outcome
            && error.errno() == Some(Errno::EEXIST)
            && self.remove_trial()?
        {
            outcome = self.add(&server);
        }
        match outcome {
            Ok(()) => self.delete(&server.id).map(|()| None),
            Err(error) if is_about_the_name(&error) => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }

    /// Deletes the virtual server that [`Ipvs::try_scheduler`] leaves behind if the
    /// process is killed meanwhile. One with real servers belongs to another program,
    /// and stays. Returns true if none is left.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove_trial(&mut self) -> Result<bool, Error> {
        let reals = match self.list_real(&trial()) {
            Err(error) if super::client::is_gone(&error) => return Ok(true),
            reals => reals?,
        };
        if !reals.is_empty() {
            return Ok(false);
        }
        self.delete(&trial()).map(|()| true)
    }
}

/// True for the errors with which the kernel refuses a scheduler that it does not have, or a name
/// that no scheduler can have (`ip_vs_add_service` in `net/netfilter/ipvs/ip_vs_ctl.c`, and the
/// checks of attributes before it).
fn is_about_the_name(error: &Error) -> bool {
    error.is_refused()
        && matches!(
            error.errno(),
            Some(Errno::ENOENT | Errno::EINVAL | Errno::ERANGE | Errno::ENAMETOOLONG)
        )
}
