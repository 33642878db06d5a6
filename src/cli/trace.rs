//! The subcommand that follows packets: `tripod trace`.

use std::{net::IpAddr, time::Duration};

use clap::{Args, builder::TypedValueParser, value_parser};
use net::Family;

use super::{Stop, ask::Common};
use crate::{
    duration,
    status_api::{Addressee, Destination},
};

/// Which packets are followed, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Trace {
    /// Where they are sent.
    #[command(flatten)]
    pub to: Destination,
    /// Follow only packets from this address
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub from: Option<IpAddr>,
    /// Stop after this many connections
    #[arg(long, value_name = "NUMBER", default_value = "10")]
    #[arg(value_parser = value_parser!(u32).range(1..=100_000).map(|count| count as usize))]
    pub count: usize,
    /// Stop after this time, such as 10s or 5m
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub timeout: Duration,
    /// How it is printed: as text, as lines of JSON or as documents of YAML; and the running proxy.
    #[command(flatten)]
    pub common: Common,
}

pub(super) const HELP: &str = "\
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

fn address(text: &str) -> Result<IpAddr, String> {
    let ip = text.parse::<IpAddr>().map_err(|error| error.to_string())?;
    Ok(ip.to_canonical())
}

impl Trace {
    /// Returns these settings, unless parts of them contradict each other.
    pub(super) fn checked(self) -> Result<Trace, Stop> {
        let Addressee::Address(to) = &self.to.addressee else {
            return Ok(self);
        };
        let ip = to.ip();
        if ip.is_unspecified() {
            return Err(Stop::refused(format!(
                "no packet has the destination {to}: the kernel sends to the caller's own host, as \
                 to {}, what a program sends to {ip}",
                Family::of(&ip).localhost()
            )));
        }
        let is_other = |from: IpAddr| Family::of(&from) != Family::of(&ip);
        if self.from.is_some_and(is_other) {
            return Err(Stop::refused(
                "the destination and --from are of different IP families",
            ));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::{Stop, read};

    #[test]
    fn the_unspecified_address_is_the_destination_of_no_packet() {
        for (to, own) in [("0.0.0.0:80", "127.0.0.1"), ("[::]:80", "::1")] {
            let words = ["tripod", "trace", "--to", to].map(Into::into);
            let Err(Stop::Refusal(refused)) = read(words, |_| unreachable!()) else {
                panic!("{to} is not refused");
            };
            assert!(refused.contains(&format!(", as to {own}, ")), "{refused}");
        }
    }
}
