//! Capabilities that each mode needs, and their purposes.

use enumset::EnumSet;
use ipvs::ipset;
use net::Family;

use super::{ModeRequirements, Need, Weight};
use crate::{
    config::ModeName,
    kernel::probe::{Ability, Extension, Kernel, NftPart, Setting},
    modes::{
        iptables, nftables,
        userspace::{Io, capture::Requested},
    },
};

/// The scheduler that replaces missing ones.
const ROUND_ROBIN: &str = "rr";

fn required(ability: Ability, effect: &'static str) -> Need {
    Need::new(Weight::Required, ability, effect)
}

/// Returns a need without which the mode runs, but differently: for one IP family only,
/// or by other means.
fn decisive(ability: Ability, effect: &'static str) -> Need {
    Need::new(Weight::Decisive, ability, effect)
}

fn useful(ability: Ability, effect: &'static str) -> Need {
    Need::new(Weight::Useful, ability, effect)
}

pub(super) fn needs(mode: ModeName, kernel: &Kernel, requirements: &ModeRequirements) -> Vec<Need> {
    let mut needs = vec![
        required(
            Ability::NetAdmin,
            "putting service addresses, routes or rules into the kernel",
        ),
        required(
            Ability::Sockets(requirements.primary),
            "the node's own family",
        ),
    ];
    // Without it everything else fails too, and says nothing about the kernel.
    if !kernel.can(&Ability::NetAdmin) {
        return needs;
    }
    match mode {
        ModeName::Ipvs => ipvs(&mut needs, kernel, requirements),
        ModeName::Nftables => {
            needs.extend(nftables(kernel, requirements.primary));
            needs.push(useful(Ability::Conntrack, UDP_CLIENTS));
        }
        ModeName::Iptables => iptables(&mut needs, kernel, requirements.primary),
        ModeName::Userspace => userspace(&mut needs, kernel, requirements),
    }
    let other = requirements.primary.other();
    if mode == ModeName::Userspace {
        needs.extend(undecided_capture(kernel, requirements, other));
        return needs;
    }
    let sockets = Ability::Sockets(other);
    if kernel.unknown(&sockets).is_some() {
        needs.push(decisive(sockets, OF_OTHER_FAMILY));
        return needs;
    }
    // A node without the other family lacks nothing for the Services that it
    // can have.
    if !kernel.can(&sockets) {
        return needs;
    }
    let theirs = match mode {
        ModeName::Nftables => nftables(kernel, other),
        _ => {
            needs.push(decisive(Ability::Nat(other), OF_OTHER_FAMILY));
            match mode {
                // Without a nat table its extensions do not matter.
                _ if !kernel.can(&Ability::Nat(other)) => Vec::new(),
                ModeName::Ipvs => extensions(other),
                _ => rules(other),
            }
        }
    };
    needs.extend(theirs.into_iter().map(|need| {
        if need.weight == Weight::Required {
            decisive(need.ability, OF_OTHER_FAMILY)
        } else {
            need
        }
    }));
    needs
}

/// The capabilities that the rules of nftables mode use.
fn nftables(kernel: &Kernel, family: Family) -> Vec<Need> {
    let of = |part| Ability::Nftables(family, part);
    // Without tables no other part was tried.
    if !kernel.can(&of(NftPart::Tables)) {
        return vec![required(
            of(NftPart::Tables),
            "tables with maps of Services",
        )];
    }
    let mut needs: Vec<Need> = nftables::REQUIRED
        .into_iter()
        .map(|part| {
            required(
                of(part),
                "rules that send connections to endpoints and back",
            )
        })
        .collect();
    let spreading = "spreading connections over endpoints";
    let hash = kernel.can(&of(NftPart::Hash));
    needs.push(if hash || kernel.can(&of(NftPart::Numgen)) {
        useful(
            of(NftPart::Numgen),
            "without it, connections are spread over endpoints by a hash of the client's port",
        )
    } else if kernel.unknown(&of(NftPart::Hash)).is_some() {
        // It may be there instead.
        required(of(NftPart::Hash), spreading)
    } else {
        required(of(NftPart::Numgen), spreading)
    });
    for (part, effect) in [
        (
            NftPart::Hash,
            "without it, there are no schedulers sh, mh and mh-port",
        ),
        (
            NftPart::Fib,
            "without it, node ports answer only on the addresses of the Node object",
        ),
        (
            NftPart::Reject,
            "without it, clients of Services without endpoints time out instead of being refused",
        ),
        (
            NftPart::DynamicMaps,
            "without it, a hash of the client's address replaces session affinity, which does not \
             expire and moves clients when endpoints are added or removed",
        ),
        (
            NftPart::Counters,
            "without it, nothing is counted for --service-metrics",
        ),
        (
            NftPart::ConnectionCounts,
            "without it, max-connections and max-connections-per-client of Services have no effect",
        ),
    ] {
        needs.push(useful(of(part), effect));
    }
    needs
}

