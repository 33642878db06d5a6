//! The subcommand that keeps sockets while no proxy runs: `tripod hold`.

use std::path::PathBuf;

use clap::Args;

use crate::{confine::Confinement, hold::SOCKET};

/// The settings of `tripod hold`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Hold {
    /// Its socket
    #[arg(long = "userspace-holder-socket", value_name = "PATH", default_value = SOCKET)]
    #[arg(long_help = "The unix socket at which proxies find this process")]
    pub socket: PathBuf,
    /// capabilities, calls, files or none
    #[arg(long = "confine", value_name = "HOW", default_value = "calls")]
    #[arg(value_parser = Confinement::parse)]
    #[arg(
        long_help = "How far it restricts itself: to the capabilities that it needs \
                       (capabilities), also to system calls (calls), also to files (files), or not \
                       at all (none)"
    )]
    pub confinement: Confinement,
}

pub(super) const HELP: &str = "\
Runs next to the proxy in userspace mode, until SIGTERM. It keeps the proxy's listening
sockets open while no proxy runs: clients that connect in the meantime wait for the next
proxy, which gets the sockets, instead of being refused. The holder itself accepts and
reads nothing; if it ends, the proxy continues. Both must run as the same user and share
the folder of the socket.

Example:
      tripod hold &
      tripod --proxy-mode=userspace";

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
