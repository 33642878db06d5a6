//! Standard output and error of commands.

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

/// Standard output does not accept all of the text.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot write to standard output: {0}; the output is incomplete: free space there, or write it \
     elsewhere"
)]
pub struct Unwritable(#[from] io::Error);

impl From<Unwritable> for String {
    fn from(error: Unwritable) -> String {
        error.to_string()
    }
}

/// Writes `text` to standard output. A reader that closes its end early, as `head` does, has
/// got what it wants; that is no error.
///
/// # Errors
/// When it cannot be written for another reason, for example because a disk is full.
pub fn put(text: &str) -> Result<(), Unwritable> {
    put_to(&mut io::stdout().lock(), text)
}

/// Writes why a command fails to standard error. Returns `status` to exit with.
pub fn fail(why: &impl Display, status: u8) -> ExitCode {
    // The reader may have closed its end.
    let _ = writeln!(io::stderr(), "error: {why}");
    ExitCode::from(status)
}

/// Returns the exit status: 0, or 1 unless it `is_good`.
pub fn exit_status(is_good: bool) -> ExitCode {
    match is_good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn put_to(out: &mut impl Write, text: &str) -> Result<(), Unwritable> {
    // Without the flush, an error in writing the rest of a buffer would be lost when the process
    // ends.
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{BufWriter, pipe},
    };

    use super::*;

    #[test]
    fn a_full_disk_is_an_error_and_a_closed_pipe_is_none() {
        let full = File::options().write(true).open("/dev/full");
        let error = put_to(&mut BufWriter::new(full.unwrap()), "text").unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        let (reader, mut writer) = pipe().unwrap();
        drop(reader);
        assert!(put_to(&mut writer, "text").is_ok());
    }
}
