//! The events of a node.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    faults::fault::Mode,
    lab::{Host, Lab, Tripod, eventually},
};

/// The kernel that a mode runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The kernel of this machine, which other programs use as well.
    Host,
    /// The kernel of a guest.
    Guest,
}

/// An event on the node while Tripod serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    FlushRuleset,
    FlushNat,
    RestoreTables,
    Docker,
    FlushRoutes,
    ClearServers,
    FlushSets,
    ServiceLinkDown,
    ServiceLinkDeleted,
    NewAddress,
    AddressAgain,
    RenameLink,
    ReplaceLink,
    LoopbackDown,
    ClockForward,
    ClockBack,
    Suspend,
    FullConntrack,
}

impl Event {
    /// All events, in the order in which they happen to one process.
    pub const ALL: [Event; 18] = [
        Event::FlushRuleset,
        Event::FlushNat,
        Event::RestoreTables,
        Event::Docker,
        Event::FlushRoutes,
        Event::ClearServers,
        Event::FlushSets,
        Event::ServiceLinkDown,
        Event::ServiceLinkDeleted,
        Event::NewAddress,
        Event::AddressAgain,
        Event::ReplaceLink,
        Event::RenameLink,
        Event::LoopbackDown,
        Event::ClockForward,
        Event::ClockBack,
        Event::Suspend,
        Event::FullConntrack,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Event::FlushRuleset => "`nft flush ruleset`",
            Event::FlushNat => "`iptables -t nat -F`, then `-X`; ip6tables too",
            Event::RestoreTables => {
                "a firewall is reloaded: `iptables-restore` without `--noflush` writes only its \
                 own rules"
            }
            Event::Docker => {
                "Docker starts: its own chains and jumps come first, FORWARD drops what no rule \
                 accepts (rules of the network plugin accept pods)"
            }
            Event::FlushRoutes => {
                "routing rules are removed, as systemd-networkd does with those that it does not \
                 know"
            }
            Event::ClearServers => "`ipvsadm -C`",
            Event::FlushSets => "`ipset flush`: all members of all sets are removed",
            Event::ServiceLinkDown => "`ip link set kube-ipvs0 down`",
            Event::ServiceLinkDeleted => "`ip link del kube-ipvs0`",
            Event::NewAddress => "the node gets another address, with node ports",
            Event::AddressAgain => "an address of the node is removed, and added again at once",
            Event::RenameLink => "that link is renamed",
            Event::ReplaceLink => "the link to other hosts is deleted, and created again",
            Event::LoopbackDown => "`ip link set lo down`, then `up`",
            Event::ClockForward => "the clock goes forward by a year",
            Event::ClockBack => "the clock goes back by two years",
            Event::Suspend => "the process stops for a second, as in a suspended machine",
            Event::FullConntrack => "the table of connection tracking is full for a second",
        }
    }

    /// Returns whether it is tested in `mode` at `place`.
    pub fn is_tried_at(self, mode: Mode, place: Place) -> bool {
        let elsewhere = match place {
            Place::Host => self.is_of_kernel(),
            Place::Guest => mode != Mode::Ipvs && !self.is_of_kernel(),
        };
        !elsewhere && self.is_tried(mode)
    }

    /// Returns whether it affects the whole kernel, not only a namespace.
    fn is_of_kernel(self) -> bool {
        let of_kernel = [Event::ClockForward, Event::ClockBack, Event::FullConntrack];
        of_kernel.contains(&self)
    }

    /// Returns whether it is tested in `mode`.
    pub fn is_tried(self, mode: Mode) -> bool {
        let ipvs = mode == Mode::Ipvs;
        match self {
            // The guest kernel of ipvs mode has no nf_tables, ipvs mode has no routing rules, and
            // a link that is up keeps its name there (before Linux 6.2).
            Event::FlushRuleset | Event::FlushRoutes | Event::RenameLink => !ipvs,
            Event::ClearServers
            | Event::FlushSets
            | Event::ServiceLinkDown
            | Event::ServiceLinkDeleted => ipvs,
            _ if self.is_of_kernel() => mode != Mode::Nftables,
            _ => true,
        }
    }

    /// Returns whether it lasts until [`Event::end`].
    pub fn lasts(self) -> bool {
        matches!(self, Event::Suspend | Event::FullConntrack)
    }

    /// Triggers the event.
    pub fn happen(self, lab: &Lab, tripod: &Tripod) {
        let node = &lab.node;
        match self {
            Event::FlushRuleset => drop(node.show("nft flush ruleset")),
            Event::FlushNat => {
                for program in PROGRAMS {
                    node.show(&format!("{program} -t nat -F"));
                    node.show(&format!("{program} -t nat -X"));
                }
            }
            Event::RestoreTables => PROGRAMS.iter().for_each(|program| restore(node, program)),
            Event::Docker => DOCKER.iter().for_each(|rule| {
                node.show(&format!("iptables {rule}"));
            }),
            Event::FlushRoutes => ["-4", "-6"]
                .iter()
                .for_each(|family| flush_rules(node, family)),
            Event::ClearServers => drop(node.show("ipvsadm -C")),
            Event::FlushSets => drop(node.show("ipset flush")),
            Event::ServiceLinkDown => node.ip(&["link set kube-ipvs0 down"]),
            Event::ServiceLinkDeleted => node.ip(&["link del kube-ipvs0"]),
            Event::NewAddress => node.ip(&["addr add 192.0.2.11/24 dev eth0"]),
            Event::AddressAgain => address_again(node),
            Event::RenameLink => node.ip(&["link set eth0 name uplink0"]),
            Event::ReplaceLink => lab.replace_uplink(),
            Event::LoopbackDown => node.ip(&["link set lo down", "link set lo up"]),
            Event::ClockForward => set_clock("next year"),
            Event::ClockBack => set_clock("2 years ago"),
            Event::Suspend => tripod.freeze(),
            Event::FullConntrack => conntrack_max(1),
        }
    }

    /// Ends an event that [`lasts`](Self::lasts).
    pub fn end(self, tripod: &Tripod) {
        match self {
            Event::Suspend => tripod.thaw(),
            Event::FullConntrack => conntrack_max(262_144),
            _ => {}
        }
    }
}

