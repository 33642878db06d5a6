//! Sockets of the simulated kernel.

use std::{
    collections::VecDeque,
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::UnixDatagram,
    },
};

use net::Family;
use netlink::{
    Message, Messages, Protocol,
    system::{Peer, Waits},
};
use nix::{errno::Errno, libc};
use parking_lot::Mutex;
use xtables::Engine;

use super::{
    Call, Fault, Inner, Kernel,
    ipset::Sets,
    ipvs::Ipvs,
    message::{Refusal, acknowledgement, datagram, done},
    nftables::{self, Ruleset},
    route,
};

/// The subsystem is the upper byte of the type of a message of netfilter.
fn subsystem(kind: u16) -> i32 {
    i32::from(kind >> 8)
}

/// An answer that waits to be received by a socket.
enum Incoming {
    Datagram(Vec<u8>),
    Error(Errno),
}

/// A socket that receives notifications.
pub(super) struct Listener {
    port: u32,
    protocol: Protocol,
    groups: Vec<u32>,
    joined: bool,
    incoming: VecDeque<Vec<u8>>,
}

/// One end of a socket; the other end is the model.
struct Socket {
    kernel: Kernel,
    protocol: Protocol,
    port: u32,
    listens: bool,
    answers: Mutex<VecDeque<Incoming>>,
    /// A socket on which options are set, without effect.
    placeholder: UnixDatagram,
}

impl Kernel {
    /// Opens a socket.
    pub(super) fn open_socket(
        &self,
        protocol: Protocol,
        groups: &[u32],
    ) -> io::Result<Box<dyn Peer>> {
        let mut inner = self.lock();
        inner.ports += 1;
        let port = inner.ports;
        let listens = !groups.is_empty();
        if listens {
            inner.listeners.push(Listener {
                port,
                protocol,
                groups: groups.to_vec(),
                joined: true,
                incoming: VecDeque::new(),
            });
        }
        Ok(Box::new(Socket {
            kernel: self.clone(),
            protocol,
            port,
            listens,
            answers: Mutex::default(),
            placeholder: UnixDatagram::unbound()?,
        }))
    }
}

impl Inner {
    /// Notifies the listeners of changes by another process.
    pub(super) fn notify(&mut self) {
        let messages = self.state.nftables.take_notifications();
        let of_routes = self.state.links.take_notifications();
        for listener in self.listeners.iter_mut().filter(|listener| listener.joined) {
            if listener.protocol == Protocol::Netfilter {
                listener.incoming.extend(messages.iter().cloned());
                continue;
            }
            let joined = of_routes
                .iter()
                .filter(|(group, _)| listener.groups.contains(group));
            let joined = joined.map(|(_, message)| message.clone());
            listener.incoming.extend(joined);
        }
    }

    /// Carries a datagram out, unless the observer decides otherwise.
    fn handle(&mut self, protocol: Protocol, datagram: &[u8]) -> io::Result<VecDeque<Incoming>> {
        let messages: Vec<Message<'_>> = Messages::new(datagram).flatten().collect();
        let Some(first) = messages.first() else {
            return Err(Errno::EINVAL.into());
        };
        let call = self.call(protocol, first, messages.len());
        if self.dead {
            return Err(Errno::EIO.into());
        }
        let fault = self.observer.before(call, &mut self.state);
        self.notify();
        if let Fault::Unsent(errno) = fault {
            return Err(errno.into());
        }
        if fault == Fault::KilledBefore {
            self.dead = true;
            return Err(Errno::EIO.into());
        }
        let mut answers = VecDeque::new();
        let refusal = match fault {
            Fault::Refused(errno, at) => Some((errno, refused(protocol, &messages, at))),
            _ => None,
        };
        let interrupted = fault == Fault::Interrupted;
        match call {
            Call::Transaction(_) => {
                let run = self.state.nftables.transact(&messages, refusal);
                answers.extend(run.into_iter().map(Incoming::Datagram));
            }
            Call::Dump(_) | Call::Members(_) | Call::Policy(..) => {
                answers.extend(match refusal {
                    Some((errno, _)) => vec![Incoming::Datagram(done(first, Err(errno)))],
                    None => self.dump(protocol, first, interrupted),
                });
            }
            Call::Requests(..) | Call::Question(_) => {
                for (at, message) in messages.iter().enumerate() {
                    let outcome = match refusal {
                        Some((errno, refused)) if refused == at => Err(errno.into()),
                        _ => self.request(protocol, message, &mut answers),
                    };
                    let is_asked = message.flags & libc::NLM_F_ACK as u16 != 0;
                    if is_asked || outcome.is_err() {
                        let answer = acknowledgement(message, outcome);
                        answers.push_back(Incoming::Datagram(answer));
                    }
                }
            }
            Call::Notifications | Call::Restore(_) | Call::Save(_) | Call::Size | Call::Setting => {
            }
        }
        self.observer.after(call, &mut self.state);
        self.notify();
        match fault {
            Fault::Unanswered => answers = [Incoming::Error(Errno::ENOBUFS)].into(),
            Fault::KilledAfter => self.dead = true,
            _ => {}
        }
        Ok(answers)
    }

