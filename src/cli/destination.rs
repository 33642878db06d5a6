//! The flag `--to` of `tripod explain` and `tripod trace`.

use clap::Arg;

use super::help;
use crate::status_api::Destination;

/// Returns the flag that names the destination of packets.
pub(super) fn arg() -> Arg {
    let arg = Arg::new("to")
        .long("to")
        .value_name("DESTINATION")
        .required(true)
        .value_parser(Destination::read);
    help::explained(
        arg,
        "ADDRESS:PORT or [NAMESPACE/]SERVICE[:PORT], with /udp for UDP",
        "The packet's destination, as ADDRESS:PORT or [NAMESPACE/]SERVICE[:PORT], and /udp behind \
         it for UDP: an address with its port, where IPv6 addresses stand in brackets, or a \
         Service, with number or name of a port where it has several",
    )
}
