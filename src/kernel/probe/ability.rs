//! The abilities that a kernel may have, and remedies for those that are missing.

use std::{borrow::Cow, fmt};

use enumset::EnumSet;
use ipvs::ipset;
use net::Family;
use xtables::extension::Extension;

use super::nft_part::NftPart;

/// A kernel setting that has to be 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// `net.ipv4.vs.conntrack`: connections through IPVS can be masqueraded.
    VsConntrack,
    /// Packets to and from loopback addresses may use other links.
    RouteLocalnet,
}

impl Setting {
    /// All of them.
    pub(super) const ALL: [Setting; 2] = [Setting::VsConntrack, Setting::RouteLocalnet];

    /// Returns its name as `sysctl` spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Setting::VsConntrack => "net.ipv4.vs.conntrack",
            Setting::RouteLocalnet => "net.ipv4.conf.all.route_localnet",
        }
    }

    /// A word for it, and its requirements on the kernel (`net/netfilter/ipvs/Kconfig`).
    pub(super) fn facts(self) -> (&'static str, &'static str) {
        match self {
            Setting::VsConntrack => ("vs-conntrack", "a kernel with CONFIG_IP_VS_NFCT; "),
            Setting::RouteLocalnet => ("route-localnet", ""),
        }
    }
}

/// Something that the kernel may be able to do, with these privileges and in this container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ability {
    /// Changing this network namespace.
    NetAdmin,
    /// A setting that has, or can get, the required value.
    Setting(Setting),
    /// Sockets of that family.
    Sockets(Family),
    /// Connection tracking can be read and changed over netlink.
    Conntrack,
    /// IP Virtual Server.
    Ipvs,
    /// A scheduler of IPVS, by name.
    Scheduler(String),
    /// A dummy link, which holds service addresses.
    DummyLink,
    /// A kind of ipset.
    IpSet(ipset::Kind),
    /// Table `nat`, by some iptables program that works here.
    Nat(Family),
    /// A match or target in that table.
    Extension(Family, Extension),
    /// A feature of nf_tables that rules use.
    Nftables(Family, NftPart),
    /// Routing rules that match packets by their destination port.
    PortRules(Family),
    /// Routes that deliver packets to any address locally.
    LocalRoutes(Family),
    /// Sockets that answer from addresses that are not the node's.
    Transparent(Family),
    /// Several sockets on one address, among which the kernel spreads
    /// connections.
    ReusePort,
    /// Moving bytes between sockets without copying them.
    Splice,
    /// io_uring with what [`Ring`](crate::kernel::io_uring::Ring) needs.
    IoUring,
}

impl Ability {
    /// Returns all of them, with these schedulers of IPVS.
    pub(super) fn all(schedulers: &[String]) -> Vec<Ability> {
        let mut all = vec![
            Ability::NetAdmin,
            Ability::Conntrack,
            Ability::Ipvs,
            Ability::DummyLink,
            Ability::ReusePort,
            Ability::Splice,
            Ability::IoUring,
        ];
        all.extend(Setting::ALL.map(Ability::Setting));
        all.extend(schedulers.iter().cloned().map(Ability::Scheduler));
        all.extend(ipset::Kind::ALL.map(Ability::IpSet));
        for family in Family::ALL {
            all.extend([
                Ability::Sockets(family),
                Ability::Nat(family),
                Ability::PortRules(family),
                Ability::LocalRoutes(family),
                Ability::Transparent(family),
            ]);
            let extensions = EnumSet::all().into_iter();
            all.extend(extensions.map(|extension| Ability::Extension(family, extension)));
            let parts = EnumSet::all().into_iter();
            all.extend(parts.map(|part| Ability::Nftables(family, part)));
        }
        all
    }

    /// Returns whether modes ask a [`Kernel`](super::Kernel) for it before they use it, so that
    /// they can do without.
    pub(super) fn can_be_left_out(&self) -> bool {
        !matches!(
            self,
            Ability::NetAdmin
                | Ability::Setting(_)
                | Ability::Sockets(_)
                | Ability::Conntrack
                | Ability::ReusePort
                | Ability::Splice
        )
    }

