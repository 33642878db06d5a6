//! The socket to IPVS: requests and their outcomes.

use std::time::Duration;

use net::Family;
use netlink::{Error, Protocol, Socket, modules, passing::is_passing_io};
use nix::errno::Errno;

use super::{
    Change, ListedReal, ServerId, TableReal, Totals, VirtualServer, decode, encode, table::Table,
};

/// The name of the generic netlink family (`IPVS_GENL_NAME`).
const NAME: &str = "IPVS";
const MODULE: &str = "ip_vs";

// Attributes of GET_CONFIG and SET_CONFIG (`IPVS_CMD_ATTR_TIMEOUT_*`).
const TIMEOUT_TCP: u16 = 4;
const TIMEOUT_TCP_FIN: u16 = 5;
const TIMEOUT_UDP: u16 = 6;

/// How long connections live without packets; in whole seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout of established TCP connections.
    pub tcp: Duration,
    /// Timeout of TCP connections after a FIN.
    pub tcp_fin: Duration,
    /// Timeout of UDP flows without a further packet.
    pub udp: Duration,
}

/// IPVS of one network namespace.
pub struct Ipvs {
    socket: Socket,
    /// The number of IPVS's generic netlink family, which is another one each
    /// time that the module is loaded.
    family: u16,
    /// `None` where the kernel shows no such file.
    table: Option<Table>,
    /// The answer of the next [`Ipvs::was_loaded_again`].
    loaded_anew: bool,
}

impl Ipvs {
    /// Opens IPVS; where the kernel does not know it, its module is loaded.
    ///
    /// # Errors
    /// When this kernel has no IPVS and cannot load it.
    pub fn open() -> Result<Ipvs, Error> {
        let mut socket = Socket::open(Protocol::Generic)?;
        let family = find_family(&mut socket)?;
        Ok(Ipvs {
            socket,
            family,
            table: Table::open().ok(),
            loaded_anew: false,
        })
    }

    /// Returns true, once, after the module of IPVS was unloaded and loaded
    /// again while this was open: its virtual servers and settings are gone.
    ///
    /// # Errors
    /// When the module is not loaded and cannot be.
    pub fn was_loaded_again(&mut self) -> Result<bool, Error> {
        self.find_again()?;
        Ok(std::mem::take(&mut self.loaded_anew))
    }

    /// Looks up the number of the family again. Returns true if it is another
    /// one now.
    fn find_again(&mut self) -> Result<bool, Error> {
        let family = find_family(&mut self.socket)?;
        if family == self.family {
            return Ok(false);
        }
        self.family = family;
        // The file of a module that is gone cannot be read any more.
        self.table = Table::open().ok();
        self.loaded_anew = true;
        Ok(true)
    }

    /// Calls `ask` with the socket and the number of the family, and again if the number was out of
    /// date.
    fn ask<T>(
        &mut self,
        mut ask: impl FnMut(&mut Socket, u16) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match ask(&mut self.socket, self.family) {
            Err(error) if may_be_out_of_date(&error) && self.find_again()? => {
                ask(&mut self.socket, self.family)
            }
            outcome => outcome,
        }
    }

    /// Asks IPVS something that takes the privileges that changes take.
    ///
    /// # Errors
    /// When the kernel refuses, as without `CAP_NET_ADMIN`.
    pub fn check(&mut self) -> Result<(), Error> {
        self.ask(|socket, family| {
            let object = "the version of IPVS";
            let request = encode::request(family, encode::GET_INFO, "read", object);
            socket.acknowledge(&request)
        })
    }

