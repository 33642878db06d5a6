//! The flag `--to` of `tripod explain` and `tripod trace`.

use clap::Arg;

use crate::status_api::Destination;

/// The flag that names the destination of packets.
pub(super) fn arg() -> Arg {
    Arg::new("to")
        .long("to")
        .value_name("ADDRESS:PORT|[NAMESPACE/]SERVICE[:PORT][/udp]")
        .required(true)
        .value_parser(Destination::read)
        .help(
            "The packet's destination: an address with its port, where IPv6 addresses stand in \
             brackets, or a Service, with number or name of a port where it has several",
        )
}
