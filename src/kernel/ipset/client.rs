//! The door itself.

use std::collections::HashMap;

use nix::{errno::Errno, libc};

use super::{Element, Kind, LONGEST_NAME, Listed, Set};
use crate::kernel::{
    Family,
    netlink::{Error, Malformed, Message, Protocol, Request, Socket},
};

/// `NFNL_SUBSYS_IPSET`
const SUBSYSTEM: u16 = 6;
// IPSET_CMD_*
const CREATE: u16 = 2;
const DESTROY: u16 = 3;
const FLUSH: u16 = 4;
const SWAP: u16 = 6;
const LIST: u16 = 7;
const ADD: u16 = 9;
const DEL: u16 = 10;
const TYPE: u16 = 13;
// IPSET_ATTR_* of commands
const PROTOCOL: u16 = 1;
const NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
const NAME2: u16 = 3;
const REVISION: u16 = 4;
const FAMILY: u16 = 5;
const FLAGS: u16 = 6;
const DATA: u16 = 7;
const ADT: u16 = 8;
const LINE: u16 = 9;
// IPSET_ATTR_* of creation
const PORT_FROM: u16 = 4;
const PORT_TO: u16 = 5;
const HASH_SIZE: u16 = 18;
const MAX_MEMBERS: u16 = 19;
const REFERENCES: u16 = 25;
/// `IPSET_PROTOCOL` of Linux 4.18 to now; kernels before 5.0 speak 6 only.
const VERSIONS: [u8; 2] = [7, 6];
/// `IPSET_FLAG_LIST_HEADER`
const LIST_HEADER: u32 = 1 << 2;
/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;
/// Members in one message: they stay below the size of a datagram.
const IN_A_MESSAGE: usize = 100;

/// The sets of one network namespace.
pub struct IpSets {
    socket: Socket,
    version: u8,
    /// The newest revision of each kind that the kernel has.
    revisions: HashMap<(Kind, u8), u8>,
}

impl IpSets {
    /// Opens them.
    ///
    /// # Errors
    /// When this kernel has no ipset, or for lack of `CAP_NET_ADMIN`.
    pub fn open() -> Result<IpSets, Error> {
        let mut sets = IpSets {
            socket: Socket::open(Protocol::Netfilter)?,
            version: VERSIONS[0],
            revisions: HashMap::new(),
        };
        // The kernel refuses a version that it does not speak; which it does
        // has no bearing on what is asked here.
        let request = |version| {
            let header = [libc::AF_INET as u8, 0, 0, 0];
            Request::new(SUBSYSTEM << 8 | 1, 0, "use", "ipset")
                .header(&header)
                .attribute(PROTOCOL, &[version])
        };
        let mut outcome = Ok(());
        for version in VERSIONS {
            sets.version = version;
            outcome = sets
                .socket
                .call(&request(version), |_| Ok(None::<()>))
                .map(drop)
                .map_err(explained);
            if outcome.is_ok() {
                break;
            }
        }
        outcome.map(|()| sets)
    }

    fn request(&self, command: u16, family: u8, flags: i32, what: &Words<'_>) -> Request {
        let object = format!("{}{}", what.object, what.name);
        Request::new(
            SUBSYSTEM << 8 | command,
            flags as u16,
            what.operation,
            object,
        )
        // struct nfgenmsg: family, version, a number that is 0 here.
        .header(&[family, 0, 0, 0])
        .attribute(PROTOCOL, &[self.version])
    }

    fn named(&self, command: u16, flags: i32, what: &Words<'_>) -> Request {
        self.request(command, libc::AF_INET as u8, flags, what)
            .text(NAME, what.name)
    }

    /// The newest revision of that kind that kernel and we speak. Beyond those
    /// that came with Linux 3.7, revisions add what nothing here asks for.
    fn revision(&mut self, set: &Set) -> Result<u8, Error> {
        let family = set.family_number();
        if let Some(known) = self.revisions.get(&(set.kind, family)) {
            return Ok(*known);
        }
        let words = Words {
            operation: "use",
            object: "ipset kind ",
            name: set.kind.name(),
        };
        let request = self
            .request(TYPE, family, 0, &words)
            .text(TYPE_NAME, set.kind.name())
            .attribute(FAMILY, &[family]);
        let newest = self.socket.call(&request, |message| {
            for attribute in message.attributes(HEADER) {
                let attribute = attribute?;
                if attribute.kind == REVISION {
                    return attribute.u8().map(Some);
                }
            }
            Ok(None)
        });
        let newest = newest.map_err(explained)?.into_iter().next().unwrap_or(0);
        self.revisions.insert((set.kind, family), newest);
        Ok(newest)
    }

