//! The destination of packets, for `tripod explain` and `tripod trace`.

use clap::{Arg, ArgMatches, Command};

use super::help;
use crate::status_api::Destination;

const WORD: &str = "destination";
const FLAG: &str = "to";

/// Returns `command` with the argument that names the destination, and a flag with the same
/// meaning, for symmetry with `--from`.
pub(super) fn added(command: Command) -> Command {
    let arg = |name: &'static str| {
        let arg = Arg::new(name).value_name("DESTINATION");
        arg.value_parser(Destination::read)
    };
    let word = help::explained(
        arg(WORD).required_unless_present(FLAG),
        "ADDRESS:PORT or [NAMESPACE/]SERVICE[:PORT], with /udp for UDP",
        "Destination of the packet, as ADDRESS:PORT or [NAMESPACE/]SERVICE[:PORT], followed by \
         /udp for UDP: an address with a port (IPv6 addresses in brackets), or a Service, with the \
         number or name of a port if it has several",
    );
    let flag = arg(FLAG)
        .long(FLAG)
        .conflicts_with(WORD)
        .hide_short_help(true)
        .help("The same as DESTINATION");
    let usage = format!("tripod {} [OPTIONS] <DESTINATION>", command.get_name());
    command.override_usage(usage).arg(word).arg(flag)
}

/// Returns the destination that `matches` name.
///
/// # Errors
/// When there is none.
pub(super) fn chosen(matches: &ArgMatches) -> Result<Destination, String> {
    let mut given = [WORD, FLAG].into_iter();
    let found = given.find_map(|name| matches.get_one::<Destination>(name));
    found.cloned().ok_or("DESTINATION is missing".to_owned())
}