    /// Sets the timeouts; one of zero stays as it is.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        if *timeouts == Timeouts::default() {
            return Ok(());
        }
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        self.ask(|socket, family| {
            let object = "the timeouts of IPVS";
            let request = encode::request(family, encode::SET_CONFIG, "set", object)
                .u32(TIMEOUT_TCP, seconds(timeouts.tcp))
                .u32(TIMEOUT_TCP_FIN, seconds(timeouts.tcp_fin))
                .u32(TIMEOUT_UDP, seconds(timeouts.udp));
            socket.acknowledge(&request)
        })
    }

    /// Returns all virtual servers, except those that a firewall mark identifies.
    ///
    /// # Errors
    /// When the kernel refuses or its answer cannot be read.
    pub fn list(&mut self) -> Result<Vec<VirtualServer>, Error> {
        self.ask(|socket, family| {
            let request = encode::request(family, encode::GET_SERVICE, "list", "virtual servers");
            socket.dump(&request, |message| decode::server(&message))
        })
    }

    /// Returns the real servers of a virtual server.
    ///
    /// # Errors
    /// When there is no such virtual server, the kernel refuses or its answer
    /// cannot be read.
    pub fn list_real(&mut self, id: &ServerId) -> Result<Vec<ListedReal>, Error> {
        let of_server = Family::of(&id.address.ip());
        self.ask(|socket, family| {
            let request = encode::list_real(family, id);
            socket.dump(&request, |message| decode::real(&message, of_server))
        })
    }

    /// Traffic of a virtual server since it was created; `None` before Linux 4.1, which does not
    /// report it.
    ///
    /// # Errors
    /// When there is no such virtual server, the kernel refuses or its answer
    /// cannot be read.
    pub fn totals(&mut self, id: &ServerId) -> Result<Option<Totals>, Error> {
        self.ask(|socket, family| {
            let request = encode::get(family, id);
            let answers = socket.call(&request, |message| decode::server_totals(&message))?;
            Ok(answers.into_iter().next())
        })
    }

    /// Shows each virtual server with its real servers, at a hundredth of the cost of
    /// [`Ipvs::list_real`] for each, but without thresholds and wrapping; if one is
    /// added or deleted meanwhile, others may be missed.
    ///
    /// # Errors
    /// Where the kernel shows no `/proc/net/ip_vs`, or it cannot be read.
    pub fn each(&mut self, visit: impl FnMut(ServerId, &[TableReal])) -> std::io::Result<()> {
        match &mut self.table {
            Some(table) => table.read(visit),
            None => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    /// Makes `changes`, many in one datagram, and returns the outcome of each. They are made in
    /// order, and a refused one does not stop those after it. Adding an object that exists is
    /// refused with `EEXIST`; deleting one that does not exist succeeds.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn apply(&mut self, changes: &[Change]) -> Result<Vec<Result<(), Error>>, Error> {
        let mut outcomes = self.batch(changes)?;
        let mut refused = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        // For a family that is gone, the kernel made none of the changes.
        if refused.any(may_be_out_of_date) && self.find_again()? {
            outcomes = self.batch(changes)?;
        }
        Ok(changes
            .iter()
            .zip(outcomes)
            .map(|(change, outcome)| match outcome {
                Err(error) if is_gone(&error) && is_removal(change) => Ok(()),
                Err(error) => Err(explained(error, change)),
                Ok(()) => Ok(()),
            })
            .collect())
    }

    fn batch(&mut self, changes: &[Change]) -> Result<Vec<Result<(), Error>>, Error> {
        let requests: Vec<_> = changes
            .iter()
            .map(|change| encode::change(self.family, change))
            .collect();
        self.socket.batch(&requests, &[])
    }

    fn make(&mut self, change: Change) -> Result<(), Error> {
        self.apply(&[change])?.into_iter().collect()
    }

    /// Adds a virtual server. A scheduler that is not loaded is loaded by the
    /// kernel.
    ///
    /// # Errors
    /// When it is there already, or its scheduler is missing.
    pub fn add(&mut self, server: &VirtualServer) -> Result<(), Error> {
        self.make(Change::Add(server.clone()))
    }

    /// Deletes a virtual server; one that does not exist is no error.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn delete(&mut self, id: &ServerId) -> Result<(), Error> {
        self.make(Change::Delete(*id))
    }
}

/// Finds the number of IPVS's generic netlink family; loads its module where the kernel does not
/// know the family.
///
/// # Errors
/// When this kernel has no IPVS and cannot load it.
fn find_family(socket: &mut Socket) -> Result<u16, Error> {
    match socket.family(NAME) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => {}
        found => return found,
    }
    let loaded = modules::load(MODULE);
    socket.family(NAME).map_err(|_| {
        let errno = match &loaded {
            // Where modprobe could not be run, that is the reason.
            Err(modules::Error::Run { source, .. }) if is_passing_io(source) => {
                source.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw)
            }
            _ => Errno::ENOENT,
        };
        let hint = match loaded {
            Ok(()) => format!("module {MODULE} is loaded but provides no IPVS"),
            Err(why) => format!("kernel without IPVS: {why}"),
        };
        Error::new("find", format!("generic netlink family {NAME}"), errno).hinted(hint)
    })
}

/// True for the errors with which the kernel refuses a family number that no family has (`ENOENT`),
/// or that another family has got since. It gives the same errors for many other reasons.
fn may_be_out_of_date(error: &Error) -> bool {
    error.is_refused()
        && matches!(
            error.errno(),
            Some(Errno::ENOENT | Errno::EINVAL | Errno::EOPNOTSUPP)
        )
}

/// Returns whether this is the error for a virtual server (`ESRCH`), a real server or a scheduler
/// (`ENOENT`) that does not exist.
pub fn is_gone(error: &Error) -> bool {
    matches!(error.errno(), Some(Errno::ESRCH | Errno::ENOENT))
}

fn is_removal(change: &Change) -> bool {
    matches!(change, Change::Delete(_) | Change::DeleteReal(..))
}

/// Adds the meaning of the error's number in IPVS (`net/netfilter/ipvs/ip_vs_ctl.c`).
fn explained(error: Error, change: &Change) -> Error {
    error.explained(|errno, _| match (errno, change) {
        (Errno::ENOENT, Change::Add(server) | Change::Edit(server)) => Some(format!(
            "this kernel has no such scheduler; it is in module ip_vs_{}",
            server.scheduler
        )),
        (Errno::ESRCH, Change::AddReal(..) | Change::EditReal(..) | Change::Edit(_)) => {
            Some("there is no such virtual server".to_owned())
        }
        (Errno::ENOENT, Change::EditReal(..)) => Some("there is no such real server".to_owned()),
        // The checks of `ip_vs_new_dest`.
        (Errno::EINVAL, Change::AddReal(..) | Change::EditReal(..)) => Some(
            "its address is not that of a host (multicast, broadcast, another family), or no \
             interface of this network namespace is up yet"
                .to_owned(),
        ),
        (Errno::EPROTONOSUPPORT, _) => {
            Some("this kernel's IPVS was built without the protocol".to_owned())
        }
        (Errno::EAFNOSUPPORT, _) => Some("this kernel's IPVS was built without IPv6".to_owned()),
        (Errno::EPERM, _) => Some("it needs CAP_NET_ADMIN".to_owned()),
        _ => None,
    })
}
