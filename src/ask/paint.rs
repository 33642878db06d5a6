//! Colours, only on a terminal.

use std::io::{self, IsTerminal};

/// Whether text may be coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    Plain,
    Coloured,
}

/// Meaning of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Warning,
    Bad,
}

impl Paint {
    /// Returns whether standard output accepts colours: it is a terminal, and `NO_COLOR`
    /// is not set (<https://no-color.org>).
    pub(super) fn of_stdout() -> Paint {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if io::stdout().is_terminal() && !unwanted {
            Paint::Coloured
        } else {
            Paint::Plain
        }
    }

    /// Returns `text` in the colour of `tone` (ECMA-48, SGR).
    pub(super) fn paint(self, tone: Tone, text: &str) -> String {
        let colour = match tone {
            Tone::Good => 32,
            Tone::Warning => 33,
            Tone::Bad => 31,
        };
        match self {
            Paint::Plain => text.to_owned(),
            Paint::Coloured => format!("\x1b[{colour}m{text}\x1b[0m"),
        }
    }
}