const UDP_CLIENTS: &str =
    "without it, UDP clients that keep their socket may keep calling a removed endpoint";

const OF_OTHER_FAMILY: &str = "without it, Services of that family are not served";

fn ipvs(needs: &mut Vec<Need>, kernel: &Kernel, requirements: &ModeRequirements) {
    let family = requirements.primary;
    needs.push(required(Ability::Ipvs, "virtual servers"));
    needs.push(required(
        Ability::DummyLink,
        "the link kube-ipvs0, which holds the service addresses",
    ));
    for kind in ipset::Kind::ALL {
        needs.push(required(
            Ability::IpSet(kind),
            "naming service addresses in rules whose number does not grow with Services",
        ));
    }
    needs.push(required(
        Ability::Nat(family),
        "masquerading, without which answers bypass this node",
    ));
    if kernel.can(&Ability::Nat(family)) {
        needs.extend(extensions(family));
    }
    if kernel.can(&Ability::Ipvs) {
        schedulers(needs, requirements);
        needs.push(required(
            Ability::Setting(Setting::VsConntrack),
            "masquerading connections through IPVS",
        ));
    }
    needs.push(useful(Ability::Conntrack, UDP_CLIENTS));
}

/// The capabilities that the rules around virtual servers use.
fn extensions(family: Family) -> Vec<Need> {
    let mut needs = Vec::new();
    for (extension, effect) in [
        (
            Extension::Set,
            "rules that look up service addresses in sets",
        ),
        (
            Extension::Mark,
            "marking connections that must be masqueraded",
        ),
        (
            Extension::Masquerade,
            "masquerading, without which answers bypass this node",
        ),
        (
            Extension::Addrtype,
            "distinguishing node ports from other ports",
        ),
        (Extension::Conntrack, "letting answers through"),
    ] {
        needs.push(required(Ability::Extension(family, extension), effect));
    }
    for (extension, effect) in [
        (
            Extension::Comment,
            "without it, rules do not say what they are for",
        ),
        (
            Extension::RandomFully,
            "without it, two masqueraded connections made at the same moment may collide",
        ),
        (
            Extension::Reject,
            "without it, clients that call other ports of a service address time out",
        ),
    ] {
        needs.push(useful(Ability::Extension(family, extension), effect));
    }
    needs
}

fn schedulers(needs: &mut Vec<Need>, requirements: &ModeRequirements) {
    needs.push(required(
        Ability::Scheduler(ROUND_ROBIN.to_owned()),
        "virtual servers whose own scheduler is missing",
    ));
    if requirements.scheduler != ROUND_ROBIN {
        needs.push(useful(
            Ability::Scheduler(requirements.scheduler.clone()),
            "the requested scheduler; without it, rr",
        ));
    }
}

fn iptables(needs: &mut Vec<Need>, kernel: &Kernel, family: Family) {
    needs.push(required(
        Ability::Nat(family),
        "sending connections to endpoints",
    ));
    if kernel.can(&Ability::Nat(family)) {
        needs.extend(rules(family));
    }
    needs.push(useful(Ability::Conntrack, UDP_CLIENTS));
    needs.push(useful(
        Ability::Setting(Setting::RouteLocalnet),
        "without it, node ports are not served on loopback addresses",
    ));
}

/// The capabilities that the chains of iptables mode use.
fn rules(family: Family) -> Vec<Need> {
    let need = |extension: Extension| {
        let of = |(one, effect)| (one == extension).then_some(effect);
        let ability = Ability::Extension(family, extension);
        match iptables::plan::NEEDED.into_iter().find_map(of) {
            Some(effect) => Some(required(ability, effect)),
            None => Some(useful(
                ability,
                iptables::plan::LOST.into_iter().find_map(of)?,
            )),
        }
    };
    EnumSet::all().into_iter().filter_map(need).collect()
}

