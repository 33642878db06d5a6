//! One rule as a value, printed the way `iptables-save` prints it, which
//! `iptables-restore` reads back.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;

/// The tables that hold rules of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// `mangle`.
    Mangle,
    /// `filter`.
    Filter,
    /// `nat`.
    Nat,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 3] = [Table::Mangle, Table::Filter, Table::Nat];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Table::Mangle => "mangle",
            Table::Filter => "filter",
            Table::Nat => "nat",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Transport protocol, as `-p` and `-m` name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Sctp => "sctp",
        })
    }
}

/// Something to match, or to be matched by anything but it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Maybe<T> {
    /// Everything else matches.
    pub not: bool,
    /// What.
    pub value: T,
}

/// Which end of a packet a match looks at.
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

/// A match extension with its options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// `-m comment`: text for people.
    Comment(String),
    /// `-m tcp`, `udp` or `sctp` without options: it is that protocol.
    Transport(Transport),
    /// The same with `--dport`.
    DestinationPort(Transport, u16),
    /// `-m mark`: value and mask.
    Mark(Maybe<(u32, u32)>),
    /// `-m conntrack --ctstate`: names as iptables prints them, such as
    /// `RELATED,ESTABLISHED`.
    ConnectionState(Maybe<&'static str>),
    /// `-m addrtype --src-type` or `--dst-type LOCAL`.
    LocalAddress(Maybe<Side>),
    /// `-m statistic --mode random`: one in 2³¹ of that many packets.
    /// The kernel's unit (`linux/netfilter/xt_statistic.h`).
    Probability(u32),
    /// `-m recent --rcheck --reap`: the source was noted in the list of that
    /// name within the time.
    RecentlySeen {
        /// The list.
        list: String,
        /// For how long an entry counts.
        within: Duration,
    },
    /// `-m recent --set`: notes the source in the list of that name.
    NoteSource(String),
    /// `-m nfacct`: counts under that name.
    Account(&'static str),
    /// `-m set --match-set`: the packet's fields are in the set of that name.
    Set {
        /// The set.
        name: String,
        /// One for each dimension of the set.
        sides: Vec<Side>,
        /// Everything else matches.
        not: bool,
    },
    /// `-m physdev --physdev-is-in`: it came through a port of a bridge.
    CameThroughBridge,
    /// An extension that none of the others covers: its name and its options as
    /// printed.
    Other(&'static str, String),
}

/// What happens to a packet that matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// `-j`: it goes through that chain.
    Jump(String),
    /// `ACCEPT`.
    Accept,
    /// `DROP`.
    Drop,
    /// `RETURN`.
    Return,
    /// `REJECT`, with an answer that says that the port is unreachable.
    Reject,
    /// `MARK --set-xmark`: clears the bits of the mask, then flips those of the
    /// value.
    Mark {
        /// Bits to flip.
        value: u32,
        /// Bits to clear before.
        mask: u32,
    },
    /// `DNAT --to-destination`.
    Dnat(SocketAddr),
    /// `MASQUERADE`.
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
    /// `-s`.
    pub source: Option<Maybe<IpNet>>,
    /// `-d`.
    pub destination: Option<Maybe<IpNet>>,
    /// `-i`: a link's name, or a prefix of names that ends in `+`.
    pub input: Option<Maybe<String>>,
    /// `-p`.
    pub protocol: Option<Transport>,
    /// Extensions, in this order.
    pub matches: Vec<Match>,
    /// What happens; `None` only counts.
    pub target: Option<Target>,
}

impl Rule {
    /// Matches everything and does nothing.
    pub fn new() -> Rule {
        Rule::default()
    }

    /// `-s NET`.
    pub fn source(mut self, net: impl Into<IpNet>) -> Rule {
        self.source = Some(Maybe::yes(net.into()));
        self
    }

    /// `! -s NET`.
    pub fn not_source(mut self, net: impl Into<IpNet>) -> Rule {
        self.source = Some(Maybe::no(net.into()));
        self
    }

    /// `-d NET`.
    pub fn destination(mut self, net: impl Into<IpNet>) -> Rule {
        self.destination = Some(Maybe::yes(net.into()));
        self
    }

    /// `-i LINK`, where a name that ends in `+` stands for all that begin so.
    pub fn input(mut self, link: impl Into<String>) -> Rule {
        self.input = Some(Maybe::yes(link.into()));
        self
    }

    /// `! -i LINK`.
    pub fn not_input(mut self, link: impl Into<String>) -> Rule {
        self.input = Some(Maybe::no(link.into()));
        self
    }

    /// `! -d NET`.
    pub fn not_destination(mut self, net: impl Into<IpNet>) -> Rule {
        self.destination = Some(Maybe::no(net.into()));
        self
    }

    /// `-p PROTOCOL`.
    pub fn protocol(mut self, transport: Transport) -> Rule {
        self.protocol = Some(transport);
        self
    }

    /// `-m comment --comment TEXT`.
    pub fn comment(self, text: impl Into<String>) -> Rule {
        self.with(Match::Comment(text.into()))
    }

    /// `-m PROTOCOL --dport PORT`; says nothing of `-p`.
    pub fn destination_port(self, transport: Transport, port: u16) -> Rule {
        self.with(Match::DestinationPort(transport, port))
    }

    /// Any other extension.
    pub fn with(mut self, one: Match) -> Rule {
        self.matches.push(one);
        self
    }

    /// `-j TARGET`.
    pub fn target(mut self, target: Target) -> Rule {
        self.target = Some(target);
        self
    }

    /// `-j CHAIN`.
    pub fn jump(self, chain: impl Into<String>) -> Rule {
        self.target(Target::Jump(chain.into()))
    }

    /// The rule's family: that of an address in it, if it has one.
    fn is_v6(&self) -> Option<bool> {
        let nets = [&self.source, &self.destination];
        let net = nets.into_iter().flatten().next();
        net.map(|net| matches!(net.value, IpNet::V6(_)))
    }

    /// The rule in the words of `iptables-save`, without `-A CHAIN`; `v6` for
    /// ip6tables, which words some options differently.
    pub fn words(&self, v6: bool) -> impl fmt::Display {
        debug_assert!(self.is_v6().is_none_or(|of_net| of_net == v6));
        Words { rule: self, v6 }
    }
}

impl<T> Maybe<T> {
    /// It.
    pub fn yes(value: T) -> Maybe<T> {
        Maybe { not: false, value }
    }

    /// Anything but it.
    pub fn no(value: T) -> Maybe<T> {
        Maybe { not: true, value }
    }

    fn bang(&self) -> &'static str {
        if self.not { "! " } else { "" }
    }
}