    /// Creates a set; one that is there already, alike, is fine.
    ///
    /// # Errors
    /// When the kernel has no such kind, a set of that name is of another kind,
    /// or the name is too long.
    pub fn create(&mut self, set: &Set) -> Result<(), Error> {
        let words = Words {
            operation: "create",
            object: "set ",
            name: &set.name,
        };
        if set.name.len() > LONGEST_NAME {
            return Err(Error::Refused {
                operation: words.operation,
                object: format!("{}{}", words.object, words.name),
                errno: Errno::ENAMETOOLONG,
                hint: Some(format!("a name has at most {LONGEST_NAME} characters")),
            });
        }
        let revision = self.revision(set)?;
        let family = set.family_number();
        let flags = libc::NLM_F_CREATE;
        let big = |request: Request, kind: u16, value: u32| {
            let kind = kind | libc::NLA_F_NET_BYTEORDER as u16;
            request.attribute(kind, &value.to_be_bytes())
        };
        let port = |request: Request, kind: u16, value: u16| {
            let kind = kind | libc::NLA_F_NET_BYTEORDER as u16;
            request.attribute(kind, &value.to_be_bytes())
        };
        let request = self
            .request(CREATE, family, flags, &words)
            .text(NAME, &set.name)
            .text(TYPE_NAME, set.kind.name())
            .attribute(REVISION, &[revision])
            .attribute(FAMILY, &[family])
            .nested(DATA, |data| match set.kind {
                Kind::Port => port(port(data, PORT_FROM, 0), PORT_TO, u16::MAX),
                _ => big(
                    big(data, HASH_SIZE, set.hash_size),
                    MAX_MEMBERS,
                    set.max_members,
                ),
            });
        self.socket
            .call(&request, |_| Ok(None::<()>))
            .map(drop)
            .map_err(explained)
    }

    /// Destroys the set of that name; one that is gone already is fine.
    ///
    /// # Errors
    /// When rules still refer to it.
    pub fn destroy(&mut self, name: &str) -> Result<(), Error> {
        self.simple(DESTROY, "destroy", name)
    }

    /// Takes all members out of the set of that name; one that is gone is fine.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn flush(&mut self, name: &str) -> Result<(), Error> {
        self.simple(FLUSH, "empty", name)
    }

    fn simple(&mut self, command: u16, operation: &'static str, name: &str) -> Result<(), Error> {
        let words = Words {
            operation,
            object: "set ",
            name,
        };
        let request = self.named(command, 0, &words);
        match self.socket.call(&request, |_| Ok(None::<()>)) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            outcome => outcome.map(drop).map_err(explained),
        }
    }

    /// Exchanges the members of two sets of one kind, at once.
    ///
    /// # Errors
    /// When one is missing or they are of different kinds.
    pub fn swap(&mut self, one: &str, other: &str) -> Result<(), Error> {
        let words = Words {
            operation: "swap",
            object: "set ",
            name: one,
        };
        let request = self.named(SWAP, 0, &words).text(NAME2, other);
        self.socket
            .call(&request, |_| Ok(None::<()>))
            .map(drop)
            .map_err(explained)
    }

    /// Adds members; those that are there already are fine. Answers with those
    /// that the kernel refused, each with the reason; the others are in.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn add(&mut self, set: &Set, members: &[Element]) -> Result<Vec<(Element, Error)>, Error> {
        self.members_change(ADD, "add", set, members)
    }

    /// Takes members out; those that are gone already are fine. Answers as
    /// [`IpSets::add`].
    ///
    /// # Errors
    /// When the socket fails.
    pub fn remove(
        &mut self,
        set: &Set,
        members: &[Element],
    ) -> Result<Vec<(Element, Error)>, Error> {
        self.members_change(DEL, "remove", set, members)
    }

    /// Many members go in one message, at whose first refusal the kernel stops:
    /// those of a refused message go again one by one. Without `NLM_F_EXCL`,
    /// what is there already, or gone, is no refusal.
    fn members_change(
        &mut self,
        command: u16,
        operation: &'static str,
        set: &Set,
        members: &[Element],
    ) -> Result<Vec<(Element, Error)>, Error> {
        let family = set.family_number();
        let fill =
            |request: Request, member: &Element| request.nested(DATA, |data| member.write(data));
        let mut refused = Vec::new();
        let chunks: Vec<&[Element]> = members.chunks(IN_A_MESSAGE).collect();
        let requests: Vec<Request> = chunks
            .iter()
            .map(|chunk| {
                let words = Words {
                    operation,
                    object: "members of set ",
                    name: &set.name,
                };
                self.request(command, family, 0, &words)
                    .text(NAME, &set.name)
                    // The kernel wants a line number with a list, to tell where
                    // it stopped.
                    .u32(LINE, 0)
                    .nested(ADT, |list| chunk.iter().fold(list, fill))
            })
            .collect();
        let outcomes = self.socket.batch(&requests, &[])?;
        let again: Vec<Element> = chunks
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| outcome.is_err())
            .flat_map(|(chunk, _)| chunk.iter().copied())
            .collect();
        let requests: Vec<Request> = again
            .iter()
            .map(|member| {
                let name = format!("{member} in set {}", set.name);
                let words = Words {
                    operation,
                    object: "",
                    name: &name,
                };
                let request = self
                    .request(command, family, 0, &words)
                    .text(NAME, &set.name);
                fill(request, member)
            })
            .collect();
        for (member, outcome) in again.into_iter().zip(self.socket.batch(&requests, &[])?) {
            if let Err(error) = outcome {
                refused.push((member, explained(error)));
            }
        }
        Ok(refused)
    }

    /// All sets, without their members.
    ///
    /// # Errors
    /// When the kernel refuses or its answer cannot be read.
    pub fn list(&mut self) -> Result<Vec<Listed>, Error> {
        let words = Words {
            operation: "list",
            object: "",
            name: "sets",
        };
        let request = self
            .request(LIST, libc::AF_INET as u8, 0, &words)
            .attribute(
                FLAGS | libc::NLA_F_NET_BYTEORDER as u16,
                &LIST_HEADER.to_be_bytes(),
            );
        self.socket
            .dump(&request, |message| listed(&message))
            .map_err(explained)
    }

    /// The members of the set of that name.
    ///
    /// # Errors
    /// When there is none, or its members are of a kind unknown here.
    pub fn members(&mut self, name: &str) -> Result<Vec<Element>, Error> {
        let words = Words {
            operation: "list",
            object: "set ",
            name,
        };
        let request = self.named(LIST, 0, &words);
        // The kind is told in the first message of several.
        let mut kind = String::new();
        let parts = self
            .socket
            .dump(&request, |message| members(&message, &mut kind).map(Some))
            .map_err(explained)?;
        Ok(parts.into_iter().flatten().collect())
    }
}

