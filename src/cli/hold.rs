//! The subcommand that keeps sockets while no proxy runs: `tripod hold`.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};

use super::help;
use crate::{confine::Confinement, hold::SOCKET};

/// The settings of `tripod hold`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Path of the unix socket at which proxies find the holder.
    pub socket: PathBuf,
    /// How far the process confines itself.
    pub confinement: Confinement,
}

const HELP: &str = "\
Runs next to the proxy in userspace mode, until SIGTERM. It keeps the proxy's listening
sockets open while no proxy runs: clients that connect in the meantime wait for the next
proxy, which gets the sockets, instead of being refused. The holder itself accepts and
reads nothing; if it ends, the proxy continues. Both must run as the same user and share
the folder of the socket.

Example:
      tripod hold &
      tripod --proxy-mode=userspace";

pub(super) fn command() -> Command {
    let socket = Arg::new("userspace-holder-socket")
        .long("userspace-holder-socket")
        .value_name("PATH")
        .default_value(SOCKET)
        .help("Its socket")
        .long_help("The unix socket at which proxies find this process");
    let confine = Arg::new("confine")
        .long("confine")
        .value_name("HOW")
        .default_value("calls")
        .value_parser(Confinement::parse);
    let confine = help::explained(
        confine,
        "capabilities, calls, files or none",
        "How far it restricts itself: to the capabilities that it needs (capabilities), also to \
         system calls (calls), also to files (files), or not at all (none)",
    );
    let about = "Keep the sockets of userspace mode open between two runs of Tripod";
    let command = help::with_text(Command::new("hold").about(about), HELP);
    command.arg(socket).arg(confine)
}

pub(super) fn read(matches: &ArgMatches) -> Hold {
    let path = matches.get_one::<String>("userspace-holder-socket");
    let confinement = matches.get_one::<Confinement>("confine");
    Hold {
        socket: path.map_or(SOCKET, String::as_str).into(),
        confinement: confinement.copied().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Job, Settings};

    fn read(words: &[&str]) -> Settings {
        let words = ["tripod"].iter().chain(words).map(Into::into);
        cli::read(words, |_| unreachable!()).expect("it is taken")
    }

    #[test]
    fn holder_and_proxy_meet_at_the_same_socket() {
        let flag = "--userspace-holder-socket=/s";
        let hold = |socket: &str, confinement| {
            Job::Hold(Hold {
                socket: socket.into(),
                confinement,
            })
        };
        assert_eq!(read(&["hold"]).job, hold(SOCKET, Confinement::Calls));
        let files = "--confine=files";
        let job = read(&["hold", flag, files]).job;
        assert_eq!(job, hold("/s", Confinement::Files));
        let socket = |words: &[&str]| read(words).own.holder_socket;
        assert_eq!(socket(&[]), Some(SOCKET.into()));
        assert_eq!(socket(&[flag]), Some("/s".into()));
        assert_eq!(socket(&["--userspace-holder-socket="]), None);
    }
}
