//! One rule as a value, printed the way `iptables-save` prints it, which
//! `iptables-restore` reads back.

mod words;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    time::Duration,
};

use enumset::EnumSet;
use ipnet::IpNet;
use net::{Family, Protocol};

use crate::extension::Extension;

/// Bytes of a comment: `XT_MAX_COMMENT_LEN` of
/// `linux/netfilter/xt_comment.h` without the terminating zero.
const COMMENT_LENGTH: usize = 255;

/// The kernel's own chains, in all tables (`iptables(8)`).
pub const BASE_CHAINS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// The tables that hold rules of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Table `mangle`: marks.
    Mangle,
    /// Table `filter`, which admits packets.
    Filter,
    /// Table `nat`, which translates addresses.
    Nat,
}

impl Table {
    /// All of them, in the order in which they are written.
    pub const ALL: [Table; 3] = [Table::Mangle, Table::Filter, Table::Nat];

    /// Returns its name, as `-t` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Table::Mangle => "mangle",
            Table::Filter => "filter",
            Table::Nat => "nat",
        }
    }

    /// The table of that name; `None`: Tripod knows no such table.
    pub fn named(name: &str) -> Option<Table> {
        Table::ALL.into_iter().find(|table| table.name() == name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns how `-p` and `-m` name `protocol`.
pub fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// Bits of a packet's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Value of the bits in `mask`.
    pub value: u32,
    /// Bits of the mark to which `value` applies.
    pub mask: u32,
}

impl Mark {
    /// Returns the mark in which these `bits` are set.
    pub fn set(bits: u32) -> Mark {
        let (value, mask) = (bits, bits);
        Mark { value, mask }
    }
}

/// A condition of a rule on packets, or its negation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Negatable<T> {
    /// Packets that have this match.
    Is(T),
    /// Packets that do not have this match (`!`).
    IsNot(T),
}

/// Which end of a packet a match compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

impl Side {
    fn short(self) -> &'static str {
        match self {
            Side::Source => "src",
            Side::Destination => "dst",
        }
    }
}

/// A packet's state in connection tracking, in the order in which iptables prints the states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtState {
    /// The packet belongs to no connection that is possible.
    Invalid,
    /// The packet begins it.
    New,
    /// Another connection caused it.
    Related,
    /// Packets went both ways.
    Established,
    /// It is not tracked.
    Untracked,
    /// Its destination was translated.
    Dnat,
}

/// A match extension with its options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// `-m comment`: text for people.
    Comment(String),
    /// `-m tcp`, `udp` or `sctp` without options: it is that protocol.
    Transport(Protocol),
    /// The same with `--dport`, and the first and last port.
    DestinationPorts(Protocol, RangeInclusive<u16>),
    /// The same with `--sport`.
    SourcePorts(Protocol, RangeInclusive<u16>),
    /// `-m mark`: its mark has, or does not have, these bits.
    Mark(Negatable<Mark>),
    /// `-m conntrack --ctstate`: one of these is true of its connection.
    ConnectionState(Negatable<&'static [CtState]>),
    /// `-m addrtype --src-type` or `--dst-type LOCAL`.
    LocalAddress(Negatable<Side>),
    /// `-m statistic --mode random`: one in 2³¹ of that many packets.
    /// The kernel's unit (`linux/netfilter/xt_statistic.h`).
    Probability(u32),
    /// `-m recent --rcheck --reap`: the source entered the list of that name within
    /// the time.
    RecentlySeen {
        /// The name of the list.
        list: String,
        /// For how long an entry counts.
        within: Duration,
    },
    /// `-m recent --set`: enters the source in the list of that name.
    RememberSource(String),
    /// `-m nfacct`: counts under that name.
    Account(&'static str),
    /// `-m set --match-set`: the packet's fields are in the set of that name.
    Set {
        /// The name of the set.
        name: String,
        /// One for each dimension of the set.
        sides: Vec<Side>,
    },
    /// `-m physdev`: how it went through a bridge.
    Physdev(Negatable<Physdev>),
    /// `-m socket --transparent`: it is for a socket with `IP_TRANSPARENT`.
    TransparentSocket,
    /// The same, also for a socket that is bound to the wildcard address (`--nowildcard`).
    TransparentListener,
}

/// A condition of `-m physdev` on packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Physdev {
    /// `--physdev-is-in`: it came through a port of a bridge.
    IsIn,
}

/// The target of packets that match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// `-j`: it goes through that chain.
    Jump(String),
    /// `ACCEPT`: it skips the other rules of this hook and table.
    Accept,
    /// `DROP`: it is dropped without an answer.
    Drop,
    /// `RETURN`: it goes back to the chain that it came from.
    Return,
    /// `REJECT`, which answers that the port is unreachable.
    Reject,
    /// `MARK --set-xmark`: clears the bits of the mask, then flips those of the
    /// value.
    Mark(Mark),
    /// `DNAT --to-destination`: its connection goes to that address.
    Dnat(SocketAddr),
    /// `REDIRECT --to-ports`: its connection goes to that port of this node.
    Redirect(u16),
    /// `MASQUERADE`: its connection comes from this node.
    Masquerade {
        /// `--random-fully`: source ports that cannot be guessed, and so seldom
        /// collide.
        random_fully: bool,
    },
}

