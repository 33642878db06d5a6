//! The socket to ipset: sets as a whole. Their members are in `members`.

use std::collections::HashMap;

use net::Family;
use netlink::{Error, Malformed, Message, Protocol, Reason, Request, Socket, netfilter_kind};
use nix::{errno::Errno, libc};

use super::{Element, Kind, LONGEST_NAME, Listed, Set};

// Commands (`IPSET_CMD_*`).
const GET_PROTOCOL: u16 = 1;
const CREATE: u16 = 2;
const DESTROY: u16 = 3;
const SWAP: u16 = 6;
const LIST: u16 = 7;
const TYPE: u16 = 13;
// Attributes of commands (`IPSET_ATTR_*`).
const PROTOCOL: u16 = 1;
pub(super) const NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
const NAME2: u16 = 3;
const REVISION: u16 = 4;
const FAMILY: u16 = 5;
const FLAGS: u16 = 6;
pub(super) const DATA: u16 = 7;
pub(super) const ADT: u16 = 8;
// Attributes of a set when it is created (`IPSET_ATTR_*`).
const PORT_FROM: u16 = 4;
const PORT_TO: u16 = 5;
const HASH_SIZE: u16 = 18;
const MAX_MEMBERS: u16 = 19;
/// `IPSET_ATTR_REVISION_MIN`, of the answer that describes a kind.
const OLDEST_REVISION: u16 = 10;
const ELEMENTS: u16 = 24;
const REFERENCES: u16 = 25;
/// `IPSET_PROTOCOL` of Linux 4.18 to now; kernels before 5.0 speak 6 only.
const VERSIONS: [u8; 2] = [7, 6];
/// Asks for sets without their members (`IPSET_FLAG_LIST_HEADER`).
const LIST_HEADER: u32 = 1 << 2;
/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;
/// The sets of one network namespace.
pub struct IpSets {
    pub(super) socket: Socket,
    version: u8,
    /// The revision of each kind that sets are created with.
    revisions: HashMap<(Kind, u8), u8>,
}

impl IpSets {
    /// Opens the sets of the calling thread's network namespace.
    ///
    /// # Errors
    /// When this kernel has no ipset, or without `CAP_NET_ADMIN`.
    pub fn open() -> Result<IpSets, Error> {
        let mut sets = IpSets {
            socket: Socket::open(Protocol::Netfilter)?,
            version: VERSIONS[0],
            revisions: HashMap::new(),
        };
        sets.socket.explain(private);
        // The kernel refuses a version that it does not speak; both versions are the same for the
        // requests made here.
        let request = |version| {
            let kind = netfilter_kind(libc::NFNL_SUBSYS_IPSET, GET_PROTOCOL.into());
            Request::new(kind, 0, "use", "ipset")
                .nfgenmsg(libc::AF_INET as u8)
                .attribute(PROTOCOL, &[version])
        };
        let mut outcome = Ok(());
        for version in VERSIONS {
            sets.version = version;
            outcome = sets.acknowledge(&request(version));
            if outcome.is_ok() {
                break;
            }
        }
        outcome.map(|()| sets)
    }

    pub(super) fn request(
        &self,
        command: u16,
        family: u8,
        flags: i32,
        operation: &'static str,
        object: impl Into<String>,
    ) -> Request {
        let kind = netfilter_kind(libc::NFNL_SUBSYS_IPSET, command.into());
        Request::new(kind, flags as u16, operation, object)
            .nfgenmsg(family)
            .attribute(PROTOCOL, &[self.version])
    }

    /// A request about the set of that name.
    fn named(&self, command: u16, operation: &'static str, name: &str) -> Request {
        let family = libc::AF_INET as u8;
        self.request(command, family, 0, operation, format!("set {name}"))
            .text(NAME, name)
    }

    fn acknowledge(&mut self, request: &Request) -> Result<(), Error> {
        self.socket.acknowledge(request).map_err(explained)
    }

