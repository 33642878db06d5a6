//! Which endpoint each client is assigned to, from a process that has given way to the one
//! that takes over: on a connection of its own, so that processes of versions without it
//! go together with others. The one that takes over sends nothing; it is sent records, each
//! behind its length (2 bytes, big endian), and then the end.

use std::{io, time::Duration};

use socket2::Type;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader, BufWriter},
    net::{UnixListener, UnixStream},
    time::timeout,
};

use super::{connect, is_ours, open, present};
use crate::modes::userspace::{Assignments, Handover, MOST_RECORDS};

/// The socket, without its number.
pub(super) const SOCKET: &str = "assignments-";

/// The longest record that is taken, in bytes.
const LONGEST: u16 = 1024;

/// How long it may take in all. Without it clients are assigned anew.
const TIME: Duration = Duration::from_secs(2);

/// Takes over what processes that run have assigned.
pub(super) async fn inherit(assignments: &Assignments) {
    for name in present(SOCKET).unwrap_or_default() {
        let received = timeout(TIME, receive(&name)).await;
        match received.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(records) => {
                let clients = assignments.inherit(records);
                tracing::debug!(clients, "clients go on with their endpoints");
            }
            Err(error) => tracing::warn!(
                "clients cannot keep their endpoints and are assigned to \
                 new ones: {error}"
            ),
        }
    }
}

pub(super) async fn receive(name: &str) -> io::Result<Vec<Vec<u8>>> {
    let mut records = Vec::new();
    let Some(stream) = connect(name)? else {
        return Ok(records);
    };
    let mut stream = BufReader::new(stream);
    while records.len() < MOST_RECORDS {
        let length = match stream.read_u16().await {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        };
        if length > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut record = vec![0; length.into()];
        stream.read_exact(&mut record).await?;
        records.push(record);
    }
    Ok(records)
}

/// Sends what is assigned to each process that connects.
pub(super) fn listen(handover: Handover) -> io::Result<()> {
    let listener = UnixListener::from_std(open(SOCKET, Type::STREAM)?.into())?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if is_ours(&stream) => {
                    let assignments = handover.assignments();
                    let records = assignments.map(Assignments::records).unwrap_or_default();
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
