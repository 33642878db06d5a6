//! Colours, only on a terminal.

use std::{
    io::{self, IsTerminal},
    sync::LazyLock,
};

/// Meaning of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Warning,
    Bad,
}

/// Whether standard output accepts colours: it is a terminal, and `NO_COLOR` is not set
/// (<https://no-color.org>).
static IS_COLOURED: LazyLock<bool> = LazyLock::new(|| {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !cfg!(test) && io::stdout().is_terminal() && !unwanted
});

/// Returns `text` in the colour of `tone` (ECMA-48, SGR).
pub(super) fn paint(tone: Tone, text: &str) -> String {
    let colour = match tone {
        Tone::Good => 32,
        Tone::Warning => 33,
        Tone::Bad => 31,
    };
    match *IS_COLOURED {
        false => text.to_owned(),
        true => format!("\x1b[{colour}m{text}\x1b[0m"),
    }
}
