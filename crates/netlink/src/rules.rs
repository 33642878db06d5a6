//! Tripod's own policy routing rules ([`PROTOCOL`]): which packets use which
//! table (`linux/fib_rules.h`).

use std::{fmt, net::IpAddr};

use neli::consts::rtnl::{FrAct, Frattr};
use net::{Family, octets};
use nix::{errno::Errno, libc};

use super::{
    PROTOCOL,
    routes::{GONE, if_known},
};
use crate::{Error, Malformed, Message, Request, Socket};

/// The highest port that a rule can name: `fib_rule_port_range_valid` of the
/// kernel demands that a range ends *below* 65,535.
pub const HIGHEST_PORT: u16 = u16::MAX - 1;

/// The input interface that the kernel assumes for packets which the node itself sends
/// (`flowi_iif` of `ip_route_output_key`).
const LOOPBACK: &str = "lo";

/// The action of a rule on the packets that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Searches a table for the destination; without a match the next rule is
    /// tried.
    Lookup(u32),
    /// Continues at the first rule of that priority, which must be higher than the rule's own.
    Goto(u32),
}

/// A policy routing rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// IP family of the packets.
    pub family: Family,
    /// Its priority: lower comes earlier. The kernel's own are 0 (table local),
    /// 32766 (main) and 32767 (default).
    pub priority: u32,
    /// `IPPROTO_*` of the packets; `None`: all.
    pub ip_protocol: Option<u8>,
    /// First and last destination port, within 1..=[`HIGHEST_PORT`]; `None`:
    /// all, and packets without ports, such as fragments.
    pub ports: Option<(u16, u16)>,
    /// The source of the packets; `None`: any.
    pub source: Option<IpAddr>,
    /// Packets that this node sends, and no others.
    pub sent_here: bool,
    /// The mark of the packets, all of it; `None`: any mark.
    pub mark: Option<u32>,
    /// Action for packets that match the rule.
    pub action: Action,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rule {}:", self.family, self.priority)?;
        if let Some(source) = self.source {
            write!(f, " from {source}")?;
        }
        if self.sent_here {
            f.write_str(" iif lo")?;
        }
        if let Some(protocol) = self.ip_protocol {
            write!(f, " ipproto {protocol}")?;
        }
        match self.ports {
            Some((first, last)) if first == last => write!(f, " dport {first}")?,
            Some((first, last)) => write!(f, " dport {first}-{last}")?,
            None => {}
        }
        if let Some(mark) = self.mark {
            write!(f, " fwmark {mark:#x}")?;
        }
        match self.action {
            Action::Lookup(table) => write!(f, " lookup {table}"),
            Action::Goto(priority) => write!(f, " goto {priority}"),
        }
    }
}

impl Rule {
    /// Returns a rule for all packets of `family`.
    pub fn of_all(family: Family, priority: u32, action: Action) -> Rule {
        Rule {
            family,
            priority,
            ip_protocol: None,
            ports: None,
            source: None,
            sent_here: false,
            mark: None,
            action,
        }
    }

    fn request(&self, kind: u16, flags: i32, operation: &'static str) -> Request {
        // struct fib_rule_hdr: family, lengths, TOS, table (0: see FRA_TABLE),
        // two reserved, action, flags.
        let action = match self.action {
            Action::Lookup(_) => FrAct::FrActToTbl,
            Action::Goto(_) => FrAct::FrActGoto,
        };
        let action = u8::from(action);
        let source = self.source.map_or(0, |_| self.family.bits());
        let family = self.family.number();
        let header = [family, 0, source, 0, 0, 0, 0, action, 0, 0, 0, 0];
        let mut request = Request::new(kind, flags as u16, operation, self.to_string())
            .header(&header)
            .u32(Frattr::Priority.into(), self.priority)
            .attribute(Frattr::Protocol.into(), &[PROTOCOL]);
        request = match self.action {
            Action::Lookup(table) => request.u32(Frattr::Table.into(), table),
            Action::Goto(priority) => request.u32(Frattr::Goto.into(), priority),
        };
        if let Some(source) = &self.source {
            request = request.attribute(Frattr::Src.into(), &octets(source));
        }
        if self.sent_here {
            request = request.text(Frattr::Iifname.into(), LOOPBACK);
        }
        if let Some(protocol) = self.ip_protocol {
            request = request.attribute(Frattr::IpProto.into(), &[protocol]);
        }
        if let Some((first, last)) = self.ports {
            // struct fib_rule_port_range, in host order.
            let [a, b] = first.to_ne_bytes();
            let [c, d] = last.to_ne_bytes();
            request = request.attribute(Frattr::DportRange.into(), &[a, b, c, d]);
        }
        if let Some(mark) = self.mark {
            request = request
                .u32(Frattr::Fwmark.into(), mark)
                .u32(Frattr::Fwmask.into(), u32::MAX);
        }
        request
    }
}

/// Adds rules; existing ones are no error. Returns the outcome of each. Before Linux 4.17 the
/// kernel does not refuse unknown attributes, such as ports, but ignores them: see
/// [`supports_ports`].
///
/// # Errors
/// When the socket fails.
pub fn add(socket: &mut Socket, rules: &[Rule]) -> Result<Vec<Result<(), Error>>, Error> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let requests: Vec<_> = rules
        .iter()
        .map(|r| r.request(libc::RTM_NEWRULE, flags, "add"))
        .collect();
    socket.batch(&requests, &[Errno::EEXIST])
}