    fn call(&self, protocol: Protocol, first: &Message<'_>, count: usize) -> Call {
        // Elsewhere the number is another message's.
        let of_netfilter = protocol == Protocol::Netfilter;
        if of_netfilter && first.kind == libc::NFNL_MSG_BATCH_BEGIN as u16 {
            Call::Transaction(count)
        } else if i32::from(first.flags) & libc::NLM_F_DUMP == libc::NLM_F_DUMP {
            if protocol == Protocol::Route
                && matches!(first.kind, libc::RTM_GETRULE | libc::RTM_GETROUTE)
                && let Some(family) = first.body.first().and_then(|one| Family::from_number(*one))
            {
                return Call::Policy(family, first.kind);
            }
            let of_sets = of_netfilter && subsystem(first.kind) == libc::NFNL_SUBSYS_IPSET;
            let asked = of_sets.then(|| self.state.sets.asked_family(first));
            asked
                .flatten()
                .map_or(Call::Dump(first.kind), Call::Members)
        } else if is_question(protocol, first) {
            Call::Question(first.kind)
        } else {
            Call::Requests(first.kind, count)
        }
    }

    fn dump(&self, protocol: Protocol, of: &Message<'_>, interrupted: bool) -> Vec<Incoming> {
        let state = &self.state;
        let listed = match (protocol, subsystem(of.kind)) {
            (Protocol::Route, _) => state.links.dump(of, interrupted),
            (Protocol::Generic, _) => state.ipvs.dump(of, interrupted),
            (_, libc::NFNL_SUBSYS_NFTABLES) => {
                let listed = state.nftables.dump(of, interrupted);
                let listed =
                    listed.map(|listed| self.chains_of_xtables(of).chain(listed).collect());
                listed.map_err(Refusal::from)
            }
            (_, libc::NFNL_SUBSYS_CTNETLINK) => Ok(state.conntrack.dump(of, interrupted)),
            (_, libc::NFNL_SUBSYS_IPSET) => state.sets.dump(of, interrupted),
            _ => Err(Errno::EOPNOTSUPP.into()),
        };
        let (listed, outcome) = match listed {
            Ok(listed) => (listed, Ok(())),
            Err(refusal) => (Vec::new(), Err(refusal)),
        };
        let end = done(of, outcome);
        let all = listed.into_iter().chain([end]);
        all.map(Incoming::Datagram).collect()
    }

    /// Lists the chains of iptables if nf_tables holds them and `of` asks for chains.
    fn chains_of_xtables(&self, of: &Message<'_>) -> impl Iterator<Item = Vec<u8>> {
        let is_asked = i32::from(of.kind & 0xff) == libc::NFT_MSG_GETCHAIN;
        let is_there = self.state.xtables.engine == Engine::NfTables;
        let family = of.body.first().copied().unwrap_or_default();
        let families = Family::ALL.into_iter();
        let asked = families.filter(move |one| is_asked && is_there && one.number() == family);
        let sequence = of.sequence;
        asked.flat_map(move |family| {
            self.state.xtables.chains(family).map(move |chain| {
                let message = Ruleset::listed_chain(family, chain);
                datagram(&message, libc::NLM_F_MULTI, sequence)
            })
        })
    }

