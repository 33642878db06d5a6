//! Shows a table repeatedly, and writes only the changes.

use std::{
    collections::HashSet,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use terminal_size::{Height, terminal_size};

use super::connection::Failure;
use crate::cli::Unwritable;

/// Time between two tables.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows what `lines` returns, once a second, until the reader closes its end. Waits for
/// a proxy that goes away.
///
/// # Errors
/// When there is nothing to show the first time, or it cannot be written.
pub(super) async fn watch(
    mut lines: impl AsyncFnMut() -> Result<Vec<String>, Failure>,
) -> Result<(), Failure> {
    let (mut rows, mut before) = (rows_of_stdout(), Vec::new());
    let mut now = lines().await?;
    loop {
        let last = std::mem::replace(&mut rows, rows_of_stdout());
        if last != rows {
            before.clear();
        }
        let text = match rows {
            Some(rows) => {
                fit(&mut now, rows);
                redraw(&before, &now)
            }
            None => changed(&before, &now),
        };
        before = now;
        let mut out = io::stdout();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Unwritable::from(error).into()),
        }
        tokio::time::sleep(PERIOD).await;
        now = lines().await.unwrap_or_else(|failure| vec![failure.why]);
    }
}

/// Returns the number of rows of the terminal, where lines are written in their place; `None` for a
/// pipe or file, where changed lines are written again.
fn rows_of_stdout() -> Option<usize> {
    let (_, Height(rows)) = terminal_size()?;
    io::stdout().is_terminal().then_some(rows.into())
}

/// Removes the lines for which there is no row; the last row is the cursor's.
fn fit(lines: &mut Vec<String>, rows: usize) {
    let most = rows.saturating_sub(1).max(1);
    if lines.len() > most {
        let more = lines.len() - (most - 1);
        lines.truncate(most - 1);
        lines.push(format!("... and {more} more lines"));
    }
}

/// Returns the control sequences and text that turn `before` on a terminal into `now` (ECMA-48).
/// Lines that are longer than the terminal is wide are cut off (DECAWM), so that each has one row.
fn redraw(before: &[String], now: &[String]) -> String {
    let mut text = String::from("\x1b[?7l");
    if before.is_empty() {
        text.push_str("\x1b[H\x1b[2J");
    }
    for (row, line) in (1..).zip(now) {
        if before.get(row - 1) != Some(line) {
            text.push_str(&format!("\x1b[{row};1H{line}\x1b[K"));
        }
    }
    let end = now.len() + 1;
    text.push_str(&format!("\x1b[{end};1H"));
    if before.len() > now.len() {
        text.push_str("\x1b[J");
    }
    text.push_str("\x1b[?7h");
    text
}

/// Returns those blocks of `now` that `before` does not have. A block is a line with the indented
/// ones below it.
fn changed(before: &[String], now: &[String]) -> String {
    let known: HashSet<_> = blocks(before).collect();
    let mut text = String::new();
    for block in blocks(now).filter(|block| !known.contains(block)) {
        for line in block {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn blocks(lines: &[String]) -> impl Iterator<Item = &[String]> {
    lines.chunk_by(|_, next| next.starts_with(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split('/').map(str::to_owned).collect()
    }

    #[test]
    fn a_terminal_gets_the_lines_that_differ() {
        for (before, now, expected) in [
            (
                vec![],
                lines("a/b"),
                "\x1b[H\x1b[2J\x1b[1;1Ha\x1b[K\x1b[2;1Hb\x1b[K\x1b[3;1H",
            ),
            (lines("a/b"), lines("a/b"), "\x1b[3;1H"),
            (lines("a/b"), lines("a/c"), "\x1b[2;1Hc\x1b[K\x1b[3;1H"),
            (lines("a/b"), lines("a/b/c"), "\x1b[3;1Hc\x1b[K\x1b[4;1H"),
            (lines("a/b/c"), lines("a"), "\x1b[2;1H\x1b[J"),
        ] {
            let expected = format!("\x1b[?7l{expected}\x1b[?7h");
            assert_eq!(redraw(&before, &now), expected, "{before:?} {now:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        for (rows, expected) in [
            (5, "a/b/c/d"),
            (4, "a/b/... and 2 more lines"),
            (0, "... and 4 more lines"),
        ] {
            let mut fitted = lines("a/b/c/d");
            fit(&mut fitted, rows);
            assert_eq!(fitted, lines(expected), "{rows}");
        }
    }

    #[test]
    fn a_stream_gets_what_changed_with_what_belongs_to_it() {
        let before = lines("head/one/  x/two/  y");
        for (now, expected) in [
            ("head/one/  x/two/  y", ""),
            ("head/one/  x/two/  z", "two/  z/"),
            ("head/one/two/  y/three", "one/three/"),
        ] {
            let expected = expected.replace('/', "\n");
            assert_eq!(changed(&before, &lines(now)), expected, "{now}");
        }
        assert_eq!(changed(&[], &before), "head\none\n  x\ntwo\n  y\n");
    }
}