struct Words<'a> {
    rule: &'a Rule,
    v6: bool,
}

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.rule;
        let mut words = Spaced { f, first: true };
        if let Some(net) = &rule.source {
            words.put(format_args!("{}-s {}", net.bang(), net.value))?;
        }
        if let Some(net) = &rule.destination {
            words.put(format_args!("{}-d {}", net.bang(), net.value))?;
        }
        if let Some(link) = &rule.input {
            words.put(format_args!("{}-i {}", link.bang(), link.value))?;
        }
        if let Some(protocol) = rule.protocol {
            words.put(format_args!("-p {protocol}"))?;
        }
        for one in &rule.matches {
            words.put(format_args!("-m {}", MatchWords { one, v6: self.v6 }))?;
        }
        if let Some(target) = &rule.target {
            let v6 = self.v6;
            words.put(format_args!("-j {}", TargetWords { target, v6 }))?;
        }
        Ok(())
    }
}

struct Spaced<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    first: bool,
}

impl Spaced<'_, '_> {
    fn put(&mut self, words: fmt::Arguments<'_>) -> fmt::Result {
        if !std::mem::take(&mut self.first) {
            self.f.write_str(" ")?;
        }
        self.f.write_fmt(words)
    }
}

struct MatchWords<'a> {
    one: &'a Match,
    v6: bool,
}

