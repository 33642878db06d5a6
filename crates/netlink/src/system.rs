//! The system that clients talk to: this machine, or another kernel instead.
//!
//! As with network namespaces, each thread is in one system, and its sockets and files belong to
//! that system. A thread is on the [`Machine`] until it [enters](enter) another one.

use std::{
    cell::RefCell,
    fs::{File, OpenOptions},
    io::{self, Read, Seek, Write},
    net::{Ipv4Addr, Ipv6Addr, UdpSocket},
    os::fd::AsRawFd,
    path::Path,
    pin::Pin,
    process::{Command, ExitStatus, Stdio},
    rc::Rc,
};

use neli::{
    consts::socket::{Msg, NlFamily},
    socket::NlSocket,
    utils::Groups,
};
use net::Family;
use nix::libc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// A kernel, with the files below `/proc` and the programs that configure it.
pub trait System {
    /// Opens a netlink socket that also receives the notifications of `groups`.
    ///
    /// # Errors
    /// When the kernel has no such protocol or group, or no descriptor is free.
    fn connect(&self, protocol: Protocol, groups: &[u32]) -> io::Result<Box<dyn Peer>>;

    /// Opens a file below `/proc`.
    ///
    /// # Errors
    /// When there is no such file, or it cannot be accessed in this way.
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn ProcFile>>;

    /// Starts a program and writes `input` to its standard input.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start<'a>(&self, command: Command, input: &'a str) -> io::Result<Running<'a>>;

    /// Reads an option of an IP socket into `value`, whose content the kernel reads as a parameter.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn option(&self, family: Family, option: libc::c_int, value: &mut [u8]) -> io::Result<()>;

    /// Returns whether other threads may work on it. Otherwise all work stays in this thread.
    fn has_threads(&self) -> bool;
}

/// Netlink protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Routing netlink: links, addresses, routes, rules.
    Route,
    /// Subsystems of netfilter: ipset, conntrack, nf_tables, nfacct.
    Netfilter,
    /// Generic netlink: families with a name, IPVS among them.
    Generic,
    /// `sock_diag(7)`: the sockets of all programs.
    SocketDiagnosis,
}

/// The other end of a netlink socket.
pub trait Peer: AsRawFd + Send + Sync {
    /// Sends a datagram.
    ///
    /// # Errors
    /// When the kernel does not take it.
    fn send(&self, datagram: &[u8]) -> io::Result<()>;

    /// Receives a datagram and returns its length, which is larger than `buffer` if it was
    /// truncated (`MSG_TRUNC`).
    ///
    /// # Errors
    /// Of kind `WouldBlock` if there is none and `waits` forbids waiting; `ENOBUFS` if some were
    /// lost.
    fn receive(&self, buffer: &mut [u8], waits: Waits) -> io::Result<usize>;

    /// Receives notifications of these groups from now on.
    ///
    /// # Errors
    /// When there is no such group.
    fn join(&self, groups: &[u32]) -> io::Result<()>;

    /// Receives no more notifications of these groups; those that wait stay.
    ///
    /// # Errors
    /// When there is no such group.
    fn leave(&self, groups: &[u32]) -> io::Result<()>;

    /// The port id of the socket (`nl_pid`).
    ///
    /// # Errors
    /// When the system refuses.
    fn port(&self) -> io::Result<u32>;
}

/// How long to wait for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Until one comes.
    ForOne,
    /// Not at all.
    Never,
}

/// The access that a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Writing a new value.
    Write,
}

/// A file below `/proc`.
pub trait ProcFile: Read + Write + Seek + Send + Sync {}

impl<T: Read + Write + Seek + Send + Sync> ProcFile for T {}

/// A program that runs. It is killed when this is dropped.
pub struct Running<'a> {
    /// Its standard output.
    pub stdout: Pin<Box<dyn AsyncRead + Send>>,
    /// Writes the input, and completes when the program has ended. It must be polled while the
    /// output is read.
    pub ended: Pin<Box<dyn Future<Output = io::Result<Ended>> + Send + 'a>>,
}