    /// Returns the ability in one word, the same for both families: its name for `--without` and in
    /// the metric of fallbacks.
    pub fn word(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Ability::NetAdmin => "net-admin",
            Ability::Setting(setting) => setting.facts().0,
            Ability::Sockets(Family::V4) => "ipv4",
            Ability::Sockets(Family::V6) => "ipv6",
            Ability::Conntrack => "ctnetlink",
            Ability::Ipvs => "ipvs",
            Ability::Scheduler(name) => return Cow::Owned(format!("ipvs-{name}")),
            Ability::DummyLink => "dummy",
            // A comma would end a word.
            Ability::IpSet(kind) => {
                return Cow::Owned(format!("ipset-{}", kind.name().replace([':', ','], "-")));
            }
            Ability::Nat(_) => "nat",
            Ability::Extension(_, extension) => return Cow::Owned(extension.word()),
            Ability::Nftables(_, part) => part.word(),
            Ability::PortRules(_) => "port-rules",
            Ability::LocalRoutes(_) => "local-routes",
            Ability::Transparent(_) => "transparent-sockets",
            Ability::ReusePort => "reuseport",
            Ability::Splice => "splice",
            Ability::IoUring => "io-uring",
        })
    }

    /// The remedy if the ability is missing: a module and a kernel option, or another one.
    pub fn remedy(&self) -> String {
        let module =
            |name: &str, option: &str| format!("modprobe {name}, or a kernel with {option}");
        match self {
            Ability::NetAdmin => {
                "run as root of this network namespace; in a container: securityContext.privileged, \
                 or capabilities.add: [NET_ADMIN, NET_RAW]"
                    .to_owned()
            }
            Ability::Setting(setting) => {
                let (name, (_, needs)) = (setting.name(), setting.facts());
                format!(
                    "{needs}set {name}=1 on the node, or mount /proc/sys writable, as for a \
                     privileged container: an init container with --init-only is enough"
                )
            }
            Ability::Sockets(Family::V4) => "a kernel with CONFIG_INET".to_owned(),
            Ability::Sockets(Family::V6) => {
                "a kernel with CONFIG_IPV6, started without ipv6.disable=1".to_owned()
            }
            Ability::Conntrack => module("nf_conntrack_netlink", "CONFIG_NF_CT_NETLINK"),
            Ability::Ipvs => module("ip_vs", "CONFIG_IP_VS, CONFIG_IP_VS_PROTO_TCP and _UDP"),
            Ability::Scheduler(name) => module(
                &format!("ip_vs_{name}"),
                &format!("CONFIG_IP_VS_{}", name.to_uppercase()),
            ),
            Ability::DummyLink => module("dummy", "CONFIG_DUMMY"),
            // `hash:ip,port` is ip_set_hash_ipport, CONFIG_IP_SET_HASH_IPPORT.
            Ability::IpSet(kind) => {
                let name = kind.name().replace(':', "_").replace(',', "");
                module(
                    &format!("ip_set_{name}"),
                    &format!("CONFIG_IP_SET_{}", name.to_uppercase()),
                )
            }
            Ability::Nat(Family::V4) => {
                "package iptables, and iptable_nat (CONFIG_IP_NF_NAT) or nf_tables with nft_compat \
                 (CONFIG_NF_TABLES, CONFIG_NFT_COMPAT, CONFIG_NFT_NAT)"
                    .to_owned()
            }
            Ability::Nat(Family::V6) => {
                "package iptables, and ip6table_nat (CONFIG_IP6_NF_NAT) or nf_tables with \
                 nft_compat (CONFIG_NF_TABLES, CONFIG_NFT_COMPAT, CONFIG_NFT_NAT)"
                    .to_owned()
            }
            Ability::Extension(family, extension) => {
                let (_, name, option) = extension.facts(*family);
                match extension {
                    Extension::RandomFully => option,
                    _ => module(&name, &option),
                }
            }
            Ability::Nftables(_, part) => part.facts().1.to_owned(),
            Ability::PortRules(_) => {
                "Linux 4.17 or later with CONFIG_IP_MULTIPLE_TABLES and CONFIG_IPV6_MULTIPLE_TABLES"
                    .to_owned()
            }
            Ability::LocalRoutes(_) | Ability::Transparent(_) => {
                "run as root of this network namespace, or with CAP_NET_ADMIN".to_owned()
            }
            Ability::ReusePort => "Linux 3.9 or later".to_owned(),
            Ability::Splice => "a seccomp profile that allows splice(2)".to_owned(),
            Ability::IoUring => {
                "Linux 6.1 or later with CONFIG_IO_URING, sysctl kernel.io_uring_disabled=0, and a \
                 seccomp profile that allows io_uring_setup(2), io_uring_register(2) and \
                 io_uring_enter(2)"
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ability::NetAdmin => f.write_str("CAP_NET_ADMIN"),
            Ability::Setting(setting) => write!(f, "{}=1", setting.name()),
            Ability::Sockets(family) => write!(f, "{family}"),
            Ability::Conntrack => f.write_str("conntrack over netlink"),
            Ability::Ipvs => f.write_str("IPVS"),
            Ability::Scheduler(name) => write!(f, "IPVS scheduler {name}"),
            Ability::DummyLink => f.write_str("dummy links"),
            Ability::IpSet(kind) => write!(f, "ipset {kind}"),
            Ability::Nat(family) => write!(f, "{family} nat"),
            Ability::Extension(family, extension) => {
                write!(f, "{family} {}", extension.facts(*family).0)
            }
            Ability::Nftables(family, part) => write!(f, "{family} {}", part.facts().0),
            Ability::PortRules(family) => write!(f, "{family} routing rules by port"),
            Ability::LocalRoutes(family) => write!(f, "{family} local routes"),
            Ability::Transparent(family) => write!(f, "{family} transparent sockets"),
            Ability::ReusePort => f.write_str("SO_REUSEPORT"),
            Ability::Splice => f.write_str("splice"),
            Ability::IoUring => f.write_str("io_uring"),
        }
    }
}