fn address_again(node: &Host) {
    node.ip(&[
        "addr del 2001:db8::10/64 dev eth0",
        "addr add 2001:db8::10/64 dev eth0 nodad",
        "route replace ::/0 via 2001:db8::20",
    ]);
    // The kernel adds the route of an address later (`addrconf_dad_work`), even without
    // duplicate address detection: until then it forwards packets for the address.
    eventually("the address is the node's", Duration::from_secs(10), || {
        let route = node.show("ip -6 route show table local 2001:db8::10");
        let is_local = route.starts_with("local ");
        is_local.then_some(()).ok_or(route)
    });
}

const PROGRAMS: [&str; 2] = ["iptables", "ip6tables"];

/// Rules that dockerd writes when it starts (moby, `libnetwork/drivers/bridge/setup_ip_tables.go`),
/// after the rules of a network plugin.
const DOCKER: [&str; 10] = [
    "-A FORWARD -s 10.244.0.0/24 -j ACCEPT",
    "-A FORWARD -d 10.244.0.0/24 -j ACCEPT",
    "-t nat -N DOCKER",
    "-t nat -I PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
    "-t nat -I OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER",
    "-t nat -I POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
    "-N DOCKER-USER",
    "-A DOCKER-USER -j RETURN",
    "-I FORWARD -j DOCKER-USER",
    "-P FORWARD DROP",
];

/// Writes tables with only the content of a firewall's file.
fn restore(node: &Host, program: &str) {
    let text = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
                :MINE - [0:0]\n-A INPUT -j MINE\nCOMMIT\n\
                *nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
                :POSTROUTING ACCEPT [0:0]\nCOMMIT\n";
    let mut child = node
        .command(format!("{program}-restore"))
        .stdin(Stdio::piped())
        .spawn()
        .expect("starting it");
    let stdin = child.stdin.take();
    let written = stdin.map(|mut stdin| stdin.write_all(text.as_bytes()));
    written.expect("it is piped").expect("writing to it");
    assert!(child.wait().expect("its end").success(), "{program}");
}

/// Removes all routing rules except the kernel's own.
fn flush_rules(node: &Host, family: &str) {
    for rule in node.show(&format!("ip {family} rule")).lines() {
        let Some((priority, rest)) = rule.split_once(':') else {
            continue;
        };
        if !["0", "32766", "32767"].contains(&priority) {
            let rest: Vec<&str> = rest.split_whitespace().collect();
            let rest = rest.join(" ");
            node.show(&format!("ip {family} rule del priority {priority} {rest}"));
        }
    }
}

/// Sets the guest's clock.
fn set_clock(to: &str) {
    let set = Command::new("date").args(["-s", to]).output();
    let set = set.expect("running date");
    assert!(set.status.success(), "{set:?}");
}

/// Sets the limit of conntrack entries in the guest. Only its first namespace may do that.
fn conntrack_max(entries: u32) {
    let line = format!("echo {entries} >/proc/sys/net/netfilter/nf_conntrack_max");
    let set = Command::new("nsenter")
        .args(["--target=1", "--net", "sh", "-c", &line])
        .output();
    let set = set.expect("running nsenter");
    assert!(set.status.success(), "{set:?}");
}