    fn request(
        &mut self,
        protocol: Protocol,
        message: &Message<'_>,
        answers: &mut VecDeque<Incoming>,
    ) -> Result<(), Refusal> {
        let state = &mut self.state;
        let answer = match (protocol, subsystem(message.kind)) {
            (Protocol::Route, _) => state.links.request(message)?,
            (Protocol::Generic, _) => state.ipvs.request(message)?,
            (_, libc::NFNL_SUBSYS_NFTABLES) => Some(state.nftables.get(message)?),
            (_, libc::NFNL_SUBSYS_CTNETLINK) => state.conntrack.change(message).map(|()| None)?,
            (_, libc::NFNL_SUBSYS_ACCT) => state.accounts.change(message).map(|()| None)?,
            (_, libc::NFNL_SUBSYS_IPSET) => state.sets.request(message)?,
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        answers.extend(answer.map(Incoming::Datagram));
        Ok(())
    }
}

/// Chooses one of several messages to refuse, for the number `at`. It is never the deletion of the
/// kernel's own route to an address that the message before it adds: a process that may add the
/// address may delete the route, and nothing has to be allocated for it.
fn refused(protocol: Protocol, messages: &[Message<'_>], at: usize) -> usize {
    let at = at % messages.len();
    let withdraws = protocol == Protocol::Route && route::withdraws(&messages[at]);
    at - usize::from(withdraws && at > 0)
}

/// Returns true for a request that is answered and changes nothing.
fn is_question(protocol: Protocol, message: &Message<'_>) -> bool {
    match protocol {
        Protocol::Route => message.kind == libc::RTM_GETLINK,
        Protocol::Generic => Ipvs::is_question(message),
        Protocol::SocketDiagnosis => true,
        Protocol::Netfilter => {
            message.kind == nftables::GET_GENERATION
                || subsystem(message.kind) == libc::NFNL_SUBSYS_IPSET && Sets::is_question(message)
        }
    }
}

impl Peer for Socket {
    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        let answers = self.kernel.lock().handle(self.protocol, datagram)?;
        *self.answers.lock() = answers;
        Ok(())
    }

    fn receive(&self, buffer: &mut [u8], _: Waits) -> io::Result<usize> {
        let next = if self.listens {
            self.notification()?
        } else {
            self.answers.lock().pop_front()
        };
        match next {
            Some(Incoming::Datagram(datagram)) => {
                let fitting = buffer.len().min(datagram.len());
                buffer[..fitting].copy_from_slice(&datagram[..fitting]);
                Ok(datagram.len())
            }
            Some(Incoming::Error(errno)) => Err(errno.into()),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn join(&self, _: &[u32]) -> io::Result<()> {
        self.set_joined(true);
        Ok(())
    }

    fn leave(&self, _: &[u32]) -> io::Result<()> {
        self.set_joined(false);
        Ok(())
    }

    fn port(&self) -> io::Result<u32> {
        Ok(self.port)
    }
}

impl Socket {
    fn set_joined(&self, joined: bool) {
        let mut inner = self.kernel.lock();
        let own = |listener: &&mut Listener| listener.port == self.port;
        if let Some(listener) = inner.listeners.iter_mut().find(own) {
            listener.joined = joined;
        }
    }

    fn notification(&self) -> io::Result<Option<Incoming>> {
        let mut inner = self.kernel.lock();
        let own = |listener: &&mut Listener| listener.port == self.port;
        let waits = |inner: &mut Inner| {
            let listener = inner.listeners.iter_mut().find(own);
            listener.is_some_and(|listener| !listener.incoming.is_empty())
        };
        if inner.dead || !waits(&mut inner) {
            return Ok(None);
        }
        let Inner {
            state, observer, ..
        } = &mut *inner;
        let fault = observer.before(Call::Notifications, state);
        inner.notify();
        let Some(listener) = inner.listeners.iter_mut().find(own) else {
            return Ok(None);
        };
        if fault == Fault::Unanswered {
            listener.incoming.clear();
            return Ok(Some(Incoming::Error(Errno::ENOBUFS)));
        }
        Ok(listener.incoming.pop_front().map(Incoming::Datagram))
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.placeholder.as_raw_fd()
    }
}
