//! One try for each ability. Everything that a try makes it takes away.

use std::net::IpAddr;

use nix::errno::Errno;

use super::{Ability, Extension, Kernel, Setting, sockets, words};
use crate::kernel::{
    Family,
    conntrack::flows::{self, Match, Reply},
    links,
    netlink::{Error, Protocol, Request, Socket},
    routes::{self, Kind, Route},
    rules, sysctl,
    xtables::{self, Toolkit, Xtables, features},
};

/// A table of routes that nobody is likely to use.
const TABLE: u32 = 0x5472_6970;

/// Whether this network namespace lets itself be changed: taking away what is
/// not there is refused for lack of privilege before it is looked for
/// (`rtnetlink_rcv_msg`).
pub(super) fn net_admin() -> Result<(), String> {
    let mut socket = Socket::open(Protocol::Route).map_err(|e| e.to_string())?;
    // RTM_DELLINK of an index that no link has.
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
    let request = Request::new(nix::libc::RTM_DELLINK, 0, "try", "privileges").header(&header);
    match socket.call(&request, |_| Ok(None::<()>)) {
        Err(Error::Refused {
            errno: Errno::EPERM | Errno::EACCES,
            ..
        }) => Err(words(Errno::EPERM)),
        _ => Ok(()),
    }
}

/// Whether the setting is 1 or could be; nothing is written.
pub(super) fn setting(setting: Setting) -> Result<(), String> {
    sysctl::settable(setting.name(), "1").map_err(|error| error.reason())
}

/// Everything that is tried with objects in a network namespace.
pub(super) fn objects(schedulers: &[String]) -> Kernel {
    let mut kernel = Kernel::default();
    for family in Family::ALL {
        kernel.record(Ability::Sockets(family), sockets::sockets(family));
        kernel.record(Ability::Transparent(family), sockets::transparent(family));
        let route = || -> Result<_, Error> {
            let mut socket = Socket::open(Protocol::Route)?;
            Ok((
                local_route(&mut socket, family),
                port_rule(&mut socket, family),
            ))
        };
        let (local, ports) = match route() {
            Ok(outcomes) => outcomes,
            Err(error) => (Err(error.to_string()), Err(error.to_string())),
        };
        kernel.record(Ability::LocalRoutes(family), local);
        kernel.record(Ability::PortRules(family), ports);
    }
    kernel.record(Ability::ReusePort, sockets::reuse_port());
    kernel.record(Ability::Splice, sockets::splicing());
    kernel.record(Ability::Conntrack, conntrack());
    kernel.record(Ability::DummyLink, super::ipvs::dummy_link());
    super::ipvs::sets(&mut kernel);
    super::ipvs::virtual_servers(schedulers, &mut kernel);
    kernel
}

fn test_address(family: Family) -> IpAddr {
    match family {
        Family::V4 => [192, 0, 2, 1].into(),
        Family::V6 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
    }
}

fn one(outcomes: Result<Vec<Result<(), Error>>, Error>) -> Result<(), String> {
    outcomes
        .and_then(|all| all.into_iter().collect())
        .map_err(|e| reason(&e))
}

/// The kernel's own words; what was tried is known already.
pub(super) fn reason(error: &Error) -> String {
    match error {
        Error::Refused { errno, .. } => words(*errno),
        Error::Socket { source, .. } => match source.raw_os_error() {
            Some(number) => words(Errno::from_raw(number)),
            None => source.to_string(),
        },
        other => other.to_string(),
    }
}

fn local_route(socket: &mut Socket, family: Family) -> Result<(), String> {
    let loopback = links::index("lo").map_err(|e| reason(&e))?;
    let route = [Route {
        table: TABLE,
        destination: test_address(family).into(),
        kind: Kind::Local(loopback),
        source: None,
    }];
    one(routes::add(socket, &route))?;
    routes::delete(socket, &route)
        .map_err(|e| reason(&e))
        .map(drop)
}

fn port_rule(socket: &mut Socket, family: Family) -> Result<(), String> {
    rules::supports_ports(socket, family).map_err(|e| reason(&e))
}

/// Deletes the flows to an address that nobody has.
fn conntrack() -> Result<(), String> {
    let nobody = Match {
        protocol: flows::UDP,
        destination: Some(test_address(Family::V4)),
        port: Some(1),
        reply: Reply::Any,
    };
    let mut socket = Socket::open(Protocol::Netfilter).map_err(|e| reason(&e))?;
    flows::delete(&mut socket, Family::V4, &[nobody])
        .map(|_| ())
        .map_err(|e| reason(&e))
}

/// Which programs work here and what rules may use, per family. Where the node
/// chose its programs counts, so that this is looked at in its own namespace;
/// the rest is tried in a scratch one by `features::probe`.
pub(super) fn xtables() -> Kernel {
    let mut kernel = Kernel::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let found = match &runtime {
        Ok(runtime) => {
            let [v4, v6] = Family::ALL.map(usable);
            let (v4, v6) = runtime.block_on(async { tokio::join!(v4, v6) });
            [v4, v6]
        }
        Err(error) => Family::ALL.map(|_| Found::Nothing(error.to_string())),
    };
    for (family, found) in Family::ALL.into_iter().zip(found) {
        let why = match found {
            Found::Toolkit(toolkit) => {
                kernel.record(Ability::Nat(family), Ok(()));
                kernel.set_features(family, Ok(toolkit.features));
                kernel.toolkits.insert(family, toolkit);
                continue;
            }
            Found::Marker(xtables, why) => {
                kernel.markers.insert(family, xtables);
                why
            }
            Found::Nothing(why) => why,
        };
        kernel.record(Ability::Nat(family), Err(why.clone()));
        kernel.set_features(family, Err(why));
        let found = kernel.markers.contains_key(&family).then_some(());
        let found = found.ok_or_else(|| "a rule with it in table mangle was refused".to_owned());
        kernel.record(Ability::Extension(family, Extension::Socket), found);
    }
    kernel
}

/// What works of iptables.
enum Found {
    /// Table nat.
    Toolkit(Toolkit),
    /// Table mangle with the match for sockets, and why not nat.
    Marker(Xtables, String),
    /// Why nothing does.
    Nothing(String),
}

async fn usable(family: Family) -> Found {
    let why = match Toolkit::find(family).await {
        Ok(toolkit) => return Found::Toolkit(toolkit),
        Err(xtables::Error::Unusable { reason, .. }) => reason,
        Err(error) => error.to_string(),
    };
    for xtables in Xtables::installed(family) {
        if features::marks_sockets(&xtables).await {
            return Found::Marker(xtables, why);
        }
    }
    Found::Nothing(why)
}
