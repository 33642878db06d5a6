//! The subcommand that follows packets: `tripod trace`.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::{Arg, ArgMatches, Command};
use net::Family;

use super::{
    ask::{self, Output},
    destination, help,
};
use crate::{
    duration,
    status_api::{Addressee, Destination},
};

/// Which packets are followed, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Where they are sent.
    pub to: Destination,
    /// Their source; `None`: any.
    pub from: Option<IpAddr>,
    /// It ends after this number of connections or UDP clients.
    pub count: usize,
    /// It ends after this time.
    pub timeout: Duration,
    /// How it is printed: as text, as lines of JSON or as documents of YAML.
    pub output: Output,
    /// The unix socket on which the running proxy answers.
    pub socket: PathBuf,
}

const HELP: &str = "\
Shows for each new connection, and for each UDP client, the interface by which it comes
in, the rules that it matches with their verdicts, and the endpoint to which it is sent,
or the rule that refuses or drops it; at the end, how many were sent where. Needs root.
Packets are not changed. While the command runs, a table of nf_tables makes the kernel
report them (meta nftrace), at most 100 per second; the kernel removes this table when
the process ends, even if it is killed. Rules in legacy tables are not shown. Exits with
0; with 1 if the trace ended early; and with 2 if nothing can be traced or the command
line is wrong.

For a Service, it follows packets to the cluster IP, which the running proxy names.

Examples:
      tripod trace shop/web:http
      tripod trace 10.96.0.10:53/udp
      tripod trace 192.0.2.10:30080 --from 198.51.100.7 --count 1 --timeout 1m";

pub(super) fn command() -> Command {
    let about = "Follow the next packets to a Service through this node";
    let from = Arg::new("from")
        .long("from")
        .value_name("ADDRESS")
        .value_parser(|text: &str| {
            let ip = text.parse::<IpAddr>().map_err(|error| error.to_string())?;
            Ok::<_, String>(ip.to_canonical())
        })
        .help("Follow only packets from this address");
    let count = Arg::new("count")
        .long("count")
        .value_name("NUMBER")
        .default_value("10")
        .value_parser(clap::value_parser!(u32).range(1..=100_000))
        .help("Stop after this many connections");
    let timeout = Arg::new("timeout")
        .long("timeout")
        .value_name("DURATION")
        .default_value("10s")
        .value_parser(duration::parse)
        .help("Stop after this time, such as 10s or 5m");
    destination::added(help::with_text(Command::new("trace").about(about), HELP))
        .arg(from)
        .arg(count)
        .arg(timeout)
        .arg(ask::output())
        .arg(ask::socket())
}

/// Reads the settings of the subcommand.
///
/// # Errors
/// When parts of it contradict each other.
pub(super) fn read(matches: &ArgMatches) -> Result<Trace, String> {
    let to = destination::chosen(matches)?;
    let from = matches.get_one::<IpAddr>("from").copied();
    if let Addressee::Address(to) = &to.addressee
        && to.ip().is_unspecified()
    {
        let ip = to.ip();
        return Err(format!(
            "no packet has the destination {to}: the kernel sends to the caller's own host, as to \
             {}, what a program sends to {ip}",
            Family::of(&ip).localhost()
        ));
    }
    if let (Some(from), Addressee::Address(to)) = (from, &to.addressee)
        && Family::of(&from) != Family::of(&to.ip())
    {
        return Err("the destination and --from are of different IP families".to_owned());
    }
    let count = matches.get_one::<u32>("count").copied().unwrap_or(10);
    let timeout = matches.get_one::<Duration>("timeout").copied();
    Ok(Trace {
        to,
        from,
        count: usize::try_from(count).unwrap_or(usize::MAX),
        timeout: timeout.unwrap_or(Duration::from_secs(10)),
        output: ask::chosen(matches),
        socket: ask::chosen_socket(matches),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unspecified_address_is_the_destination_of_no_packet() {
        for (to, own) in [("0.0.0.0:80", "127.0.0.1"), ("[::]:80", "::1")] {
            let matches = command().try_get_matches_from(["trace", "--to", to]);
            let refused = read(&matches.expect("known flags")).err();
            let refused = refused.expect("it is refused");
            assert!(refused.contains(&format!(", as to {own}, ")), "{refused}");
        }
    }
}
