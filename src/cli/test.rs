//! The subcommand that tries out what a mode promises: `tripod test`.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::{Output, ask};
use crate::net::ModeName;

/// What is tried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Where.
    pub place: Place,
    /// How the report is printed.
    pub output: Output,
}

/// Where a test takes place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In network namespaces of its own, with the Services of a folder of manifests.
    Manifests(FolderTest),
}

/// A folder of manifests that is tried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderTest {
    /// The folder.
    pub folder: PathBuf,
    /// The mode; `None`: the best that this kernel can run.
    pub mode: Option<ModeName>,
    /// Name of the node that is tried; `None`: this machine's, or one that the manifests
    /// name.
    pub node: Option<String>,
}

const HELP: &str = "\
Exits with 0 if all that was tried is as promised, with 1 if something is not, and with
2 if nothing can be tried or the command line is wrong.

Examples:
  Try the Services and EndpointSlices of a folder, in namespaces made for it:
      tripod test --manifests /etc/tripod/manifests --proxy-mode=nftables";

pub(super) fn command() -> Command {
    let about = "Try out whether calls of Services reach what the mode promises, and exit";
    Command::new("test")
        .about(about)
        .after_help(HELP)
        .arg(
            Arg::new("manifests")
                .long("manifests")
                .value_name("DIR")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("Serve these objects in network namespaces, and call them there"),
        )
        .arg(
            Arg::new("proxy-mode")
                .long("proxy-mode")
                .value_name("MODE")
                .value_parser(ModeName::ALL.map(ModeName::name))
                .requires("manifests")
                .help("The mode to try; without it, the best that this kernel can run"),
        )
        .arg(
            Arg::new("hostname-override")
                .long("hostname-override")
                .value_name("NAME")
                .requires("manifests")
                .help(
                    "The node to be, by which endpoints are on this node or on others; without \
                     it this machine's name if the manifests have it, else the first they have",
                ),
        )
        .arg(ask::output(["table", "json", "yaml"]))
}

/// Returns what `matches`, of this subcommand, ask for.
///
/// # Errors
/// When something is missing.
pub(super) fn read(matches: &ArgMatches) -> Result<Test, String> {
    let folder = matches.get_one::<PathBuf>("manifests").cloned();
    let mode = matches.get_one::<String>("proxy-mode");
    let mode = ModeName::ALL
        .into_iter()
        .find(|known| mode.is_some_and(|mode| mode == known.name()));
    let node = matches.get_one::<String>("hostname-override");
    Ok(Test {
        place: Place::Manifests(FolderTest {
            folder: folder.ok_or("--manifests is missing")?,
            mode,
            node: node.cloned(),
        }),
        output: ask::chosen(matches),
    })
}
