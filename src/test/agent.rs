//! Calls that a pod makes for the tester.
//!
//! The tester sends one line: a token, a protocol, an address with a port, the number of calls, and
//! how many of them to make at once. A tester without the token of this run gets no answer, and no
//! call is made. The pod knows only the token's SHA-256, so that a user who may merely read pods
//! cannot make it call. It sends `who` to the called address, and nothing else.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use data_encoding::HEXLOWER;
use net::Protocol;
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use super::{
    call::Seen,
    many::{self, Calls},
};

/// Longest line that requests calls, in bytes.
const LONGEST: u64 = 256;

/// Longest answer that the tester reads, in bytes.
const LONGEST_ANSWER: u64 = 1 << 20;

/// Maximum number of calls in one request.
const MOST_CALLS: usize = 200;

/// Maximum number of calls of one request that are made at once.
const MOST_AT_ONCE: usize = 16;

/// Maximum number of connections that are served at the same time.
const MOST_CONNECTIONS: usize = 16;

/// How long a caller may take to send its line.
const LINE_WITHIN: Duration = Duration::from_secs(5);

/// How long all calls of a line may take.
const CALLS_WITHIN: Duration = Duration::from_secs(120);

/// Access to the agent of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Address and port.
    pub address: SocketAddr,
    /// The token of this run.
    pub token: String,
}

impl Agent {
    /// Makes the pod place these calls. Returns the result of each.
    ///
    /// # Errors
    /// Says why the agent gave no answer.
    pub async fn make(&self, calls: Calls) -> Result<Vec<Seen>, String> {
        let answer = timeout(CALLS_WITHIN + LINE_WITHIN, self.exchange(calls)).await;
        let text = answer
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| self.silent(&error.to_string()))?;
        let seen: Vec<Seen> = serde_json::from_str(&text).unwrap_or_default();
        if seen.len() == calls.count {
            Ok(seen)
        } else {
            let why = format!("of {} calls it answers for {}", calls.count, seen.len());
            Err(self.silent(&why))
        }
    }

    fn silent(&self, why: &str) -> String {
        let Agent { address, .. } = self;
        format!(
            "the agent of the pod at {address} does not make calls ({why}): does a network \
             policy keep this node from that port?"
        )
    }

    async fn exchange(&self, calls: Calls) -> io::Result<String> {
        let connected = timeout(LINE_WITHIN, TcpStream::connect(self.address)).await;
        let mut stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let line = format!("{} {}\n", self.token, words(calls));
        stream.write_all(line.as_bytes()).await?;
        let mut text = String::new();
        let mut answer = stream.take(LONGEST_ANSWER);
        answer.read_to_string(&mut text).await?;
        Ok(text)
    }
}

/// Returns the SHA-256 of a token, as hexadecimal digits.
pub fn digest(token: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(token.as_bytes()))
}

/// Makes calls for testers who have the token with that SHA-256; runs forever.
///
/// # Errors
/// When no further connection can be accepted.
pub async fn serve(listener: TcpListener, token_sha256: &str) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let (stream, _) = listener.accept().await?;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            continue;
        };
        let expected = token_sha256.to_owned();
        tokio::spawn(async move {
            // A caller that sends a wrong line, or leaves early, needs no answer.
            let _ = answer(stream, &expected).await;
            drop(place);
        });
    }
}

async fn answer(stream: TcpStream, token_sha256: &str) -> io::Result<()> {
    let mut reader = BufReader::new(stream.take(LONGEST));
    let mut line = String::new();
    timeout(LINE_WITHIN, reader.read_line(&mut line)).await??;
    let Some(calls) = asked(&line, token_sha256) else {
        return Ok(());
    };
    let mut stream = reader.into_inner().into_inner();
    let seen = timeout(CALLS_WITHIN, many::make(calls)).await?;
    let answer = serde_json::to_vec(&seen)?;
    timeout(LINE_WITHIN, stream.write_all(&answer)).await?
}

/// Returns the calls that a line requests; `None` if the line gets no answer.
fn asked(line: &str, token_sha256: &str) -> Option<Calls> {
    let (token, rest) = line.strip_suffix('\n')?.split_once(' ')?;
    if digest(token) != token_sha256 {
        return None;
    }
    let words: Vec<&str> = rest.split(' ').collect();
    let [protocol, to, count, at_once] = words[..] else {
        return None;
    };
    let mut all = [Protocol::Tcp, Protocol::Udp].into_iter();
    let to: SocketAddr = to.parse().ok()?;
    let is_one = match to.ip() {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_multicast(),
    };
    let within = |text: &str, most: usize| {
        let number = text.parse::<usize>().ok();
        number.filter(|number| (1..=most).contains(number))
    };
    is_one.then_some(Calls {
        to,
        protocol: all.find(|known| known.name() == protocol)?,
        count: within(count, MOST_CALLS)?,
        at_once: within(at_once, MOST_AT_ONCE)?,
    })
}

fn words(calls: Calls) -> String {
    let Calls {
        to,
        protocol,
        count,
        at_once,
    } = calls;
    format!("{} {to} {count} {at_once}", protocol.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Calls {
        Calls {
            to: "[fd00::1]:80".parse().unwrap(),
            protocol: Protocol::Udp,
            count: 40,
            at_once: 16,
        }
    }

    #[test]
    fn only_whole_lines_with_the_token_and_small_numbers_ask_for_calls() {
        let expected = digest("secret");
        let line = format!("secret {}\n", words(calls()));
        assert_eq!(asked(&line, &expected), Some(calls()));
        for wrong in [
            "",
            "\n",
            "secret\n",
            "other UDP [fd00::1]:80 40 16\n",
            " UDP [fd00::1]:80 40 16\n",
            "secret UDP [fd00::1]:80 40 16",
            "secret SCTP [fd00::1]:80 40 16\n",
            "secret UDP example.org:80 40 16\n",
            "secret UDP 224.0.0.1:80 40 16\n",
            "secret UDP 10.0.0.1:80 0 16\n",
            "secret UDP 10.0.0.1:80 201 16\n",
            "secret UDP 10.0.0.1:80 1 17\n",
            "secret UDP 10.0.0.1:80 1 1 1\n",
        ] {
            assert_eq!(asked(wrong, &expected), None, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn an_agent_makes_calls_for_whom_has_the_token_alone() {
        let called = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = called.local_addr().unwrap();
        let (count, mut counted) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, client)) = called.accept().await {
                count.send(()).unwrap();
                let text = format!("it {client}\n");
                stream.write_all(text.as_bytes()).await.unwrap();
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { serve(listener, &digest("secret")).await });
        let calls = Calls {
            to,
            protocol: Protocol::Tcp,
            count: 3,
            at_once: 2,
        };
        let with = |token: &str| Agent {
            address,
            token: token.to_owned(),
        };
        for wrong in ["", "wrong", &digest("secret")] {
            let answer = with(wrong).make(calls).await;
            assert!(answer.unwrap_err().contains("answers for 0"));
        }
        // A line that is too long is not read to its end.
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(&[b'x'; 4096]).await;
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text).await;
        assert!(text.is_empty());
        assert!(counted.try_recv().is_err(), "a call was made");

        let seen = with("secret").make(calls).await.unwrap();
        assert_eq!(seen.len(), 3);
        let by = |seen: &Seen| matches!(seen, Seen::Answer { name, .. } if name == "it");
        assert!(seen.iter().all(by), "{seen:?}");
    }
}
