//! The subcommands, as clap reads them.

use std::path::PathBuf;

use clap::Subcommand;

use super::{
    Ask, Check, Cleanup, Hold, Job, Question, Stop, TestServer, Trace, Version, ask, check,
    cleanup, command, documents, hold, migrate, settings, test, trace,
};

#[derive(Debug, Subcommand)]
pub(super) enum Commands {
    /// Remove what Tripod and kube-proxy installed in this kernel, except settings
    Cleanup(cleanup::Flags),
    /// Show which modes this kernel can run, and what the others lack
    Probe(ask::Format),
    /// Print the rules of a mode for a folder of manifests
    Render,
    /// Show health and everything that is not applied
    #[command(after_long_help = ask::STATUS_HELP)]
    Status(ask::StatusFlags),
    /// List the Services that the running Tripod serves, and their endpoints
    #[command(visible_aliases = ["ls", "svc", "list"], after_long_help = ask::SERVICES_HELP)]
    Services(ask::ServicesFlags),
    /// Show what changes when Tripod replaces kube-proxy on this node
    #[command(after_long_help = migrate::HELP)]
    Migrate(migrate::Flags),
    /// Explain where a packet to a Service goes, and why
    #[command(
        after_long_help = ask::EXPLAIN_HELP,
        override_usage = "tripod explain [OPTIONS] <DESTINATION>"
    )]
    Explain(ask::ExplainFlags),
    /// Show differences between the kernel and the desired state
    #[command(after_long_help = ask::DIFF_HELP)]
    Diff(ask::Common),
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
    Test(test::Flags),
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

impl Commands {
    /// Returns the job that the command line asks for.
    ///
    /// # Errors
    /// The requested document, or why parts of the command line contradict each other.
    pub(super) fn job(self) -> Result<Job, Stop> {
        let ask = |question, common: ask::Common| {
            Job::Ask(Ask {
                question,
                output: common.format.output,
                socket: common.socket,
            })
        };
        Ok(match self {
            Commands::Cleanup(flags) if flags.keep_kube_proxy => {
                Job::Cleanup(Cleanup::OnlyOfTripod)
            }
            Commands::Cleanup(_) => Job::Cleanup(Cleanup::Everything),
            Commands::Probe(format) => Job::Probe(format.output),
            // The flags of the proxy name the folder.
            Commands::Render => Job::Render(PathBuf::new()),
            Commands::Status(flags) => {
                let question = flags.probe.map_or(Question::Status, Question::Probe);
                ask(question, flags.common)
            }
            Commands::Services(flags) => ask(flags.question()?, flags.common),
            Commands::Migrate(flags) => Job::Migrate(flags.into()),
            Commands::Explain(flags) => {
                let question = Question::Explain(super::Explain {
                    to: flags.to,
                    from: flags.from,
                    kernel: !flags.desired_only,
                });
                ask(question, flags.common)
            }
            Commands::Diff(common) => ask(Question::Diff, common),
            Commands::Trace(trace) => Job::Trace(trace.checked()?),
            Commands::Check(check) => Job::Check(check),
            Commands::Test(flags) => Job::Test(flags.into()),
            Commands::TestServer(server) => Job::TestServer(server),
            Commands::Hold(hold) => Job::Hold(hold),
            Commands::Completion { shell } => {
                return Err(answer(&documents::script(&shell, command())));
            }
            Commands::Man { command: of } => {
                return Err(answer(&documents::page(of.as_deref(), command())));
            }
            Commands::Version => {
                return Err(answer(
                    &settings::version(&Version::Line).unwrap_or_default(),
                ));
            }
        })
    }
}

fn answer(text: &str) -> Stop {
    Stop::Answer(text.trim_end().to_owned())
}
