//! IPVS and what ipvs mode needs beside it.

use nix::errno::Errno;

use super::{Ability, Kernel, tries::reason};
use crate::kernel::{
    Family,
    ipset::{IpSets, Kind, Set},
    ipvs::Ipvs,
    links,
    netlink::{Error, Protocol, Socket},
};

/// Names of things that are made and taken away again.
const LINK: &str = "tripod-probe";
const SET: &str = "TRIPOD-PROBE";

pub(super) fn dummy_link() -> Result<(), String> {
    let mut socket = Socket::open(Protocol::Route).map_err(|e| reason(&e))?;
    links::add_dummy(&mut socket, LINK).map_err(|e| reason(&e))?;
    links::delete(&mut socket, LINK).map_err(|e| reason(&e))
}

pub(super) fn sets(kernel: &mut Kernel) {
    let mut opened = IpSets::open();
    for kind in super::IP_SETS {
        let outcome = match (&mut opened, Kind::of(kind)) {
            (Ok(sets), Some(kind)) => sets
                .create(&Set::new(SET, kind, Family::V4))
                .and_then(|()| sets.destroy(SET))
                .map_err(|e| hinted(&e)),
            (Ok(_), None) => Err("unknown".to_owned()),
            (Err(error), _) => Err(hinted(error)),
        };
        kernel.record(Ability::IpSet(kind), outcome);
    }
}

/// ipset has error numbers that the system does not know; then our words tell.
fn hinted(error: &Error) -> String {
    match error {
        Error::Refused {
            errno: Errno::UnknownErrno,
            hint: Some(hint),
            ..
        } => hint.clone(),
        other => reason(other),
    }
}

pub(super) fn virtual_servers(schedulers: &[String], kernel: &mut Kernel) {
    let mut opened = Ipvs::open();
    let outcome = match &mut opened {
        // Reading takes the privileges that writing takes.
        Ok(ipvs) => ipvs.info().map(drop).map_err(|e| reason(&e)),
        Err(error) => Err(reason(error)),
    };
    let works = outcome.clone();
    kernel.record(Ability::Ipvs, outcome);
    for name in schedulers {
        let outcome = match (&mut opened, &works) {
            (Ok(ipvs), Ok(())) => match ipvs.missing_schedulers([name.as_str()]) {
                Ok(missing) if missing.is_empty() => Ok(()),
                Ok(_) => Err("there is none of that name".to_owned()),
                Err(error) => Err(reason(&error)),
            },
            _ => Err("there is no IPVS to use it in".to_owned()),
        };
        kernel.record(Ability::Scheduler(name.clone()), outcome);
    }
}
