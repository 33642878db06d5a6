//! Splits the body of a watch into its lines, one event each.

use std::time::Duration;

use bytes::BytesMut;
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::timeout;

/// Maximum length of a line or object in bytes. An object in etcd has at most some MiB, so a longer
/// one comes from a server or proxy that never ends it. Decoded, it may take ten times as much
/// memory.
pub(super) const LONGEST: usize = 16 << 20;

/// A body that is read line by line.
pub(super) struct Lines {
    body: Body,
    buffer: BytesMut,
    /// No line ends before this position of the buffer.
    searched: usize,
    /// Length of the last returned line.
    taken: usize,
}

/// The end of a body.
#[derive(Debug)]
pub(super) enum End {
    /// It ended between two lines, as it should.
    Clean,
    /// It ended within a line, or with a fault of the connection.
    Broken(String),
    /// No data came for the time given.
    Silent,
}

impl Lines {
    pub(super) fn of(body: Body) -> Lines {
        Lines {
            body,
            buffer: BytesMut::new(),
            searched: 0,
            taken: 0,
        }
    }

    /// Returns the next line that is not blank. Waits at most `patience` from one piece of it to
    /// the next.
    pub(super) async fn next(&mut self, patience: Duration) -> Result<&[u8], End> {
        // Only now, because the caller had borrowed it.
        let _ = self.buffer.split_to(self.taken);
        self.taken = 0;
        loop {
            if let Some(at) = self.buffer[self.searched..]
                .iter()
                .position(|b| *b == b'\n')
            {
                let length = self.searched + at + 1;
                self.searched = 0;
                if self.buffer[..length].trim_ascii().is_empty() {
                    let _ = self.buffer.split_to(length);
                    continue;
                }
                self.taken = length;
                return Ok(&self.buffer[..length]);
            }
            self.searched = self.buffer.len();
            if self.searched > LONGEST {
                let limit = LONGEST >> 20;
                return Err(End::Broken(format!("an event is longer than {limit} MiB")));
            }
            match timeout(patience, self.body.frame()).await {
                Err(_) => return Err(End::Silent),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Ok(Some(Err(error))) => return Err(End::Broken(super::ask::chain(&error))),
                Ok(None) if self.buffer.trim_ascii().is_empty() => return Err(End::Clean),
                Ok(None) => return Err(End::Broken("it ended within an event".to_owned())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn whole_lines_and_how_it_ended() {
        let cases: [(&str, &[&str], bool); 5] = [
            ("", &[], true),
            ("a\n\nbc\r\n", &["a\n", "bc\r\n"], true),
            ("a\n  \n", &["a\n"], true),
            ("a\n{\"type\":\"ADD", &["a\n"], false),
            ("half", &[], false),
        ];
        for (text, expected, clean) in cases {
            let mut lines = Lines::of(Body::from(text.as_bytes().to_vec()));
            let mut found = Vec::new();
            let end = loop {
                match lines.next(PATIENCE).await {
                    Ok(line) => found.push(String::from_utf8_lossy(line).into_owned()),
                    Err(end) => break end,
                }
            };
            assert_eq!(found, expected, "{text:?}");
            assert_eq!(matches!(end, End::Clean), clean, "{text:?}: {end:?}");
        }
    }
}