impl fmt::Display for MatchWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mask = if self.v6 {
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
        } else {
            "255.255.255.255"
        };
        match self.one {
            Match::Comment(text) => write!(f, "comment --comment \"{}\"", Quoted(text)),
            Match::Transport(transport) => write!(f, "{transport}"),
            Match::DestinationPort(transport, port) => write!(f, "{transport} --dport {port}"),
            Match::Mark(mark) => {
                let (value, mask) = mark.value;
                write!(f, "mark {}--mark {value:#x}/{mask:#x}", mark.bang())
            }
            Match::ConnectionState(states) => {
                write!(f, "conntrack {}--ctstate {}", states.bang(), states.value)
            }
            Match::LocalAddress(side) => {
                let (bang, side) = (side.bang(), side.value.short());
                write!(f, "addrtype {bang}--{side}-type LOCAL")
            }
            Match::Probability(of) => {
                let probability = f64::from(*of) / f64::from(1u32 << 31);
                write!(f, "statistic --mode random --probability {probability:.11}")
            }
            Match::RecentlySeen { list, within } => {
                let seconds = within.as_secs();
                write!(
                    f,
                    "recent --rcheck --seconds {seconds} --reap --name {list} --mask {mask} --rsource"
                )
            }
            Match::NoteSource(list) => {
                write!(f, "recent --set --name {list} --mask {mask} --rsource")
            }
            Match::Account(name) => write!(f, "nfacct --nfacct-name  {name}"),
            Match::Set { name, sides, not } => {
                let bang = if *not { "! " } else { "" };
                write!(f, "set {bang}--match-set {name} ")?;
                for (i, side) in sides.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    write!(f, "{comma}{}", side.short())?;
                }
                Ok(())
            }
            Match::CameThroughBridge => f.write_str("physdev --physdev-is-in"),
            Match::Other(name, options) if options.is_empty() => f.write_str(name),
            Match::Other(name, options) => write!(f, "{name} {options}"),
        }
    }
}

/// Text between double quotes, as `iptables-restore` reads it.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                // A line is a rule; nothing may end it early.
                c if c.is_control() => f.write_str(" ")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

struct TargetWords<'a> {
    target: &'a Target,
    v6: bool,
}

impl fmt::Display for TargetWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target {
            Target::Jump(chain) => f.write_str(chain),
            Target::Accept => f.write_str("ACCEPT"),
            Target::Drop => f.write_str("DROP"),
            Target::Return => f.write_str("RETURN"),
            Target::Reject if self.v6 => f.write_str("REJECT --reject-with icmp6-port-unreachable"),
            Target::Reject => f.write_str("REJECT --reject-with icmp-port-unreachable"),
            Target::Mark { value, mask } => write!(f, "MARK --set-xmark {value:#x}/{mask:#x}"),
            Target::Dnat(to) => write!(f, "DNAT --to-destination {to}"),
            Target::Masquerade { random_fully } => f.write_str(if *random_fully {
                "MASQUERADE --random-fully"
            } else {
                "MASQUERADE"
            }),
        }
    }
}

/// The network of one address.
pub fn host(ip: IpAddr) -> IpNet {
    IpNet::from(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as iptables-save 1.8.9 printed them for kube-proxy 1.36.
    #[test]
    fn rules_print_as_iptables_save_does() {
        let ip = |text: &str| host(text.parse().unwrap());
        let cases = [
            (
                Rule::new()
                    .not_source("10.244.0.0/16".parse::<IpNet>().unwrap())
                    .destination(ip("10.0.1.175"))
                    .protocol(Transport::Tcp)
                    .comment("default/hostnames cluster IP")
                    .destination_port(Transport::Tcp, 80)
                    .jump("KUBE-MARK-MASQ"),
                "! -s 10.244.0.0/16 -d 10.0.1.175/32 -p tcp -m comment --comment \
                 \"default/hostnames cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
            ),
            (
                Rule::new()
                    .with(Match::Mark(Maybe::no((0x4000, 0x4000))))
                    .target(Target::Return),
                "-m mark ! --mark 0x4000/0x4000 -j RETURN",
            ),
            (
                Rule::new().with(Match::Probability(715_827_883)),
                "-m statistic --mode random --probability 0.33333333349",
            ),
            (
                Rule::new().comment("a \"b\"\n-A X"),
                "-m comment --comment \"a \\\"b\\\" -A X\"",
            ),
        ];
        for (rule, words) in cases {
            assert_eq!(rule.words(false).to_string(), words);
        }
    }
}
