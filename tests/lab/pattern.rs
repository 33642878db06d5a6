//! Bytes that depend on their position in the stream: a lost, doubled or swapped chunk shows at
//! once, and checking costs no more than a comparison.

use std::io::{self, Read, Write};
use std::sync::LazyLock;

/// A prime, so that no buffer size is a divisor or multiple of the period.
const PERIOD: usize = 1_048_573;

static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| {
    // xorshift64*, Vigna 2016.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    (0..PERIOD)
        .map(|_| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 56) as u8
        })
        .collect()
});

/// A position in the endless stream.
#[derive(Default)]
pub struct Pattern {
    at: usize,
}

impl Pattern {
    /// Returns the next bytes, at most `most` and at least one.
    pub fn next(&mut self, most: usize) -> &'static [u8] {
        let from = self.at % PERIOD;
        let piece = &BLOCK[from..PERIOD.min(from + most)];
        self.at += piece.len();
        piece
    }

    /// Checks that `got` is the continuation.
    pub fn check(&mut self, mut got: &[u8]) -> io::Result<()> {
        while !got.is_empty() {
            let before = self.at;
            let expected = self.next(got.len());
            if got[..expected.len()] != *expected {
                return Err(io::Error::other(format!(
                    "wrong bytes within {before}+{}",
                    got.len()
                )));
            }
            got = &got[expected.len()..];
        }
        Ok(())
    }
}

/// Writes `count` bytes of the pattern.
pub fn send_pattern(to: &mut impl Write, count: u64) -> io::Result<()> {
    let mut pattern = Pattern::default();
    let mut left = count;
    while left > 0 {
        let most = usize::try_from(left.min(65_536)).unwrap_or(65_536);
        let piece = pattern.next(most);
        to.write_all(piece)?;
        left -= piece.len() as u64;
    }
    Ok(())
}

/// Reads `count` bytes, or to the end of the stream; they must be the pattern. Returns the number
/// of bytes.
pub fn verify_pattern(from: &mut impl Read, count: Option<u64>) -> io::Result<u64> {
    let mut pattern = Pattern::default();
    let mut buffer = vec![0; 131_072];
    let mut seen = 0;
    loop {
        let most = count
            .map_or(u64::MAX, |count| count - seen)
            .min(buffer.len() as u64);
        let most = usize::try_from(most).unwrap_or(buffer.len());
        if most == 0 {
            return Ok(seen);
        }
        match from.read(&mut buffer[..most])? {
            0 if count.is_some() => {
                return Err(io::Error::other(format!(
                    "the stream ended after {seen} bytes"
                )));
            }
            0 => return Ok(seen),
            n => {
                pattern.check(&buffer[..n])?;
                seen += n as u64;
            }
        }
    }
}
