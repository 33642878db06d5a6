//! A packet of a connection that is far outside its window.
//!
//! Connection tracking considers it invalid and does not translate it. If it got to the client like
//! that, it would come from an address that the client never called: the client would answer with a
//! reset, which the endpoint would accept (kubernetes #74839).

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

use nix::sys::socket::{getsockopt, setsockopt};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};
use socket2::{Domain, Socket, Type};

// See tcp(7) and linux/tcp.h.
sockopt_impl!(Repair, SetOnly, libc::IPPROTO_TCP, libc::TCP_REPAIR, i32);
sockopt_impl!(
    Queue,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_REPAIR_QUEUE,
    i32
);
sockopt_impl!(
    QueueSequence,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_QUEUE_SEQ,
    u32
);
/// `TCP_REPAIR_OFF_NO_WP`: without telling the other side.
const OFF: i32 = -1;
/// `TCP_RECV_QUEUE` and `TCP_SEND_QUEUE`.
const RECEIVED: i32 = 1;
const SENT: i32 = 2;

/// No window is that large.
const FAR: u32 = 1 << 30;

const ACK_AND_PSH: u8 = 0x18;
const HEADER: usize = 20;

/// The two numbers of the packet: its own position, and its acknowledgement of everything that the
/// client sent.
pub fn numbers(client: &TcpStream) -> io::Result<(u32, u32)> {
    setsockopt(client, Repair, &1)?;
    let place = |queue| {
        setsockopt(client, Queue, &queue)?;
        getsockopt(client, QueueSequence)
    };
    let places = place(RECEIVED).and_then(|received| Ok((received, place(SENT)?)));
    setsockopt(client, Repair, &OFF)?;
    let (received, sent) = places?;
    Ok((received.wrapping_add(FAR), sent))
}

/// Sends it, from this thread's namespace.
pub fn send(from: SocketAddr, to: SocketAddr, (own, acknowledged): (u32, u32)) -> io::Result<()> {
    let mut segment = Vec::with_capacity(HEADER + 4);
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend(own.to_be_bytes());
    segment.extend(acknowledged.to_be_bytes());
    segment.extend([(HEADER as u8 / 4) << 4, ACK_AND_PSH]);
    // Window, checksum, urgent pointer.
    segment.extend([0x10, 0, 0, 0, 0, 0]);
    segment.extend(b"boom");
    let sum = checksum(from.ip(), to.ip(), &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let protocol = socket2::Protocol::TCP;
    let socket = Socket::new(Domain::for_address(to), Type::RAW, Some(protocol))?;
    socket.bind(&SocketAddr::new(from.ip(), 0).into())?;
    socket.send_to(&segment, &SocketAddr::new(to.ip(), 0).into())?;
    Ok(())
}

/// The checksum of RFC 9293 section 3.1, and RFC 8200 section 8.1.
fn checksum(from: IpAddr, to: IpAddr, segment: &[u8]) -> u16 {
    let mut covered = Vec::new();
    for ip in [from, to] {
        match ip {
            IpAddr::V4(ip) => covered.extend(ip.octets()),
            IpAddr::V6(ip) => covered.extend(ip.octets()),
        }
    }
    covered.extend([0, libc::IPPROTO_TCP as u8]);
    covered.extend((segment.len() as u16).to_be_bytes());
    covered.extend(segment);
    let words = covered.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        _ => u32::from(pair[0]) << 8,
    });
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}
