//! Decisions on a packet (`enum nft_verdicts`).

use std::{fmt, sync::Arc};

use netlink::{Attribute, Malformed, Request};

// enum nft_data_attributes
pub(super) const VALUE: u16 = 1;
const VERDICT: u16 = 2;
// enum nft_verdict_attributes
const CODE: u16 = 1;
const CHAIN: u16 = 2;

/// A decision on a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The packet passes this hook.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet continues with the next rule.
    Continue,
    /// It goes back to the chain that jumped here.
    Return,
    /// It continues in another chain, and comes back.
    Jump(Arc<str>),
    /// It continues in another chain, whose end is the end of this one.
    Goto(Arc<str>),
}

impl Verdict {
    fn code(&self) -> i32 {
        match self {
            Verdict::Drop => 0,
            Verdict::Accept => 1,
            Verdict::Continue => -1,
            Verdict::Jump(_) => -3,
            Verdict::Goto(_) => -4,
            Verdict::Return => -5,
        }
    }

    /// Returns the verdict that an attribute has.
    pub(super) fn read(attribute: Attribute<'_>) -> Result<Verdict, Malformed> {
        verdict(attribute)
    }

    /// Appends the verdict as the data of an element or an expression.
    pub(super) fn write(&self, request: Request) -> Request {
        request.nested(VERDICT, |r| {
            let r = r.be32(CODE, self.code() as u32);
            match self {
                Verdict::Jump(chain) | Verdict::Goto(chain) => r.text(CHAIN, chain),
                _ => r,
            }
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Continue => f.write_str("continue"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

/// Octets or a verdict: the content of an element of a map or an expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Datum {
    /// Octets, as [`concat`](super::concat) makes them.
    Value(Box<[u8]>),
    /// A verdict, for verdict maps.
    Verdict(Verdict),
}

impl Datum {
    pub(super) fn write(&self, request: Request) -> Request {
        match self {
            Datum::Value(octets) => request.attribute(VALUE, octets),
            Datum::Verdict(verdict) => verdict.write(request),
        }
    }

    /// Reads a value or verdict.
    ///
    /// # Errors
    /// When the attribute does not have the kernel's format.
    pub fn read(attribute: Attribute<'_>) -> Result<Datum, Malformed> {
        for inner in attribute.nested() {
            let inner = inner?;
            match inner.kind {
                VALUE => return Ok(Datum::Value(inner.payload.into())),
                VERDICT => return verdict(inner).map(Datum::Verdict),
                _ => {}
            }
        }
        Err(Malformed("data without a value"))
    }

    /// The octets of a datum that is no verdict.
    pub fn octets(attribute: Attribute<'_>) -> Result<Box<[u8]>, Malformed> {
        match Datum::read(attribute)? {
            Datum::Value(octets) => Ok(octets),
            Datum::Verdict(_) => Err(Malformed("a verdict where a value should be")),
        }
    }
}

fn verdict(attribute: Attribute<'_>) -> Result<Verdict, Malformed> {
    let (mut code, mut chain) = (None, None);
    for inner in attribute.nested() {
        let inner = inner?;
        match inner.kind {
            CODE => code = Some(inner.be32()? as i32),
            CHAIN => chain = Some(Arc::from(inner.text()?)),
            _ => {}
        }
    }
    Ok(match (code, chain) {
        (Some(0), _) => Verdict::Drop,
        (Some(1), _) => Verdict::Accept,
        (Some(-1), _) => Verdict::Continue,
        (Some(-5), _) => Verdict::Return,
        (Some(-3), Some(chain)) => Verdict::Jump(chain),
        (Some(-4), Some(chain)) => Verdict::Goto(chain),
        _ => return Err(Malformed("a verdict of an unknown kind")),
    })
}
