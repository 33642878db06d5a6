//! One try for each ability. A try removes everything that it makes.

use net::Family;
use netlink::{
    Error, Protocol, Request, Socket,
    conntrack::flows::{self, Match, Reply},
    links,
    routes::{self, Kind, Route},
    rules, sysctl,
};
use nix::errno::Errno;
use xtables::{
    Engine, Search, Xtables,
    features::{self, Probed},
    run::Writer,
};

use super::{
    Ability, Attempt, Examination, Extension, Findings, Kernel, Scope, Setting, Unable,
    answer::{Tried, found_or},
    sockets::{self, test_address},
    words,
};
use crate::kernel::io_uring::Ring;

/// A routing table that no other program is likely to use.
const TABLE: u32 = 0x5472_6970;

/// Tries whether this network namespace can be changed: without the privilege, the removal of a
/// missing object is refused before the kernel searches for it (`rtnetlink_rcv_msg`).
pub(super) fn net_admin() -> Tried {
    let mut socket = Socket::open(Protocol::Route)?;
    // RTM_DELLINK of an index that no link has.
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
    let request = Request::new(nix::libc::RTM_DELLINK, 0, "try", "privileges").header(&header);
    match socket.acknowledge(&request) {
        Err(error) if matches!(error.errno(), Some(Errno::EPERM | Errno::EACCES)) => {
            Err(Unable::Missing(words(Errno::EPERM)))
        }
        Err(error) if error.is_passing() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Tries to make and use a ring like those of the data path.
fn io_uring() -> Tried {
    let mut ring = Ring::new()?;
    Ok(ring.enable()?)
}

/// Returns whether the setting is 1 or could be; nothing is written.
pub(super) fn setting(setting: Setting) -> Tried {
    Ok(sysctl::settable(setting.name(), "1")?)
}

/// Tries everything that takes objects in a network namespace, except for abilities that are among
/// the `findings`.
pub(super) fn objects(examination: &Examination<'_>, findings: Option<&Findings>) -> Kernel {
    let mut kernel = Kernel::default();
    for family in Family::ALL {
        kernel.record(Ability::Sockets(family), sockets::sockets(family));
        kernel.record(Ability::Transparent(family), sockets::transparent(family));
        let (local, ports) = (Ability::LocalRoutes(family), Ability::PortRules(family));
        let outcome = found_or(findings, &local, || local_route(family));
        kernel.record(local, outcome);
        let outcome = found_or(findings, &ports, || port_rule(family));
        kernel.record(ports, outcome);
    }
    kernel.record(Ability::ReusePort, sockets::reuse_port());
    kernel.record(Ability::Splice, sockets::splicing());
    kernel.record(Ability::IoUring, io_uring());
    kernel.record(Ability::Conntrack, conntrack());
    let dummy = found_or(findings, &Ability::DummyLink, super::ipvs::dummy_link);
    kernel.record(Ability::DummyLink, dummy);
    super::ipvs::sets(&mut kernel, findings);
    super::nftables::parts(&mut kernel, findings);
    // The module of IPVS is loaded with modprobe.
    if examination.scope == Scope::Everything {
        super::ipvs::virtual_servers(examination.schedulers, &mut kernel, findings);
    }
    kernel
}

/// Returns the abilities that [`objects`] would try, as unknown because of `why`.
pub(super) fn nothing_known(schedulers: &[String], why: &str) -> Kernel {
    let all = Ability::all(schedulers).into_iter();
    let mut kernel = Kernel::default();
    for ability in all.filter(|ability| *ability != Ability::NetAdmin) {
        kernel.record(ability, Err(Unable::Unknown(why.to_owned())));
    }
    kernel
}

/// The route that the try adds.
pub(super) fn test_route(family: Family) -> Result<Route, Error> {
    Ok(Route {
        table: TABLE,
        destination: test_address(family).into(),
        kind: Kind::Local(links::index("lo")?),
        source: None,
    })
}

fn local_route(family: Family) -> Tried {
    let mut socket = Socket::open(Protocol::Route)?;
    let route = [test_route(family)?];
    for outcome in routes::add(&mut socket, &route)? {
        outcome?;
    }
    routes::delete(&mut socket, &route)?;
    Ok(())
}

fn port_rule(family: Family) -> Tried {
    let mut socket = Socket::open(Protocol::Route)?;
    Ok(rules::supports_ports(&mut socket, family)?)
}

/// Deletes the flows to an address that no host has.
fn conntrack() -> Tried {
    let none = Match {
        protocol: flows::UDP,
        destination: Some(test_address(Family::V4)),
        port: Some(1),
        reply: Reply::Any,
    };
    let mut socket = Socket::open(Protocol::Netfilter)?;
    flows::delete(&mut socket, Family::V4, &[none])?;
    Ok(())
}

/// Records that the abilities of iptables are unknown because of `why`.
pub(super) fn no_rules_known(why: &str) -> Kernel {
    let mut kernel = Kernel::default();
    for family in Family::ALL {
        let unknown = Unable::Unknown(why.to_owned());
        kernel.record(Ability::Nat(family), Err(unknown.clone()));
        kernel.set_features(family, Err(unknown));
    }
    kernel
}

/// Finds out which programs work here and which matches and targets rules may use, per family. The
/// choice of programs belongs to the node, so it is read in the current namespace;
/// `features::probe` tries the rest in a scratch one, unless it is among the `findings`.
pub(super) fn xtables(findings: Option<&Findings>, attempt: Attempt) -> Kernel {
    let mut kernel = Kernel::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return no_rules_known(&error.to_string()),
    };
    let known = |family: Family, engine: Engine| {
        findings.and_then(|findings| findings.features(family, engine))
    };
    let search = |family| Search {
        family,
        settles: attempt == Attempt::Last,
        known: Some(&known),
    };
    let searches = Family::ALL.map(search);
    let [v4, v6] = searches.each_ref().map(usable);
    let (v4, v6) = runtime.block_on(async { tokio::join!(v4, v6) });
    for (family, found) in Family::ALL.into_iter().zip([v4, v6]) {
        let engines = runtime.block_on(Xtables::engines(family));
        let mut unknown = [Engine::NfTables, Engine::Legacy].into_iter();
        let unknown = unknown.find_map(|engine| engines.unknown(engine));
        kernel
            .unidentified
            .extend(unknown.map(|error| error.to_string()));
        let (writer, probed) = found;
        let nat = probed.as_ref().map(drop).map_err(Unable::clone);
        kernel.set_features(family, probed);
        if let Err(why) = &nat {
            let marks = match (why, &writer) {
                (_, Some(_)) => Ok(()),
                (Unable::Unknown(_), None) => nat.clone(),
                (Unable::Missing(_), None) => Err(Unable::Missing(
                    "a rule with it in table mangle was refused".to_owned(),
                )),
            };
            if marks.is_ok() {
                kernel.record(Ability::Extension(family, Extension::Mark), Ok(()));
            }
            kernel.record(Ability::Extension(family, Extension::Socket), marks);
        }
        kernel.record(Ability::Nat(family), nat);
        *kernel.writers.get_mut(family) = writer;
    }
    kernel
}

/// Returns the program that works with table nat, with its features; else the one that works with
/// table mangle and the match for sockets, if any, with the reason why nat does not work.
async fn usable(search: &Search<'_>) -> (Option<Writer>, Result<Probed, Unable>) {
    let why = match Writer::find(search).await {
        Ok((writer, probed)) => return (Some(writer), Ok(probed)),
        Err(error) => Unable::from(error),
    };
    let mut unknown = None;
    for xtables in Xtables::installed(search.family) {
        let engine = async {
            features::marks_sockets(&xtables).await?;
            xtables.engine().await
        };
        match engine.await {
            Ok(engine) => return (Some(Writer { xtables, engine }), Err(why)),
            Err(error) if error.is_unanswered() => {
                unknown.get_or_insert(Unable::from(error));
            }
            Err(_) => {}
        }
    }
    // If nat is known to be missing and all else is unknown, the next attempt tries only this
    // again.
    (None, Err(unknown.unwrap_or(why)))
}