/// Deletes rules; missing ones are no error.
///
/// # Errors
/// The first deletion that the kernel refused.
pub fn delete(socket: &mut Socket, rules: &[Rule]) -> Result<(), Error> {
    let requests: Vec<_> = rules
        .iter()
        .map(|r| r.request(libc::RTM_DELRULE, 0, "delete"))
        .collect();
    socket.batch_all(&requests, &GONE)
}

/// Returns all rules of [`PROTOCOL`]; none where the kernel has no policy
/// routing in this family.
///
/// # Errors
/// When the kernel cannot list rules.
pub fn list(socket: &mut Socket, family: Family) -> Result<Vec<Rule>, Error> {
    let mut header = [0; 12];
    header[0] = family.number();
    let object = format!("{family} rules");
    let request = Request::new(libc::RTM_GETRULE, 0, "list", object).header(&header);
    if_known(socket.dump(&request, |message| parse(message, family)))
}

/// Tries whether rules can match destination ports here, with a rule on a table that does not
/// exist, which is deleted again: old kernels ignore unknown attributes.
///
/// # Errors
/// With the kernel's reason why they cannot.
pub fn supports_ports(socket: &mut Socket, family: Family) -> Result<(), Error> {
    let [probe, crippled] = probes(family);
    for outcome in add(socket, std::slice::from_ref(&probe))? {
        outcome?;
    }
    let listed = list(socket, family);
    let unknown = listed.as_ref().is_err_and(Error::is_passing);
    let understood = matches!(&listed, Ok(rules) if rules.contains(&probe));
    let both = [probe, crippled];
    let made = match (unknown, understood) {
        (true, _) => &both[..],
        (false, true) => &both[..1],
        (false, false) => &both[1..],
    };
    delete(socket, made)?;
    if understood || unknown {
        return listed.map(drop);
    }
    let object = format!("{family} routing rules");
    let error = Error::new("match destination ports in", object, Errno::EOPNOTSUPP);
    Err(error.hinted("needs Linux 4.17 or later"))
}

/// The rule that [`supports_ports`] tries, and the rule that an old kernel makes of it.
fn probes(family: Family) -> [Rule; 2] {
    // This is the last priority: no packet gets that far.
    let crippled = Rule::of_all(family, u32::MAX - 1, Action::Lookup(0x5450_ffff));
    let probe = Rule {
        ip_protocol: Some(libc::IPPROTO_TCP as u8),
        ports: Some((1, 1)),
        ..crippled.clone()
    };
    [probe, crippled]
}

/// Deletes the rule of [`supports_ports`], in case it was interrupted.
///
/// # Errors
/// When the kernel refuses.
pub fn delete_probe(socket: &mut Socket, family: Family) -> Result<(), Error> {
    delete(socket, &probes(family))
}

/// Reads a rule; `None`: the message is about something else.
///
/// # Errors
/// When the message does not have the kernel's format.
pub fn parse(message: Message<'_>, family: Family) -> Result<Option<Rule>, Malformed> {
    let header: [u8; 12] = message.header()?;
    if message.kind != libc::RTM_NEWRULE || header[0] != family.number() {
        return Ok(None);
    }
    let (mut priority, mut table, mut target) = (0, u32::from(header[4]), None);
    let (mut owner, mut ip_protocol, mut ports, mut mark) = (0, None, None, None);
    let (mut source, mut sent_here) = (None, false);
    for attribute in message.attributes(12) {
        let attribute = attribute?;
        match Frattr::from(attribute.kind) {
            Frattr::Priority => priority = attribute.u32()?,
            Frattr::Table => table = attribute.u32()?,
            Frattr::Goto => target = Some(attribute.u32()?),
            Frattr::Src => source = Some(attribute.ip()?),
            // Names of interfaces need not be text, and others have rules, too.
            Frattr::Iifname => sent_here = attribute.text().is_ok_and(|name| name == LOOPBACK),
            Frattr::Fwmark => mark = Some(attribute.u32()?),
            Frattr::Protocol => owner = attribute.u8()?,
            Frattr::IpProto => ip_protocol = Some(attribute.u8()?),
            Frattr::DportRange => {
                let [a, b, c, d] = attribute
                    .payload
                    .try_into()
                    .map_err(|_| Malformed("port range is not two ports"))?;
                ports = Some((u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])));
            }
            _ => {}
        }
    }
    let action = match (FrAct::from(header[7]), target) {
        (FrAct::FrActToTbl, _) => Action::Lookup(table),
        (FrAct::FrActGoto, Some(priority)) => Action::Goto(priority),
        _ => return Ok(None),
    };
    Ok((owner == PROTOCOL).then_some(Rule {
        family,
        priority,
        ip_protocol,
        ports,
        source,
        sent_here,
        mark,
        action,
    }))
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt, process::Command};

    use testing::in_namespace;

    use super::*;
    use crate::Protocol;

    #[test]
    fn a_rule_of_others_for_an_interface_whose_name_is_no_text_does_not_matter() {
        in_namespace(|| {
            let mut command = Command::new("ip");
            command.args(["rule", "add", "priority", "70", "table", "100", "iif"]);
            let added = command.arg(OsStr::from_bytes(b"pod\xff")).status();
            assert!(added.is_ok_and(|status| status.success()));
            let mut socket = Socket::open(Protocol::Route).unwrap();
            let own = Rule {
                sent_here: true,
                ..Rule::of_all(Family::V4, 76, Action::Lookup(0x5450_0050))
            };
            add(&mut socket, std::slice::from_ref(&own))
                .unwrap()
                .remove(0)
                .unwrap();
            assert_eq!(list(&mut socket, Family::V4).unwrap(), [own]);
        });
    }
}
