//! The destination of packets, for `tripod explain` and `tripod trace`.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, error::ErrorKind};

use crate::status_api::Destination;

const WORD: &str = "destination";
const FLAG: &str = "to";

/// The argument that names the destination, and a flag with the same meaning, for symmetry with
/// `--from`.
impl Args for Destination {
    fn augment_args(command: Command) -> Command {
        let arg = |name: &'static str| {
            let arg = Arg::new(name).value_name("DESTINATION");
            arg.value_parser(Destination::read)
        };
        let word = arg(WORD)
            .required_unless_present(FLAG)
            .help("ADDRESS:PORT or [NAMESPACE/]SERVICE[:PORT], with /udp for UDP")
            .long_help(
                "Destination of the packet, as ADDRESS:PORT or [NAMESPACE/]SERVICE[:PORT], followed \
                 by /udp for UDP: an address with a port (IPv6 addresses in brackets), or a \
                 Service, with the number or name of a port if it has several",
            );
        let flag = arg(FLAG)
            .long(FLAG)
            .conflicts_with(WORD)
            .hide_short_help(true)
            .help("The same as DESTINATION");
        command.arg(word).arg(flag)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Destination::augment_args(command)
    }
}

impl FromArgMatches for Destination {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Destination, Error> {
        let mut given = [WORD, FLAG].into_iter();
        let found = given.find_map(|name| matches.get_one::<Destination>(name));
        let missing = || Error::raw(ErrorKind::MissingRequiredArgument, "DESTINATION is missing");
        found.cloned().ok_or_else(missing)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Destination::from_arg_matches(matches)?;
        Ok(())
    }
}
