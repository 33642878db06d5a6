//! The jobs of the program; most of them are subcommands, as clap reads them.

use std::path::PathBuf;

use clap::Subcommand;

use super::{
    Ask, Check, Cleanup, Format, Hold, Migrate, Stop, Test, TestServer, Trace, Version, check,
    command, documents, hold, migrate, settings, test, trace,
};

/// The job of the process, by subcommand or flag.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Job {
    /// Serve until a signal ends the process.
    #[command(skip)]
    Serve,
    /// Do what needs full privileges (conntrack settings, kernel modules), and exit.
    #[command(skip)]
    Init,
    /// Write the configuration to this file, and exit.
    #[command(skip)]
    WriteConfig(PathBuf),
    /// Remove what Tripod and kube-proxy installed in this kernel, except settings
    Cleanup(Cleanup),
    /// Show which modes this kernel can run, and what the others lack
    Probe(Format),
    /// Print the rules of a mode for a folder of manifests
    Render,
    /// Print what the running proxy answers.
    #[command(flatten)]
    Ask(Ask),
    /// Show what changes when Tripod replaces kube-proxy on this node
    #[command(after_long_help = migrate::HELP)]
    Migrate(Migrate),
    /// Follow the next packets to a Service through this node
    #[command(
        after_long_help = trace::HELP,
        override_usage = "tripod trace [OPTIONS] <DESTINATION>"
    )]
    Trace(Trace),
    /// Check that this node serves what it should, and that calls arrive
    #[command(after_long_help = check::HELP)]
    Check(Check),
    /// Test whether calls to Services reach the endpoints that the mode promises
    #[command(
        after_long_help = test::HELP,
        override_usage = "tripod test --manifests <PATH> [OPTIONS]\n       tripod test [OPTIONS]"
    )]
    Test(Test),
    /// Answer calls of tripod test, in a pod that it made
    #[command(hide = true)]
    TestServer(TestServer),
    /// Keep the sockets of userspace mode open between two runs of Tripod
    #[command(after_long_help = hold::HELP)]
    Hold(Hold),
    /// Print a script for shell completion of commands and flags
    Completion {
        /// The shell that will read the script
        #[arg(value_name = "SHELL", value_parser = ["bash", "fish", "zsh"])]
        shell: String,
    },
    /// Print the manual page of Tripod or of a command, for man(1)
    Man {
        /// The command whose manual page is printed
        #[arg(value_name = "COMMAND", value_parser = documents::pages())]
        #[arg(hide_possible_values = true)]
        command: Option<String>,
    },
    /// Print the version
    Version,
}

impl Job {
    /// Returns the job that the command line asks for.
    ///
    /// # Errors
    /// The requested document, or why parts of the command line contradict each other.
    pub(super) fn checked(self) -> Result<Job, Stop> {
        Ok(match self {
            Job::Ask(Ask::Services(services)) => Job::Ask(Ask::Services(services.checked()?)),
            Job::Trace(trace) => Job::Trace(trace.checked()?),
            Job::Completion { shell } => {
                return Err(answer(&documents::script(&shell, command())));
            }
            Job::Man { command: of } => {
                return Err(answer(&documents::page(of.as_deref(), command())));
            }
            Job::Version => {
                return Err(answer(
                    &settings::version(&Version::Line).unwrap_or_default(),
                ));
            }
            job => job,
        })
    }
}

fn answer(text: &str) -> Stop {
    Stop::Answer(text.trim_end().to_owned())
}
