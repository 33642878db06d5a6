//! What this kernel, these privileges and this container can really do: found
//! out by trying, in a network namespace that goes away afterwards, or with
//! scratch objects where none can be made. Version numbers tell little: vendors
//! leave things out and port things back.

mod ability;
mod ipvs;
mod leave_out;
mod sockets;
mod tries;

use std::collections::BTreeMap;

use nix::errno::Errno;

pub use self::{
    ability::{Ability, Extension, Setting},
    leave_out::LeaveOut,
};
use super::{
    Family,
    scratch::in_scratch,
    xtables::{self, Toolkit, Xtables, features::Features},
};

/// What was found out: the one view of the kernel that verdicts judge and modes
/// are made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Each thing that was tried, with the reason if it cannot be done.
    tried: BTreeMap<Ability, Option<String>>,
    /// The programs for table nat, where they work.
    toolkits: BTreeMap<Family, Toolkit>,
    /// Programs whose rules find sockets, where nothing works for table nat.
    markers: BTreeMap<Family, Xtables>,
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
        // In a thread of its own, because it has a runtime of its own.
        let rules = std::thread::scope(|scope| {
            let worker = scope.spawn(tries::xtables);
            // Without CAP_SYS_ADMIN, as in a container that has CAP_NET_ADMIN
            // alone, things are tried where we are, under names of ours, and
            // taken away at once. Without CAP_NET_ADMIN either each says so.
            let tried = in_scratch(|| tries::objects(schedulers));
            let tried = tried.unwrap_or_else(|_| tries::objects(schedulers));
            kernel.tried.extend(tried.tried);
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        kernel.tried.extend(rules.tried);
        // Those of IPVS are there once its module is.
        for setting in Setting::ALL {
            kernel.record(Ability::Setting(setting), tries::setting(setting));
        }
        Kernel {
            tried: kernel.tried,
            ..rules
        }
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
            Ability::Setting(Setting::VsConntrack),
            Ability::Setting(Setting::RouteLocalnet),
            Ability::Conntrack,
            Ability::Ipvs,
            Ability::DummyLink,
            Ability::ReusePort,
            Ability::Splice,
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

    /// What iptables' rules of that family may use.
    pub fn features(&self, family: Family) -> Features {
        let mut features = Features::NONE;
        for extension in Extension::ALL {
            *extension.of(&mut features) = self.can(&Ability::Extension(family, extension));
        }
        features
    }

    /// iptables or ip6tables, and what its rules may use.
    ///
    /// # Errors
    /// When there is none that works.
    pub fn toolkit(&self, family: Family) -> Result<Toolkit, xtables::Error> {
        let unusable = |reason: &str| xtables::Error::Unusable {
            family,
            reason: reason.to_owned(),
        };
        if let Some(why) = self.lack(&Ability::Nat(family)) {
            return Err(unusable(why));
        }
        let toolkit = self.toolkits.get(&family);
        let toolkit = toolkit.ok_or_else(|| unusable("it was not looked for"))?;
        Ok(Toolkit {
            features: self.features(family),
            ..toolkit.clone()
        })
    }

    /// The program whose rules mark packets for sockets of ours.
    ///
    /// # Errors
    /// Why there is none.
    pub fn marker(&self, family: Family) -> Result<Xtables, String> {
        for extension in [Extension::Socket, Extension::Mark] {
            let ability = Ability::Extension(family, extension);
            // Without a nat table only the first was tried, with the other in
            // the same rule.
            let tried = extension == Extension::Socket || self.toolkits.contains_key(&family);
            if let Some(why) = self.lack(&ability).filter(|_| tried) {
                let remedy = ability.remedy();
                return Err(format!(
                    "it takes iptables with {} in table mangle ({why}; {remedy})",
                    extension.spelling()
                ));
            }
        }
        let toolkit = self.toolkits.get(&family).map(|toolkit| &toolkit.xtables);
        let found = toolkit.or_else(|| self.markers.get(&family));
        found.cloned().ok_or_else(|| "it was not tried".to_owned())
    }

    fn set_features(&mut self, family: Family, found: Result<Features, String>) {
        let why = match &found {
            Ok(_) => "a rule with it was refused",
            Err(_) => "there is no nat table to use it in",
        };
        let mut features = found.unwrap_or(Features::NONE);
        for extension in Extension::ALL {
            let there = *extension.of(&mut features);
            let outcome = there.then_some(()).ok_or_else(|| why.to_owned());
            self.record(Ability::Extension(family, extension), outcome);
        }
    }
}

/// An error number in words, for reasons.
fn words(errno: Errno) -> String {
    errno.desc().to_owned()
}
