//! Chains: those that the kernel calls at a hook, and those that rules jump to.

use std::fmt;

use netlink::{Attribute, Malformed, Message, Request};

use super::userdata::{self, Comment, UserData};

// enum nft_chain_attributes
pub(super) const TABLE: u16 = 1;
pub(super) const NAME: u16 = 3;
const HOOK: u16 = 4;
const POLICY: u16 = 5;
const USE: u16 = 6;
const TYPE: u16 = 7;
const USERDATA: u16 = 12;
// enum nft_hook_attributes
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
/// `NFTNL_UDATA_CHAIN_COMMENT` of `libnftnl/udata.h`.
const COMMENT: u8 = 0;

/// Where the kernel calls a chain (`enum nf_inet_hooks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Before routing, of packets that arrive.
    Prerouting = 0,
    /// After routing, of packets for this node.
    Input = 1,
    /// After routing, of packets for others.
    Forward = 2,
    /// Of packets that this node sends.
    Output = 3,
    /// Before a packet leaves.
    Postrouting = 4,
}

impl Hook {
    const ALL: [Hook; 5] = [
        Hook::Prerouting,
        Hook::Input,
        Hook::Forward,
        Hook::Output,
        Hook::Postrouting,
    ];

    fn name(self) -> &'static str {
        match self {
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
        }
    }
}

/// The type of a base chain, which limits what its rules can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    /// Accepts and drops packets, at any hook.
    Filter,
    /// First packets of connections, to translate addresses.
    Nat,
}

impl ChainType {
    fn name(self) -> &'static str {
        match self {
            ChainType::Filter => "filter",
            ChainType::Nat => "nat",
        }
    }

    fn named(name: &str) -> Option<ChainType> {
        let all = [ChainType::Filter, ChainType::Nat];
        all.into_iter().find(|t| t.name() == name)
    }
}

/// Verdict on a packet at the end of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It is dropped.
    Drop = 0,
    /// The packet passes where no rule decides.
    Accept = 1,
}

/// Properties of a base chain, which the kernel calls by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// Type of the base chain, which decides what its rules may do.
    pub kind: ChainType,
    /// Hook of the packets that enter it.
    pub hook: Hook,
    /// Its place among the chains of this hook, the lowest first.
    pub priority: i32,
    /// The verdict on packets that reach its end.
    pub policy: Policy,
}

/// A chain: of a hook of the kernel, or one that rules jump to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The name, unique in its table.
    pub name: String,
    /// Where the kernel calls it; `None`: only rules jump to it.
    pub base: Option<Base>,
    /// Comment that `nft list` shows; `None`: it has none.
    pub comment: Option<Comment>,
}

impl Chain {
    /// Returns a chain that rules jump to.
    pub fn new(name: impl Into<String>) -> Chain {
        Chain {
            name: name.into(),
            base: None,
            comment: None,
        }
    }

    /// Returns a chain that the kernel calls, whose packets pass at its end.
    pub fn base(name: impl Into<String>, kind: ChainType, hook: Hook, priority: i32) -> Chain {
        let policy = Policy::Accept;
        Chain {
            base: Some(Base {
                kind,
                hook,
                priority,
                policy,
            }),
            ..Chain::new(name)
        }
    }

    /// Returns the same chain with a comment.
    #[must_use]
    pub fn commented(mut self, comment: &str) -> Chain {
        self.comment = Some(Comment::new(comment));
        self
    }

    pub(super) fn write(&self, request: Request) -> Request {
        let mut request = request.text(NAME, &self.name);
        if let Some(base) = self.base {
            request = request
                .text(TYPE, base.kind.name())
                .be32(POLICY, base.policy as u32)
                .nested(HOOK, |r| {
                    r.be32(HOOK_NUMBER, base.hook as u32)
                        .be32(HOOK_PRIORITY, base.priority as u32)
                });
        }
        let user = UserData::default().comment(COMMENT, self.comment.as_ref());
        match user.octets() {
            Some(octets) => request.attribute(USERDATA, octets),
            None => request,
        }
    }

    /// Writes the text between the braces after `add chain`.
    pub(super) fn body(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.base.is_none() && self.comment.is_none() {
            return Ok(());
        }
        f.write_str(" {")?;
        if let Some(base) = self.base {
            let policy = match base.policy {
                Policy::Drop => "drop",
                Policy::Accept => "accept",
            };
            let (kind, hook, priority) = (base.kind.name(), base.hook.name(), base.priority);
            write!(
                f,
                " type {kind} hook {hook} priority {priority}; policy {policy};"
            )?;
        }
        if let Some(comment) = &self.comment {
            write!(f, " comment \"{}\";", comment.as_str())?;
        }
        f.write_str(" }")
    }
}

/// A chain as it is in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedChain {
    /// Name of its table.
    pub table: String,
    /// The chain itself.
    pub chain: Chain,
    /// How many rules it has and how many jump to it, in one number.
    pub uses: u32,
    /// Whether the kernel calls it by itself, even at a hook that is not known here.
    pub base: bool,
}

impl ListedChain {
    /// Returns the chain that a message of a dump has.
    pub fn read(message: Message<'_>) -> Result<ListedChain, Malformed> {
        let mut listed = ListedChain {
            table: String::new(),
            chain: Chain::new(""),
            uses: 0,
            base: false,
        };
        let (mut kind, mut hook, mut policy) = (None, None, Policy::Accept);
        for attribute in message.attributes(super::HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                TABLE => attribute.text()?.clone_into(&mut listed.table),
                NAME => attribute.text()?.clone_into(&mut listed.chain.name),
                USE => listed.uses = attribute.be32()?,
                HOOK => {
                    listed.base = true;
                    hook = hook_of(attribute)?;
                }
                TYPE => kind = ChainType::named(attribute.text()?),
                POLICY if attribute.be32()? == 0 => policy = Policy::Drop,
                USERDATA => listed.chain.comment = userdata::comment(attribute.payload, COMMENT),
                _ => {}
            }
        }
        if let (Some(kind), Some((hook, priority))) = (kind, hook) {
            listed.chain.base = Some(Base {
                kind,
                hook,
                priority,
                policy,
            });
        }
        Ok(listed)
    }
}

fn hook_of(attribute: Attribute<'_>) -> Result<Option<(Hook, i32)>, Malformed> {
    let (mut hook, mut priority) = (None, 0);
    for inner in attribute.nested() {
        let inner = inner?;
        match inner.kind {
            HOOK_NUMBER => {
                let number = inner.be32()?;
                hook = Hook::ALL.into_iter().find(|h| *h as u32 == number);
            }
            HOOK_PRIORITY => priority = inner.be32()? as i32,
            _ => {}
        }
    }
    Ok(hook.map(|hook| (hook, priority)))
}