/// One rule. The builder's methods are named like the options that they stand
/// for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// `-s`: the source network; `None`: any.
    pub source: Option<Negatable<IpNet>>,
    /// `-s` with a mask that is no prefix: value and mask, instead of `source`; `None`: it has
    /// none.
    pub source_bits: Option<(IpAddr, IpAddr)>,
    /// `-d`: the destination network; `None`: any.
    pub destination: Option<Negatable<IpNet>>,
    /// `-i`: a link's name, or a prefix of names that ends in `+`; `None`: any link.
    pub input: Option<Negatable<String>>,
    /// `-p`: the transport protocol; `None`: any.
    pub protocol: Option<Protocol>,
    /// Match extensions, in the order in which they are written.
    pub matches: Vec<Match>,
    /// The target of the packet; `None`: it is only counted.
    pub target: Option<Target>,
}

impl Rule {
    /// Returns a rule that matches everything and does nothing.
    pub fn new() -> Rule {
        Rule::default()
    }

    /// Adds `-s NET`: packets from `net`.
    pub fn source(mut self, net: impl Into<IpNet>) -> Rule {
        self.source = Some(Negatable::Is(net.into()));
        self
    }

    /// Adds `-s VALUE/MASK`, where the mask is no prefix.
    pub fn source_bits(mut self, value: IpAddr, mask: IpAddr) -> Rule {
        self.source_bits = Some((value, mask));
        self
    }

    /// Adds `! -s NET`.
    pub fn not_source(mut self, net: impl Into<IpNet>) -> Rule {
        self.source = Some(Negatable::IsNot(net.into()));
        self
    }

    /// Adds `-d NET`: packets to `net`.
    pub fn destination(mut self, net: impl Into<IpNet>) -> Rule {
        self.destination = Some(Negatable::Is(net.into()));
        self
    }

    /// Adds `-i LINK`, where a name that ends in `+` stands for all names that begin so.
    pub fn input(mut self, link: impl Into<String>) -> Rule {
        self.input = Some(Negatable::Is(link.into()));
        self
    }

    /// Adds `! -i LINK`.
    pub fn not_input(mut self, link: impl Into<String>) -> Rule {
        self.input = Some(Negatable::IsNot(link.into()));
        self
    }

    /// Adds `! -d NET`.
    pub fn not_destination(mut self, net: impl Into<IpNet>) -> Rule {
        self.destination = Some(Negatable::IsNot(net.into()));
        self
    }

    /// Adds `-p PROTOCOL`: packets of `protocol`.
    pub fn protocol(mut self, protocol: Protocol) -> Rule {
        self.protocol = Some(protocol);
        self
    }

    /// Adds `-m comment --comment TEXT`, cut to the kernel's limit.
    pub fn comment(self, text: impl Into<String>) -> Rule {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(COMMENT_LENGTH));
        self.with(Match::Comment(text))
    }

    /// Returns the rule with that comment, where the kernel has the `features` for it.
    pub fn commented(self, features: EnumSet<Extension>, text: impl fmt::Display) -> Rule {
        if features.contains(Extension::Comment) {
            self.comment(text.to_string())
        } else {
            self
        }
    }

    /// Adds `-m PROTOCOL --dport PORT`; leaves out `-p`.
    pub fn destination_port(self, protocol: Protocol, port: u16) -> Rule {
        self.with(Match::DestinationPorts(protocol, port..=port))
    }

    /// Returns the rule with one more match extension at its end.
    pub fn with(mut self, one: Match) -> Rule {
        self.matches.push(one);
        self
    }

    /// Adds `-j TARGET`.
    pub fn target(mut self, target: Target) -> Rule {
        self.target = Some(target);
        self
    }

    /// Adds `-j CHAIN`: it goes through `chain`, and comes back where no rule ends its way.
    pub fn jump(self, chain: impl Into<String>) -> Rule {
        self.target(Target::Jump(chain.into()))
    }

    /// Returns the chain that the rule jumps to; `None`: it jumps to none.
    pub fn leads_to(&self) -> Option<&str> {
        match &self.target {
            Some(Target::Jump(to)) => Some(to),
            _ => None,
        }
    }

    /// The family of the rule's addresses; `None`: it has no addresses.
    fn family(&self) -> Option<Family> {
        let nets = [&self.source, &self.destination];
        let net = nets.into_iter().flatten().next();
        net.map(|net| Family::of(&net.value().addr()))
    }

    /// Returns the rule in the words of `iptables-save`, or of `ip6tables-save`
    /// for IPv6, without `-A CHAIN`.
    pub fn words(&self, family: Family) -> impl fmt::Display {
        debug_assert!(self.family().is_none_or(|of_net| of_net == family));
        fmt::from_fn(move |f| self.write(f, family))
    }
}

impl<T> Negatable<T> {
    /// Returns the value that is compared, negated or not.
    pub fn value(&self) -> &T {
        match self {
            Negatable::Is(value) | Negatable::IsNot(value) => value,
        }
    }

    /// Returns true if a packet matches; `has` finds out whether it has the value.
    pub fn matches(&self, has: impl FnOnce(&T) -> bool) -> bool {
        match self {
            Negatable::Is(value) => has(value),
            Negatable::IsNot(value) => !has(value),
        }
    }

    fn bang(&self) -> &'static str {
        match self {
            Negatable::Is(_) => "",
            Negatable::IsNot(_) => "! ",
        }
    }
}
