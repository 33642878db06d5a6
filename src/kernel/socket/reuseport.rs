//! Chooses the socket that gets a new connection or datagram, among those that share an address,
//! while another process takes over.
//!
//! The kernel keeps sockets of one address (SO_REUSEPORT) in the order in which they began to
//! listen, so those of a successor come after ours. A classic BPF program of the group names one by
//! its number. For a number without a socket the kernel chooses among all (`reuseport_select_sock`
//! in net/core/sock_reuseport.c): before the successor listens, and if it ends early, our sockets
//! are used, without a gap.

use std::{io, os::fd::AsFd};

use nix::{
    libc,
    sys::socket::{setsockopt, sockopt},
};

/// linux/filter.h: offsets from here are ancillary data; this one is a random number.
const RANDOM: u32 = (libc::SKF_AD_OFF + 56).cast_unsigned();

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Sends new connections and datagrams to one of the `theirs` sockets after the first `ours` of the
/// group that `socket` is in.
///
/// # Errors
/// Those of setsockopt(2): Linux before 4.5 does not have this option.
pub fn hand_over(socket: &impl AsFd, ours: u32, theirs: u32) -> io::Result<()> {
    attach(
        socket,
        &mut [
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, RANDOM),
            statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, theirs.max(1)),
            statement(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K, ours),
            statement(libc::BPF_RET | libc::BPF_A, 0),
        ],
    )
}

/// Leaves the choice to the kernel.
///
/// # Errors
/// Those of [`hand_over`].
pub fn reset(socket: &impl AsFd) -> io::Result<()> {
    attach(
        socket,
        &mut [statement(libc::BPF_RET | libc::BPF_K, u32::MAX)],
    )
}

fn attach(socket: &impl AsFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        filter: program.as_mut_ptr(),
    };
    Ok(setsockopt(socket, sockopt::AttachReusePortCbpf, &program)?)
}

#[cfg(test)]
mod tests {
    use std::{
        net::{SocketAddr, TcpListener, TcpStream},
        os::fd::AsRawFd,
    };

    use nix::sys::socket::{Shutdown, shutdown};

    use super::*;
    use crate::kernel::socket::listening::{Bind, start, tcp};

    fn open(address: SocketAddr) -> TcpListener {
        start(tcp(Bind::of_node(address)).unwrap()).unwrap()
    }

    /// Counts how many of 32 connections arrive at each of `listeners`.
    fn accepted(listeners: &[&TcpListener]) -> Vec<usize> {
        let address = listeners[0].local_addr().unwrap();
        let _clients: Vec<_> = (0..32)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let count = |l: &&TcpListener| std::iter::from_fn(|| l.accept().ok()).count();
        listeners.iter().map(count).collect()
    }

    #[test]
    fn connections_go_to_the_successor_while_it_listens() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let first = open(any.parse().unwrap());
            let address = first.local_addr().unwrap();
            let second = open(address);
            hand_over(&first, 2, 2).unwrap();
            let ours = [&first, &second];
            assert_eq!(accepted(&ours).iter().sum::<usize>(), 32);

            let (third, fourth) = (open(address), open(address));
            let all = [&first, &second, &third, &fourth];
            let count = accepted(&all);
            assert_eq!(&count[..2], [0, 0], "{count:?}");
            assert_eq!(count[2] + count[3], 32);

            // Other tests' children may have copies, so closing is not enough.
            for listener in [third, fourth] {
                shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
            }
            assert_eq!(accepted(&ours).iter().sum::<usize>(), 32);
            reset(&first).unwrap();
            assert_eq!(accepted(&ours).iter().sum::<usize>(), 32);
        }
    }

    /// The sockets of a successor, except the first one, then get other numbers
    /// (`__reuseport_detach_sock` in net/core/sock_reuseport.c).
    #[test]
    fn nothing_comes_to_sockets_that_close_one_after_the_other() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let first = open("127.0.0.1:0".parse().unwrap());
            let address = first.local_addr().unwrap();
            let ours = [first, open(address), open(address)];
            let theirs = [open(address), open(address), open(address)];
            hand_over(&ours[0], 3, 1).unwrap();
            for closing in order {
                let all: Vec<_> = ours.iter().chain(&theirs).collect();
                let count = accepted(&all);
                assert_eq!(
                    count[..3],
                    [0; 3],
                    "{count:?} before {closing} of {order:?}"
                );
                shutdown(ours[closing].as_raw_fd(), Shutdown::Both).unwrap();
            }
            let count = accepted(&theirs.iter().collect::<Vec<_>>());
            assert_eq!(count.iter().sum::<usize>(), 32, "{count:?}");
        }
    }
}