fn userspace(needs: &mut Vec<Need>, kernel: &Kernel, requirements: &ModeRequirements) {
    let family = requirements.primary;
    let nat = Ability::Nat(family);
    let redirect = Ability::Extension(family, Extension::Redirect);
    let dnat = Ability::Extension(family, Extension::Dnat);
    let redirects = kernel.can(&nat) && kernel.can(&redirect);
    let redirects = redirects && (requirements.capture == Requested::Redirect || kernel.can(&dnat));
    match requirements.capture {
        Requested::Redirect => {
            needs.push(required(nat, "redirect capture"));
            if kernel.can(&Ability::Nat(family)) {
                needs.push(required(redirect, "redirect capture"));
            }
        }
        Requested::Auto => {
            let instead =
                "redirect capture; without it, service addresses are captured by local routes";
            needs.push(decisive(nat, instead));
            if kernel.can(&Ability::Nat(family)) {
                needs.push(decisive(redirect, instead));
                needs.push(decisive(dnat, instead));
            }
        }
        Requested::Local => {}
    }
    let routed = match requirements.capture {
        Requested::Redirect => false,
        Requested::Auto => !redirects,
        Requested::Local => true,
    };
    if redirects && !routed {
        redirected(needs, requirements, family);
    }
    if routed {
        needs.push(required(
            Ability::LocalRoutes(family),
            "local capture of service addresses",
        ));
        needs.push(required(
            Ability::Transparent(family),
            "listeners on service addresses (local capture)",
        ));
        needs.push(useful(
            Ability::PortRules(family),
            "without it, the node's own services answer on service addresses too (local capture)",
        ));
    }
    needs.push(useful(
        Ability::ReusePort,
        "without it, one thread accepts all connections",
    ));
    needs.push(useful(
        Ability::Splice,
        "without it, bytes are copied through this process",
    ));
    if requirements.io == Io::Uring {
        needs.push(useful(
            Ability::IoUring,
            "without it, each short message takes two system calls of its own",
        ));
    }
    if !requirements.transparent {
        return;
    }
    let families = [family, family.other()];
    let there = families
        .iter()
        .filter(|of| kernel.can(&Ability::Sockets(**of)));
    needs.extend(there.map(|of| {
        useful(
            Ability::Extension(*of, Extension::Socket),
            "without it, --userspace-transparent does nothing: endpoints see the node's address",
        )
    }));
}

/// Unknown capabilities that decide how `family`, the secondary one, is captured. Those known to be
/// missing there are not reported as missing.
fn undecided_capture(
    kernel: &Kernel,
    requirements: &ModeRequirements,
    family: Family,
) -> Vec<Need> {
    if requirements.capture == Requested::Local {
        return Vec::new();
    }
    let mut abilities = vec![
        Ability::Sockets(family),
        Ability::Nat(family),
        Ability::Extension(family, Extension::Redirect),
        Ability::Extension(family, Extension::Dnat),
    ];
    abilities.retain(|ability| kernel.unknown(ability).is_some());
    let effect = "redirect capture of that family";
    let needs = abilities.into_iter();
    needs.map(|ability| decisive(ability, effect)).collect()
}

/// Adds the optional capabilities of rules that redirect to listeners.
fn redirected(needs: &mut Vec<Need>, requirements: &ModeRequirements, family: Family) {
    for (extension, effect) in [
        (
            Extension::Conntrack,
            "without it, the local ports of listeners can be called from outside (redirect capture)",
        ),
        (
            Extension::Socket,
            "without it, other users' programs can take the local ports of a process that was \
             killed, unless tripod hold keeps them (redirect capture)",
        ),
        (
            Extension::Reject,
            "without it, clients of a Service without endpoints, and those that call the local \
             port of a listener, get no answer (redirect capture)",
        ),
        (
            Extension::Addrtype,
            "without it, node ports answer on the addresses that the node has at each full sync",
        ),
        (
            Extension::Comment,
            "without it, rules do not say what they are for",
        ),
    ] {
        // With that flag it has a need of its own.
        if extension != Extension::Socket || !requirements.transparent {
            needs.push(useful(Ability::Extension(family, extension), effect));
        }
    }
    if requirements.capture == Requested::Redirect {
        needs.push(useful(
            Ability::Extension(family, Extension::Dnat),
            "without it, packets that arrive through a link without an address are lost (redirect \
             capture)",
        ));
    }
}
