//! Tables of nf_tables, which hold chains, sets and maps.

use std::fmt;

use net::Family;
use netlink::{Malformed, Message, Request};

use super::userdata::{self, Comment, UserData};

// enum nft_table_attributes
pub(super) const NAME: u16 = 1;
const FLAGS: u16 = 2;
const USERDATA: u16 = 6;
/// `NFT_TABLE_F_OWNER`, since Linux 5.12.
const OWNER: u32 = 2;
/// `NFTNL_UDATA_TABLE_COMMENT` of `libnftnl/udata.h`.
const COMMENT: u8 = 0;

/// A table of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// IP family whose packets it processes.
    pub family: Family,
    /// The name, unique in its family.
    pub name: String,
    /// Comment that `nft list` shows; `None`: it has none.
    pub comment: Option<Comment>,
    /// Only the socket that made it may change it, and it goes when that
    /// socket is closed. `nft` 1.0.6 can neither set nor change this.
    pub owned: bool,
}

impl Table {
    /// Returns a table without a comment, which all may change.
    pub fn new(family: Family, name: impl Into<String>) -> Table {
        Table {
            family,
            name: name.into(),
            comment: None,
            owned: false,
        }
    }

    pub(super) fn write(&self, request: Request) -> Request {
        let user = UserData::default().comment(COMMENT, self.comment.as_ref());
        let flags = if self.owned { OWNER } else { 0 };
        let request = request.text(NAME, &self.name).be32(FLAGS, flags);
        match user.octets() {
            Some(octets) => request.attribute(USERDATA, octets),
            None => request,
        }
    }

    /// Returns the table that a message of a dump has.
    pub fn read(message: Message<'_>) -> Result<Option<Table>, Malformed> {
        let Some(family) = Family::from_number(message.header::<4>()?[0]) else {
            return Ok(None);
        };
        let mut table = Table::new(family, "");
        for attribute in message.attributes(super::HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                NAME => attribute.text()?.clone_into(&mut table.name),
                FLAGS => table.owned = attribute.be32()? & OWNER != 0,
                USERDATA => table.comment = userdata::comment(attribute.payload, COMMENT),
                _ => {}
            }
        }
        Ok(Some(table))
    }
}

/// The name of a family in `nft`.
pub(super) fn word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", word(self.family), self.name)
    }
}
