//! Starts the parts and connects them; nothing else.

use std::{env, process::ExitCode};

use tripod::{ask::kubectl, cli, log, start};

fn main() -> ExitCode {
    if env::args_os()
        .next()
        .is_some_and(|program| kubectl::is_called_by(&program))
    {
        return kubectl::run(env::args_os());
    }
    let settings = match cli::from_process() {
        Ok(settings) => settings,
        Err(stop) => return stop.print(),
    };
    let logging = &settings.configuration.logging;
    let format = match logging.format.as_str() {
        "json" => log::Format::Json,
        _ => log::Format::Text,
    };
    log::start(u8::try_from(logging.verbosity).unwrap_or(u8::MAX), format);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    start::confine(&settings);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(start::run(settings)),
        Err(e) => Err(format!("cannot start: {e}").into()),
    };
    match done {
        Ok(status) => status,
        Err(e) => {
            tracing::error!("{e}");
            ExitCode::FAILURE
        }
    }
}
