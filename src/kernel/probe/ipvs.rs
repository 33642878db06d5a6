//! IPVS, and the other requirements of ipvs mode.

use ipvs::{
    Ipvs,
    ipset::{IpSets, Kind, Set},
};
use net::Family;
use netlink::{Protocol, Socket, links};

use super::{
    Ability, Findings, Kernel, Unable,
    answer::{Tried, found_or},
};

/// Names of temporary objects.
pub(super) const LINK: &str = "tripod-probe";
pub(super) const SET: &str = "TRIPOD-PROBE";

pub(super) fn dummy_link() -> Tried {
    let mut socket = Socket::open(Protocol::Route)?;
    links::add_dummy(&mut socket, LINK)?;
    Ok(links::delete(&mut socket, LINK)?)
}

pub(super) fn sets(kernel: &mut Kernel, findings: Option<&Findings>) {
    let mut opened = None;
    for kind in Kind::ALL {
        let ability = Ability::IpSet(kind);
        let outcome = found_or(findings, &ability, || {
            let sets = opened.get_or_insert_with(IpSets::open);
            set(sets.as_mut().map_err(|error| Unable::from(&*error))?, kind)
        });
        kernel.record(ability, outcome);
    }
}

fn set(sets: &mut IpSets, kind: Kind) -> Tried {
    // A set left by a killed process would be in the way.
    sets.destroy(SET)?;
    sets.create(&Set::new(SET, kind, Family::V4))?;
    Ok(sets.destroy(SET)?)
}

pub(super) fn virtual_servers(
    schedulers: &[String],
    kernel: &mut Kernel,
    findings: Option<&Findings>,
) {
    let mut opened = Ipvs::open();
    let open = |opened: &mut Result<Ipvs, _>| -> Tried {
        match opened {
            // Reading takes the same privileges as writing.
            Ok(ipvs) => Ok(ipvs.check()?),
            Err(error) => Err(Unable::from(&*error)),
        }
    };
    let works = open(&mut opened);
    kernel.record(Ability::Ipvs, works.clone());
    for name in schedulers {
        let ability = Ability::Scheduler(name.clone());
        let outcome = match (&mut opened, &works) {
            (Ok(ipvs), Ok(())) => found_or(findings, &ability, || scheduler(ipvs, name)),
            (_, Err(unknown @ Unable::Unknown(_))) => Err(unknown.clone()),
            _ => Err(Unable::Missing("there is no IPVS to use it in".to_owned())),
        };
        kernel.record(ability, outcome);
    }
}

fn scheduler(ipvs: &mut Ipvs, name: &str) -> Tried {
    match ipvs.try_scheduler(name)? {
        None => Ok(()),
        Some(_) => Err(Unable::Missing("there is none of that name".to_owned())),
    }
}