/// How an error names what was tried.
struct Words<'a> {
    operation: &'static str,
    object: &'static str,
    name: &'a str,
}

/// Reads a set's header from a listing.
pub(in crate::kernel) fn listed(message: &Message<'_>) -> Result<Option<Listed>, Malformed> {
    let mut set = Listed {
        name: String::new(),
        kind: String::new(),
        family: None,
        max_members: 0,
        references: 0,
    };
    for attribute in message.attributes(HEADER) {
        let attribute = attribute?;
        match attribute.kind {
            NAME => attribute.text()?.clone_into(&mut set.name),
            TYPE_NAME => attribute.text()?.clone_into(&mut set.kind),
            FAMILY => set.family = Family::from_number(attribute.u8()?),
            DATA => {
                for inner in attribute.nested() {
                    let inner = inner?;
                    match inner.kind {
                        MAX_MEMBERS => set.max_members = u32::from_be(inner.u32()?),
                        REFERENCES => set.references = u32::from_be(inner.u32()?),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    // A set that spans several messages is told again in each, without kind.
    Ok((!set.kind.is_empty()).then_some(set))
}

/// Reads the members in one message of a listing.
pub(in crate::kernel) fn members(
    message: &Message<'_>,
    kind: &mut String,
) -> Result<Vec<Element>, Malformed> {
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

/// What ipset's own error numbers mean (`enum ipset_errno`); nix knows only
/// those of the system and makes `UnknownErrno` of the others, so that they are
/// told apart by what was asked.
fn explained(error: Error) -> Error {
    let Error::Refused {
        operation,
        object,
        errno,
        hint,
    } = error
    else {
        return error;
    };
    let meaning = match (errno, operation) {
        (Errno::EINVAL, "use") => Some("this kernel has no ipset: module ip_set"),
        (Errno::EEXIST, "create") => Some("there is one of that name, of another kind"),
        (Errno::UnknownErrno, "create" | "use") => {
            Some("this kernel does not know the kind, or takes no more sets")
        }
        (Errno::UnknownErrno, "destroy") => Some("it is in use by a rule"),
        (Errno::UnknownErrno, "add") => Some("it is full, or that cannot be a member"),
        (Errno::EPERM, _) => Some("it takes CAP_NET_ADMIN"),
        _ => None,
    };
    Error::Refused {
        operation,
        object,
        errno,
        hint: hint.or(meaning.map(str::to_owned)),
    }
}
