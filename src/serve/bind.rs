//! Listens on an address, and retries while another program has it.

use std::{fmt, io, net::SocketAddr, time::Duration};

use super::listeners::{Listeners, Listening};
use crate::log_once::LogOnce;

/// Pause before an address that could not be bound is tried again.
const BIND_AGAIN: Duration = Duration::from_secs(1);

/// An address to serve at, and what to do if it cannot be bound.
#[derive(Clone, Debug)]
pub struct Bind {
    /// The address. A wildcard of either family means every address of both,
    /// as it does for kube-proxy (Go's `net.Listen`).
    pub address: SocketAddr,
    /// Whether to give up at once when it cannot be bound
    /// (`bindAddressHardFail`).
    pub hard_fail: bool,
    /// The listening sockets of this process; its predecessor may have passed one for this address.
    pub listeners: Listeners,
}

/// An address could not be bound, and `bindAddressHardFail` is set.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {what} on {address}: {source}; free the port, or choose another address")]
pub struct BindError {
    what: &'static str,
    address: SocketAddr,
    source: io::Error,
}

impl Bind {
    /// Returns a listener, retrying until the address can be bound. `what` names the service for
    /// messages.
    pub(super) async fn listen(&self, what: &'static str) -> Result<Listening, BindError> {
        let address = self.address;
        self.listeners.in_charge().await;
        let bind = || {
            let opened = self.listeners.listen(address).map_err(|source| BindError {
                what,
                address,
                source,
            });
            let why = opened.as_ref().err().map(ToString::to_string);
            self.listeners.set_refused(what, address, why);
            opened
        };
        if self.hard_fail {
            return bind();
        }
        let log = |error: &BindError| {
            let seconds = BIND_AGAIN.as_secs();
            tracing::error!("{error}; trying again every {seconds} s");
        };
        let serving = format!("serving {what} on {address}");
        Ok(until_open(bind, BIND_AGAIN, log, &serving).await)
    }
}

/// Calls `open` until it succeeds, with a `pause` between the attempts. An error is passed to `log`
/// unless it equals the previous one; `serving` is the log message for a success after an error.
pub(super) async fn until_open<T, E: fmt::Display>(
    open: impl Fn() -> Result<T, E>,
    pause: Duration,
    log: impl Fn(&E),
    serving: &str,
) -> T {
    let mut logged = LogOnce::default();
    loop {
        match open() {
            Ok(opened) => {
                if logged.end() {
                    tracing::info!("{serving} now");
                }
                return opened;
            }
            Err(error) if logged.differs(&error.to_string()) => log(&error),
            Err(_) => {}
        }
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::{super::tcp::bind, *};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn hard_failure_names_what_and_where() {
        let taken = bind(SocketAddr::new(HERE, 0)).unwrap();
        let address = taken.local_addr().unwrap();
        let bind = Bind {
            address,
            hard_fail: true,
            listeners: Listeners::default(),
        };
        let error = bind.listen("metrics").await.unwrap_err().to_string();
        assert!(error.contains("metrics") && error.contains(&address.to_string()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_taken_address_is_served_once_it_is_free() {
        let taken = bind(SocketAddr::new(HERE, 0)).unwrap();
        let address = taken.local_addr().unwrap();
        let bind = Bind {
            address,
            hard_fail: false,
            listeners: Listeners::default(),
        };
        let listeners = bind.listeners.clone();
        let mut listening = tokio::spawn(async move { bind.listen("metrics").await });
        tokio::select! {
            _ = &mut listening => panic!("it was taken"),
            () = tokio::time::sleep(BIND_AGAIN * 3) => {}
        }
        let refused = listeners.refused();
        let begin = format!("cannot serve metrics on {address}: ");
        assert!(
            refused.len() == 1 && refused[0].starts_with(&begin),
            "{refused:?}"
        );
        drop(taken);
        let listener = listening.await.unwrap().unwrap();
        assert_eq!(listener.socket().local_addr().unwrap(), address);
        assert_eq!(listeners.refused(), [""; 0]);
    }
}