    /// Chooses the revision to create sets of that kind with: the oldest one that the kernel has
    /// and that can do all that Tripod needs. A program `ipset` older than the revision of a set
    /// cannot list that set, nor any set when it lists all, and network plugins run such programs
    /// from their own images.
    fn revision(&mut self, set: &Set) -> Result<u8, Error> {
        let family = set.family_number();
        if let Some(known) = self.revisions.get(&(set.kind, family)) {
            return Ok(*known);
        }
        let object = format!("ipset kind {}", set.kind);
        let request = self
            .request(TYPE, family, 0, "use", object)
            .text(TYPE_NAME, set.kind.name())
            .attribute(FAMILY, &[family]);
        let range = self.socket.call(&request, |message| {
            let (mut oldest, mut newest) = (0, 0);
            for attribute in message.attributes(HEADER) {
                let attribute = attribute?;
                match attribute.kind {
                    REVISION => newest = attribute.u8()?,
                    OLDEST_REVISION => oldest = attribute.u8()?,
                    _ => {}
                }
            }
            Ok(Some((oldest, newest)))
        });
        let range = range.map_err(explained)?.into_iter().next();
        let (oldest, newest) = range.unwrap_or_default();
        let revision = set.kind.revision().max(oldest).min(newest);
        self.revisions.insert((set.kind, family), revision);
        Ok(revision)
    }

    /// Creates a set; an equal one that exists is no error.
    ///
    /// # Errors
    /// When the kernel has no such kind, a set of that name is of another kind,
    /// or the name is too long.
    pub fn create(&mut self, set: &Set) -> Result<(), Error> {
        let object = format!("set {}", set.name);
        if set.name.len() > LONGEST_NAME {
            let error = Error::new("create", object, Errno::ENAMETOOLONG);
            return Err(error.hinted(format!("a name has at most {LONGEST_NAME} characters")));
        }
        let revision = self.revision(set)?;
        let family = set.family_number();
        let flags = libc::NLM_F_CREATE;
        let request = self
            .request(CREATE, family, flags, "create", object)
            .text(NAME, &set.name)
            .text(TYPE_NAME, set.kind.name())
            .attribute(REVISION, &[revision])
            .attribute(FAMILY, &[family])
            .nested(DATA, |data| match set.kind {
                Kind::Port => data
                    .attribute(big_endian(PORT_FROM), &0u16.to_be_bytes())
                    .attribute(big_endian(PORT_TO), &u16::MAX.to_be_bytes()),
                _ => data
                    .be32(big_endian(HASH_SIZE), set.hash_size)
                    .be32(big_endian(MAX_MEMBERS), set.max_members),
            });
        self.acknowledge(&request)
    }

    /// Destroys the set of that name; one that does not exist is no error.
    ///
    /// # Errors
    /// When rules still refer to it.
    pub fn destroy(&mut self, name: &str) -> Result<(), Error> {
        match self.acknowledge(&self.named(DESTROY, "destroy", name)) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            outcome => outcome,
        }
    }

    /// Exchanges the members of two sets of one kind, at once.
    ///
    /// # Errors
    /// When one is missing or they are of different kinds.
    pub fn swap(&mut self, one: &str, other: &str) -> Result<(), Error> {
        self.acknowledge(&self.named(SWAP, "swap", one).text(NAME2, other))
    }

    /// Returns all sets, without their members.
    ///
    /// # Errors
    /// When the kernel refuses or its answer cannot be read.
    pub fn list(&mut self) -> Result<Vec<Listed>, Error> {
        let request = self
            .request(LIST, libc::AF_INET as u8, 0, "list", "sets")
            .be32(big_endian(FLAGS), LIST_HEADER);
        self.socket
            .dump(&request, |message| listed(&message))
            .map_err(explained)
    }

    /// Lists the members of the set of that name.
    ///
    /// # Errors
    /// When there is none, or its members are of a kind unknown here.
    pub fn members(&mut self, name: &str) -> Result<Vec<Element>, Error> {
        let request = self.named(LIST, "list", name);
        // The first message of several has the kind.
        let mut kind = String::new();
        let parts = self
            .socket
            .dump(&request, |message| members(&message, &mut kind).map(Some))
            .map_err(explained)?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Lists the members of the set of that name; none if there is no such set.
    ///
    /// # Errors
    /// When the members are of a kind unknown here, or the kernel refuses.
    pub fn members_if_there(&mut self, name: &str) -> Result<Vec<Element>, Error> {
        match self.members(name) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(Vec::new()),
            members => members,
        }
    }
}

