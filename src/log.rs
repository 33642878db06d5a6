//! The log: one line an event, on standard error.

use std::io;

use tracing::level_filters::LevelFilter;

/// Starts logging. `verbosity` is kube-proxy's `--v`.
pub fn start(verbosity: u8) {
    let level = match verbosity {
        0 | 1 => LevelFilter::INFO,
        2 | 3 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_target(false)
        .with_max_level(level)
        .init();
}
