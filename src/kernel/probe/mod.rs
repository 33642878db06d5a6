//! What this kernel, these privileges and this container can really do: found
//! out by trying, in a network namespace that goes away afterwards, or with
//! scratch objects where none can be made. Version numbers tell little: vendors
//! leave things out and port things back.

mod ability;
mod ipvs;
mod scratch;
mod sockets;
mod tries;

use std::collections::BTreeMap;

use nix::errno::Errno;

pub use self::ability::{Ability, Extension};
use self::scratch::in_scratch;
use super::{Family, xtables::features::Features};

/// What was found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Each thing that was tried, with the reason if it cannot be done.
    tried: BTreeMap<Ability, Option<String>>,
    /// Which program applies rules, and through what, by family.
    programs: BTreeMap<u8, String>,
}

/// The kinds of ipset that somebody here needs, as `ipset create` spells them.
pub const IP_SETS: [&str; 5] = [
    "hash:ip",
    "hash:ip,port",
    "hash:ip,port,ip",
    "hash:ip,port,net",
    "bitmap:port",
];

impl Kernel {
    /// Tries everything, and these schedulers of IPVS. Takes some tenths of a
    /// second, in a thread of its own; the caller's thread waits.
    pub fn examine(schedulers: &[String]) -> Kernel {
        let mut kernel = Kernel::default();
        kernel.record(Ability::NetAdmin, tries::net_admin());
        kernel.record(Ability::Sysctls, tries::sysctls());
        let tried = match in_scratch(|| tries::objects(schedulers)) {
            Ok(tried) => tried,
            // Without CAP_SYS_ADMIN, as in a container that has CAP_NET_ADMIN
            // alone, things are tried where we are, under names of ours, and
            // taken away at once. Without CAP_NET_ADMIN either each says so.
            Err(_) => std::thread::scope(|scope| {
                let worker = scope.spawn(|| tries::objects(schedulers));
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        };
        kernel.tried.extend(tried.tried);
        // In a thread of its own, because it has a runtime of its own.
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| tries::xtables(&mut kernel));
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        kernel
    }

    fn record(&mut self, ability: Ability, outcome: Result<(), String>) {
        self.tried.insert(ability, outcome.err());
    }

    /// Why this cannot be done; `None`: it can.
    pub fn lack(&self, ability: &Ability) -> Option<&str> {
        match self.tried.get(ability) {
            Some(lack) => lack.as_deref(),
            None => Some("was not tried"),
        }
    }

    /// This can be done.
    pub fn can(&self, ability: &Ability) -> bool {
        self.lack(ability).is_none()
    }

    /// A kernel that can do everything, with these schedulers of IPVS, for
    /// asking [what would be](Kernel::without) if it could not.
    pub fn with_everything(schedulers: &[String]) -> Kernel {
        let mut kernel = Kernel::default();
        let mut can = |ability| kernel.record(ability, Ok(()));
        for ability in [
            Ability::NetAdmin,
            Ability::Sysctls,
            Ability::Conntrack,
            Ability::Ipvs,
            Ability::DummyLink,
            Ability::ReusePort,
            Ability::Splice,
            Ability::Sctp,
        ] {
            can(ability);
        }
        for name in schedulers {
            can(Ability::Scheduler(name.clone()));
        }
        IP_SETS.into_iter().map(Ability::IpSet).for_each(&mut can);
        for family in Family::ALL {
            for ability in [
                Ability::Sockets(family),
                Ability::Nat(family),
                Ability::PortRules(family),
                Ability::LocalRoutes(family),
                Ability::Transparent(family),
            ] {
                can(ability);
            }
            for extension in Extension::ALL {
                can(Ability::Extension(family, extension));
            }
        }
        kernel
    }

    /// The same kernel without one of its abilities, to see what would be.
    #[must_use]
    pub fn without(mut self, ability: &Ability) -> Kernel {
        let why = "taken away".to_owned();
        self.tried.insert(ability.clone(), Some(why));
        self
    }

    /// Everything that was tried, with the reason if it cannot be done.
    pub fn iter(&self) -> impl Iterator<Item = (&Ability, Option<&str>)> {
        self.tried
            .iter()
            .map(|(ability, lack)| (ability, lack.as_deref()))
    }

    /// What iptables' rules of that family may use.
    pub fn features(&self, family: Family) -> Features {
        let has = |extension| self.can(&Ability::Extension(family, extension));
        Features {
            comment: has(Extension::Comment),
            statistic: has(Extension::Statistic),
            recent: has(Extension::Recent),
            addrtype: has(Extension::Addrtype),
            mark: has(Extension::Mark),
            conntrack: has(Extension::Conntrack),
            nfacct: has(Extension::Nfacct),
            set: has(Extension::Set),
            physdev: has(Extension::Physdev),
            reject: has(Extension::Reject),
            dnat: has(Extension::Dnat),
            masquerade: has(Extension::Masquerade),
            random_fully: has(Extension::RandomFully),
        }
    }

    /// The program that applies rules of that family, if one works.
    pub fn program(&self, family: Family) -> Option<&str> {
        self.programs.get(&family.number()).map(String::as_str)
    }

    fn set_features(&mut self, family: Family, found: Result<Features, String>) {
        let features = match &found {
            Ok(features) => *features,
            Err(_) => Features {
                comment: false,
                statistic: false,
                recent: false,
                addrtype: false,
                mark: false,
                conntrack: false,
                nfacct: false,
                set: false,
                physdev: false,
                reject: false,
                dnat: false,
                masquerade: false,
                random_fully: false,
            },
        };
        for extension in Extension::ALL {
            let there = match extension {
                Extension::Comment => features.comment,
                Extension::Statistic => features.statistic,
                Extension::Recent => features.recent,
                Extension::Addrtype => features.addrtype,
                Extension::Mark => features.mark,
                Extension::Conntrack => features.conntrack,
                Extension::Nfacct => features.nfacct,
                Extension::Set => features.set,
                Extension::Physdev => features.physdev,
                Extension::Reject => features.reject,
                Extension::Dnat => features.dnat,
                Extension::Masquerade => features.masquerade,
                Extension::RandomFully => features.random_fully,
            };
            let outcome = match (&found, there) {
                (_, true) => Ok(()),
                (Err(_), _) => Err("there is no nat table to use it in".to_owned()),
                (Ok(_), false) => Err("a rule with it was refused".to_owned()),
            };
            self.record(Ability::Extension(family, extension), outcome);
        }
    }
}

/// An error number in words, for reasons.
fn words(errno: Errno) -> String {
    errno.desc().to_owned()
}