/// The kernel expects numbers in network order, and attributes flagged so.
pub(super) const fn big_endian(attribute: u16) -> u16 {
    attribute | libc::NLA_F_NET_BYTEORDER as u16
}

/// Reads a set's header from a listing; `None` for a set whose name or kind is no UTF-8, which is
/// another program's: the kernel takes any bytes.
pub fn listed(message: &Message<'_>) -> Result<Option<Listed>, Malformed> {
    let mut set = Listed {
        name: String::new(),
        kind: String::new(),
        family: None,
        max_members: 0,
        references: 0,
        members: None,
    };
    for attribute in message.attributes(HEADER) {
        let attribute = attribute?;
        match attribute.kind {
            NAME | TYPE_NAME => {
                let Ok(text) = attribute.text() else {
                    return Ok(None);
                };
                let of_set = match attribute.kind {
                    NAME => &mut set.name,
                    _ => &mut set.kind,
                };
                text.clone_into(of_set);
            }
            FAMILY => set.family = Family::from_number(attribute.u8()?),
            DATA => {
                for inner in attribute.nested() {
                    let inner = inner?;
                    match inner.kind {
                        MAX_MEMBERS => set.max_members = u32::from_be(inner.u32()?),
                        ELEMENTS => set.members = Some(u32::from_be(inner.u32()?)),
                        REFERENCES => set.references = u32::from_be(inner.u32()?),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    // A set that spans several messages is in each of them, without its kind.
    Ok((!set.kind.is_empty()).then_some(set))
}

/// Reads the members in one message of a listing.
pub fn members(message: &Message<'_>, kind: &mut String) -> Result<Vec<Element>, Malformed> {
    let mut found = Vec::new();
    for attribute in message.attributes(HEADER) {
        let attribute = attribute?;
        match attribute.kind {
            TYPE_NAME => attribute.text()?.clone_into(kind),
            ADT => {
                for member in attribute.nested() {
                    found.extend(Element::read(kind, member?.nested())?);
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Message of a set that takes no more members (`IPSET_ERR_HASH_FULL`).
const FULL: &str = "the set is full: all its members (maxelem) are there";

/// Returns true if the kernel refused a member for lack of room, in the set or in memory: it would
/// refuse any other, too.
pub(super) fn is_for_want_of_room(error: &Error) -> bool {
    match error.reason() {
        Reason::Refused { errno, hint } => *errno == Errno::ENOMEM || hint.as_deref() == Some(FULL),
        _ => false,
    }
}

/// Meaning of ipset's own error numbers (`enum ipset_errno`; from 4352 on those of the set kinds:
/// here `linux/netfilter/ipset/ip_set_hash.h`, because a bitmap of all ports refuses none).
fn private(number: i32) -> Option<&'static str> {
    Some(match number {
        4097 => "kernel and Tripod have no version of ipset in common",
        4098 => "this kernel does not know the kind: modules ip_set_hash_* and ip_set_bitmap_*",
        4099 => "the kernel takes no more sets (max_sets of module ip_set)",
        4100 | 4108 => "a rule or another set uses it",
        4101 => "a set of that name exists",
        4102 => "it is of another kind",
        4103 => "it is there already",
        4104 => "its prefix is invalid",
        4106 => "its addresses are of the other family",
        4109 => "its address is not IPv4, as the set's are",
        4110 => "its address is not IPv6, as the set's are",
        4352 => FULL,
        4353 => "the set cannot have such a member",
        4354 | 4355 => "its protocol has no ports, or is missing",
        4356 | 4357 => "it is a range, which the set does not take",
        _ => return None,
    })
}

/// Adds the meaning that the system's error numbers have in ipset.
pub(super) fn explained(error: Error) -> Error {
    error.explained(|errno, operation| {
        let meaning = match (errno, operation) {
            (Errno::EINVAL, "use") => "this kernel has no ipset: module ip_set",
            (Errno::EEXIST, "create") => "a set of that name and of another kind exists",
            (Errno::EPERM, _) => "it needs CAP_NET_ADMIN",
            _ => return None,
        };
        Some(meaning.to_owned())
    })
}
