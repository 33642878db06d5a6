//! How rules print.

use std::{
    fmt::{self, from_fn},
    ops::RangeInclusive,
};

use ipnet::IpNet;
use net::{Family, Protocol};

use super::{CtState, Mark, Match, Negatable, Physdev, Rule, Target, word};

impl Negatable<IpNet> {
    /// iptables-save leaves out a network that every address matches.
    fn says_something(&self) -> bool {
        match self {
            Negatable::Is(net) => net.prefix_len() > 0,
            Negatable::IsNot(_) => true,
        }
    }
}

impl Rule {
    /// Writes the rule in the words of `iptables-save`.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, family: Family) -> fmt::Result {
        let mut words = Spaced { f, first: true };
        if let Some(net) = self.source.as_ref().filter(|net| net.says_something()) {
            words.put(format_args!("{}-s {}", net.bang(), net.value()))?;
        }
        if let Some((value, mask)) = self.source_bits {
            words.put(format_args!("-s {value}/{mask}"))?;
        }
        if let Some(net) = self.destination.as_ref().filter(|net| net.says_something()) {
            words.put(format_args!("{}-d {}", net.bang(), net.value()))?;
        }
        if let Some(link) = &self.input {
            words.put(format_args!("{}-i {}", link.bang(), link.value()))?;
        }
        if let Some(protocol) = self.protocol {
            words.put(format_args!("-p {}", word(protocol)))?;
        }
        for one in &self.matches {
            words.put(format_args!("-m {}", from_fn(|f| one.write(f, family))))?;
        }
        if let Some(target) = &self.target {
            words.put(format_args!("-j {}", from_fn(|f| target.write(f, family))))?;
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

impl CtState {
    fn word(self) -> &'static str {
        match self {
            CtState::Invalid => "INVALID",
            CtState::New => "NEW",
            CtState::Related => "RELATED",
            CtState::Established => "ESTABLISHED",
            CtState::Untracked => "UNTRACKED",
            CtState::Dnat => "DNAT",
        }
    }
}

impl Match {
    fn write(&self, f: &mut fmt::Formatter<'_>, family: Family) -> fmt::Result {
        let mask = match family {
            Family::V4 => "255.255.255.255",
            Family::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        match self {
            Match::Comment(text) => {
                f.write_str("comment --comment \"")?;
                write_quoted(f, text)?;
                f.write_str("\"")
            }
            Match::Transport(protocol) => f.write_str(word(*protocol)),
            Match::DestinationPorts(protocol, ports) => write_ports(f, *protocol, "dport", ports),
            Match::SourcePorts(protocol, ports) => write_ports(f, *protocol, "sport", ports),
            Match::Mark(mark) => {
                let Mark { value, mask } = mark.value();
                write!(f, "mark {}--mark {value:#x}", mark.bang())?;
                // As iptables-save prints it.
                match *mask {
                    u32::MAX => Ok(()),
                    _ => write!(f, "/{mask:#x}"),
                }
            }
            Match::ConnectionState(states) => {
                let words: Vec<&str> = states.value().iter().map(|state| state.word()).collect();
                write!(
                    f,
                    "conntrack {}--ctstate {}",
                    states.bang(),
                    words.join(",")
                )
            }
            Match::LocalAddress(side) => {
                let (bang, side) = (side.bang(), side.value().short());
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
            Match::RememberSource(list) => {
                write!(f, "recent --set --name {list} --mask {mask} --rsource")
            }
            Match::Account(name) => write!(f, "nfacct --nfacct-name  {name}"),
            Match::Set { name, sides } => {
                write!(f, "set --match-set {name} ")?;
                for (i, side) in sides.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    write!(f, "{comma}{}", side.short())?;
                }
                Ok(())
            }
            Match::Physdev(asked) => match asked.value() {
                Physdev::IsIn => write!(f, "physdev {}--physdev-is-in", asked.bang()),
            },
            Match::TransparentSocket => f.write_str("socket --transparent"),
            Match::TransparentListener => f.write_str("socket --transparent --nowildcard"),
        }
    }
}

/// Writes a single port without the end of its range.
fn write_ports(
    f: &mut fmt::Formatter<'_>,
    protocol: Protocol,
    option: &str,
    ports: &RangeInclusive<u16>,
) -> fmt::Result {
    let (first, last) = (ports.start(), ports.end());
    write!(f, "{} --{option} {first}", word(protocol))?;
    if first == last {
        return Ok(());
    }
    write!(f, ":{last}")
}

/// Writes the text between double quotes, as `iptables-restore` reads it.
fn write_quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.chars().try_for_each(|c| match c {
        '"' | '\\' => write!(f, "\\{c}"),
        // A line is a rule; nothing may end it early.
        c if c.is_control() => f.write_str(" "),
        c => write!(f, "{c}"),
    })
}

impl Target {
    fn write(&self, f: &mut fmt::Formatter<'_>, family: Family) -> fmt::Result {
        match self {
            Target::Jump(chain) => f.write_str(chain),
            Target::Accept => f.write_str("ACCEPT"),
            Target::Drop => f.write_str("DROP"),
            Target::Return => f.write_str("RETURN"),
            Target::Reject => f.write_str(match family {
                Family::V4 => "REJECT --reject-with icmp-port-unreachable",
                Family::V6 => "REJECT --reject-with icmp6-port-unreachable",
            }),
            Target::Mark(Mark { value, mask }) => {
                write!(f, "MARK --set-xmark {value:#x}/{mask:#x}")
            }
            Target::Dnat(to) => write!(f, "DNAT --to-destination {to}"),
            Target::Redirect(port) => write!(f, "REDIRECT --to-ports {port}"),
            Target::Masquerade { random_fully } => f.write_str(if *random_fully {
                "MASQUERADE --random-fully"
            } else {
                "MASQUERADE"
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    /// Lines as iptables-save 1.8.9 printed them for kube-proxy 1.36.
    #[test]
    fn rules_print_as_iptables_save_does() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let cases = [
            (
                Rule::new()
                    .not_source("10.244.0.0/16".parse::<IpNet>().unwrap())
                    .destination(ip("10.0.1.175"))
                    .protocol(Protocol::Tcp)
                    .comment("default/hostnames cluster IP")
                    .destination_port(Protocol::Tcp, 80)
                    .jump("KUBE-MARK-MASQ"),
                "! -s 10.244.0.0/16 -d 10.0.1.175/32 -p tcp -m comment --comment \
                 \"default/hostnames cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
            ),
            (
                Rule::new()
                    .with(Match::Mark(Negatable::IsNot(Mark::set(0x4000))))
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
            (
                Rule::new()
                    .source("0.0.0.0/0".parse::<IpNet>().unwrap())
                    .not_destination("0.0.0.0/0".parse::<IpNet>().unwrap())
                    .not_input("cni+"),
                "! -d 0.0.0.0/0 ! -i cni+",
            ),
            (
                Rule::new()
                    .source_bits("0.0.0.5".parse().unwrap(), "0.0.0.7".parse().unwrap())
                    .with(Match::SourcePorts(Protocol::Udp, 0..=4095)),
                "-s 0.0.0.5/0.0.0.7 -m udp --sport 0:4095",
            ),
        ];
        for (rule, words) in cases {
            assert_eq!(rule.words(Family::V4).to_string(), words);
        }
    }
}