/// How a program ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// The bytes that it wrote to standard error.
    pub stderr: Vec<u8>,
}

/// The kernel and the programs of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine;

impl System for Machine {
    fn connect(&self, protocol: Protocol, groups: &[u32]) -> io::Result<Box<dyn Peer>> {
        let family = match protocol {
            Protocol::Route => NlFamily::Route,
            Protocol::Netfilter => NlFamily::Netfilter,
            Protocol::Generic => NlFamily::Generic,
            Protocol::SocketDiagnosis => NlFamily::SockOrInetDiag,
        };
        let socket = NlSocket::connect(family, None, Groups::new_groups(groups))?;
        // Texts in refusals came with Linux 4.12, filtered dumps with 4.20; an older kernel lacks
        // them, and callers filter all lists anyway.
        let _ = socket.enable_ext_ack(true);
        if protocol == Protocol::Route {
            let _ = socket.enable_strict_checking(true);
        }
        Ok(Box::new(socket))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn ProcFile>> {
        let file = match access {
            Access::Read => File::open(path),
            Access::Write => OpenOptions::new().write(true).open(path),
        };
        Ok(Box::new(file?))
    }

    fn start<'a>(&self, command: Command, input: &'a str) -> io::Result<Running<'a>> {
        let mut command = tokio::process::Command::from(command);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut errors = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let feed = async move {
            // A program that fails early closes its input; its own message is
            // worth more than our broken pipe.
            let _ = stdin.write_all(input.as_bytes()).await;
            Ok(())
        };
        let ended = async move {
            let mut stderr = Vec::new();
            let read = errors.read_to_end(&mut stderr);
            let ((), _, status) = tokio::try_join!(feed, read, child.wait())?;
            Ok(Ended { status, stderr })
        };
        Ok(Running {
            stdout: Box::pin(stdout),
            ended: Box::pin(ended),
        })
    }

    fn option(&self, family: Family, option: libc::c_int, value: &mut [u8]) -> io::Result<()> {
        let (socket, level) = match family {
            Family::V4 => (UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, libc::IPPROTO_IP),
            Family::V6 => (
                UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?,
                libc::IPPROTO_IPV6,
            ),
        };
        let mut length = value.len() as libc::socklen_t;
        // SAFETY: `value` is as large as `length` says, and nothing else accesses it meanwhile; the
        // kernel reads and writes bytes there, with any alignment.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                level,
                option,
                value.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if answer == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn has_threads(&self) -> bool {
        true
    }
}

impl Peer for NlSocket {
    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        NlSocket::send(self, datagram, Msg::empty()).map(drop)
    }

    fn receive(&self, buffer: &mut [u8], waits: Waits) -> io::Result<usize> {
        let flags = match waits {
            Waits::ForOne => Msg::TRUNC,
            Waits::Never => Msg::TRUNC | Msg::DONTWAIT,
        };
        self.recv(buffer, flags).map(|(length, _)| length)
    }

    fn join(&self, groups: &[u32]) -> io::Result<()> {
        self.add_mcast_membership(Groups::new_groups(groups))
    }

    fn leave(&self, groups: &[u32]) -> io::Result<()> {
        self.drop_mcast_membership(Groups::new_groups(groups))
    }

    fn port(&self) -> io::Result<u32> {
        self.pid()
    }
}

thread_local! {
    static CURRENT: RefCell<Rc<dyn System>> = RefCell::new(Rc::new(Machine));
}

/// The system that this thread uses.
pub fn current() -> Rc<dyn System> {
    CURRENT.with_borrow(Rc::clone)
}

/// Enters `system` with this thread, until the returned value is dropped.
pub fn enter(system: Rc<dyn System>) -> Entered {
    Entered(CURRENT.replace(system))
}

/// A thread is in another system than before; dropping this returns to that one.
#[must_use]
pub struct Entered(Rc<dyn System>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(Rc::clone(&self.0));
    }
}
