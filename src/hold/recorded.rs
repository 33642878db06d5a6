//! What versions sent to each other when they were released, in `tests/handover`: a file for each
//! protocol and version, which stays as it is.
//!
//! A line has the side that sends something, the name of what it sends, and its bytes as
//! hexadecimal digits; `+socket` after the name means that a descriptor is sent along. `ends` and
//! `connects` are no records.

use std::path::Path;

/// Something that one side sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) by: String,
    pub(crate) what: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) with_socket: bool,
}

/// Returns all that both sides of a version of a protocol send.
pub(crate) fn conversation(protocol: &str, version: u16) -> Vec<Recorded> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover");
    let path = folder.join(format!("{protocol}-{version}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; CONTRIBUTING.md says how a version is recorded",
            path.display()
        )
    });
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(message).collect()
}

fn message(line: &str) -> Recorded {
    let mut words = line.split_whitespace();
    let mut word = || words.next().unwrap_or_default().to_owned();
    let (by, what, hex) = (word(), word(), word());
    let with_socket = what.ends_with("+socket");
    let digits = hex.as_bytes().chunks(2);
    let byte = |digits: &[u8]| {
        let text = std::str::from_utf8(digits).expect("digits");
        u8::from_str_radix(text, 16).unwrap_or_else(|error| panic!("{line}: {error}"))
    };
    Recorded {
        by,
        what: what.trim_end_matches("+socket").to_owned(),
        bytes: digits.map(byte).collect(),
        with_socket,
    }
}

/// Compares what is sent now with what was recorded.
pub(crate) fn assert_same(sent: &[u8], recorded: &Recorded, protocol: &str) {
    let hex: String = sent.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(
        sent == recorded.bytes,
        "{protocol}: {} {} is not what it was when this version was recorded, but {hex}. Processes \
         of both run next to each other in an upgrade: raise the version, keep supporting the \
         earlier one, and record the new one (CONTRIBUTING.md)",
        recorded.by,
        recorded.what
    );
}
