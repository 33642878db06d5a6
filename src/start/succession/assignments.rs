//! Which endpoint each client is assigned to, from a process that has given way to the one that
//! takes over: on a connection of its own, so that versions without it work together with others.
//! The one that takes over sends nothing; it receives records, each preceded by its length (2
//! bytes, big endian), and then the end.

use std::{io, time::Duration};

use socket2::Type;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, BufWriter},
    net::{UnixListener, UnixStream},
    time::timeout,
};

use super::{connect, is_ours, open, present};
use crate::modes::{
    handover::Handover,
    userspace::{Assignments, MOST_RECORDS},
};

/// The socket, without its number.
pub(super) const SOCKET: &str = "assignments-";

/// The longest record that is taken, in bytes.
const LONGEST: u16 = 1024;

/// How long all of it may take. Clients whose records have not come by then are assigned anew.
const TIME: Duration = Duration::from_secs(5);

/// What came from a process that has given way.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) records: Vec<Vec<u8>>,
    /// Number of records that are longer than this version allows.
    pub(super) too_long: usize,
    /// Why records may be missing.
    pub(super) trouble: Option<io::Error>,
}

/// Takes over what running processes have assigned.
pub(super) async fn inherit(assignments: &Assignments) {
    for name in present(SOCKET).unwrap_or_default() {
        let received = receive(&name, TIME).await;
        let (records, too_long) = (received.records.len(), received.too_long);
        let clients = assignments.inherit(received.records);
        let why = match received.trouble {
            Some(error) => error.to_string(),
            None if too_long > 0 => {
                format!("{too_long} records are longer than this version can read")
            }
            None => {
                tracing::debug!(clients, "clients keep their endpoints");
                continue;
            }
        };
        tracing::warn!(
            "{clients} clients keep their endpoints; others, for which the earlier process sent no \
             records, get new ones: {why}, after {records} records that were read; no action is \
             needed"
        );
    }
}

/// Reads what the process at the socket `name` sends `within` that time. What has come is kept,
/// whatever happens after it.
pub(super) async fn receive(name: &str, within: Duration) -> Received {
    let mut received = Received::default();
    let done = async {
        match connect(name)? {
            Some(stream) => received.read(stream).await,
            None => Ok(()),
        }
    };
    let done = timeout(within, done).await;
    received.trouble = done
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .err();
    received
}

impl Received {
    async fn read(&mut self, stream: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        while self.records.len() + self.too_long < MOST_RECORDS {
            let length = match stream.read_u16().await {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            };
            let mut record = vec![0; length.into()];
            stream.read_exact(&mut record).await?;
            if length > LONGEST {
                self.too_long += 1;
            } else {
                self.records.push(record);
            }
        }
        Ok(())
    }
}

/// Reads any `bytes` as what a process sends, and clients from its records, for tests and
/// `fuzz/`. The result does not matter.
#[cfg(any(test, fuzzing))]
pub(in crate::start) async fn read_anything(bytes: &[u8]) {
    let mut received = Received::default();
    let outcome = received.read(bytes).await;
    let total: usize = received.records.iter().map(|record| 2 + record.len()).sum();
    assert!(total <= bytes.len(), "{outcome:?}");
    Assignments::default().inherit(received.records);
}

/// Sends what is assigned to each process that connects.
pub(super) fn listen(handover: Handover) -> io::Result<()> {
    let listener = UnixListener::from_std(open(SOCKET, Type::STREAM)?.into())?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if is_ours(&stream) => {
                    let assignments = handover.assignments();
                    let records = assignments.map(|all| all.records()).unwrap_or_default();
                    tokio::spawn(timeout(TIME, send(stream, records)));
                }
                Ok(_) => {}
                // Most likely there is no descriptor left.
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    });
    Ok(())
}

pub(super) async fn send(stream: UnixStream, records: Vec<Vec<u8>>) -> io::Result<()> {
    let mut stream = BufWriter::new(stream);
    for record in records {
        let Ok(length) = u16::try_from(record.len()) else {
            continue;
        };
        stream.write_u16(length).await?;
        stream.write_all(&record).await?;
    }
    stream.flush().await
}
