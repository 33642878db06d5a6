//! The UDP data path: one association per client address, each with its own
//! connected socket to a backend.

mod association;
mod socket;

use std::{cell::RefCell, io, net::SocketAddr, os::fd::AsRawFd, sync::Arc};

use nix::sys::socket::{MsgFlags, recv};
use tokio::{
    io::{Interest, Ready},
    net::UdpSocket,
    sync::watch,
};

pub use self::association::Associations;

/// The largest datagram there is (RFC 768: a 16-bit length), in bytes.
const DATAGRAM: usize = 65_535;

/// Datagrams that one socket may hand over before the worker's other tasks
/// get a turn.
const TURN: usize = 64;

struct Buffers {
    datagram: Box<[u8]>,
    control: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers {
        datagram: vec![0; DATAGRAM].into_boxed_slice(),
        control: socket::control_buffer(),
    });
}

/// Takes what clients send to `listener` until `closing` says so. Runs inside
/// a worker's `LocalSet`.
pub async fn receive_loop(
    associations: Arc<Associations>,
    listener: std::net::UdpSocket,
    mut closing: watch::Receiver<bool>,
) {
    let listener = match UdpSocket::from_std(listener) {
        Ok(listener) => Arc::new(listener),
        Err(e) => {
            tracing::error!(service = %associations.label(), "cannot watch a UDP socket: {e}");
            return;
        }
    };
    loop {
        tokio::select! {
            biased;
            _ = closing.wait_for(|c| *c) => return,
            ready = listener.readable() => if ready.is_err() { return },
        }
        for _ in 0..TURN {
            let step = BUFFERS.with_borrow_mut(|b| {
                let got = socket::receive(&listener, &mut b.datagram, &mut b.control)?;
                let bytes = &b.datagram[..got.len];
                associations.from_client(&listener, got.from, got.to, bytes, &closing);
                io::Result::Ok(())
            });
            if step.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
                break;
            }
        }
        tokio::task::yield_now().await;
    }
}

/// What wakes who waits for answers: a refusal comes as an error without
/// anything to read (`udp(7)`).
const ANSWER_OR_REFUSAL: Interest = Interest::READABLE.add(Interest::ERROR);

/// Receives from a backend that is `ready` into the worker's buffer and hands
/// the datagram to `deliver`.
fn receive_answer(
    backend: &UdpSocket,
    ready: Ready,
    deliver: impl FnOnce(&[u8]),
) -> io::Result<()> {
    // `try_io` takes one interest only.
    let interest = match ready.is_readable() {
        true => Interest::READABLE,
        false => Interest::ERROR,
    };
    BUFFERS.with_borrow_mut(|b| {
        let n = backend.try_io(interest, || {
            let flags = MsgFlags::MSG_DONTWAIT;
            Ok(recv(backend.as_raw_fd(), &mut b.datagram, flags)?)
        })?;
        deliver(&b.datagram[..n]);
        Ok(())
    })
}

fn connected(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(to),
        socket2::Type::DGRAM.nonblocking().cloexec(),
        Some(socket2::Protocol::UDP),
    )?;
    socket.connect(&to.into())?;
    UdpSocket::from_std(socket.into())
}
