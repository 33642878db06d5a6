//! Unix sockets that listen in this network namespace: `sock_diag(7)`, `linux/unix_diag.h`.
//!
//! `/proc/net/unix` lists the same, but its lines can be forged: the name of an abstract socket is
//! any bytes, also line breaks, and any process can bind one (`unix(7)`). Here a name is an
//! attribute of its own, and the kernel says whose the socket is.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use nix::libc;

use crate::{Error, Malformed, Message, Protocol, Request, Socket};

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
/// Size of `struct unix_diag_req`.
const ASKED: usize = 24;
/// Size of `struct unix_diag_msg`.
const ANSWERED: usize = 16;

/// `TCP_LISTEN` of `net/tcp_states.h`, as a bit of its number.
const LISTENING: u32 = 1 << 10;

/// Requested properties of a socket: `UDIAG_SHOW_NAME`, `UDIAG_SHOW_VFS` and `UDIAG_SHOW_UID`
/// (Linux 5.3).
const SHOW: u32 = 1 | 2 | 0x40;
/// `UNIX_DIAG_NAME`
const NAME: u16 = 0;
/// `UNIX_DIAG_VFS`: `struct unix_diag_vfs`
const VFS: u16 = 1;
/// `UNIX_DIAG_UID`
const UID: u16 = 7;

/// A socket on which a process listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its path, as it was bound, which may be in another mount namespace, as of a container.
    path: PathBuf,
    uid: Option<u32>,
    /// The last bits of the number of its file.
    inode: Option<u32>,
}

/// Lists the paths of the sockets on which processes of this user in this network namespace listen,
/// as they were bound, including those in another mount namespace, such as a container's.
///
/// # Errors
/// When the kernel cannot list them, as without `unix_diag`, or its answer cannot be read.
pub fn paths() -> Result<Vec<PathBuf>, Error> {
    let own = nix::unistd::geteuid().as_raw();
    let own = list()?.into_iter().filter(|one| one.uid == Some(own));
    Ok(own.map(|one| one.path).collect())
}

/// Returns whether the process that listens at `path` is in another network namespace, as far as
/// the kernel shows it.
pub fn is_elsewhere(path: &Path) -> bool {
    let (Ok(file), Ok(listeners)) = (fs::metadata(path), list()) else {
        return false;
    };
    let inode = file.ino() as u32;
    let is_it = |one: &Listener| one.path == path || one.inode == Some(inode);
    !listeners.iter().any(is_it)
}

fn list() -> Result<Vec<Listener>, Error> {
    let mut header = [0; ASKED];
    header[0] = libc::AF_UNIX as u8;
    header[4..8].copy_from_slice(&LISTENING.to_ne_bytes());
    header[12..16].copy_from_slice(&SHOW.to_ne_bytes());
    let request = Request::new(BY_FAMILY, 0, "list", "unix sockets").header(&header);
    let mut socket = Socket::open(Protocol::SocketDiagnosis)?;
    socket.dump(&request, parse)
}

/// Reads a socket; `None` for one without a path.
pub fn parse(message: Message<'_>) -> Result<Option<Listener>, Malformed> {
    let header: [u8; ANSWERED] = message.header()?;
    if message.kind != BY_FAMILY || i32::from(header[0]) != libc::AF_UNIX {
        return Ok(None);
    }
    let (mut name, mut uid, mut inode) = (None, None, None);
    for attribute in message.attributes(ANSWERED) {
        let attribute = attribute?;
        match attribute.kind {
            NAME => name = Some(attribute.payload),
            UID => uid = Some(attribute.u32()?),
            VFS => {
                inode = attribute
                    .payload
                    .first_chunk()
                    .copied()
                    .map(u32::from_ne_bytes)
            }
            _ => {}
        }
    }
    // The name of an abstract socket begins with a zero byte, a path ends with one.
    let path = name.and_then(|name| name.split(|byte| *byte == 0).next());
    let path = path.filter(|path| !path.is_empty());
    Ok(path.map(|path| Listener {
        path: Path::new(OsStr::from_bytes(path)).to_owned(),
        uid,
        inode,
    }))
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, SockAddr, Type};
    use testing::in_namespace;

    use super::*;

    fn listener(name: &[u8], kind: Type) -> socket2::Socket {
        let socket = socket2::Socket::new(Domain::UNIX, kind, None).unwrap();
        let name = SockAddr::unix(OsStr::from_bytes(name)).unwrap();
        socket.bind(&name).unwrap();
        socket.listen(1).unwrap();
        socket
    }

    #[test]
    fn paths_are_listed_and_no_abstract_names_that_look_like_them() {
        in_namespace(|| {
            let folder = format!("tripod-unix-{}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join("socket");
            let lines = [
                b"\0any \xff\n\xfe bytes".to_vec(),
                b"\0\n0: 00000002 00000000 00010000 0001 01 7 /run/forged".to_vec(),
            ];
            let _strangers = lines.map(|name| listener(&name, Type::STREAM));
            for kind in [Type::STREAM, Type::SEQPACKET] {
                let ours = listener(path.as_os_str().as_bytes(), kind);
                assert_eq!(paths().unwrap(), [path.as_path()], "{kind:?}");
                drop(ours);
                fs::remove_file(&path).unwrap();
                assert!(paths().unwrap().is_empty(), "{kind:?}");
            }
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn a_socket_is_read_with_what_the_kernel_says_of_it() {
        let mut body = vec![0; ANSWERED];
        body[0] = libc::AF_UNIX as u8;
        let mut add = |kind: u16, payload: &[u8]| {
            body.extend((4 + payload.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(payload);
        };
        add(NAME, b"/a\0\0");
        add(UID, &7_u32.to_ne_bytes());
        add(VFS, &[9_u32.to_ne_bytes(), [0; 4]].concat());
        let read = |body: &[u8]| {
            let message = Message {
                kind: BY_FAMILY,
                flags: 0,
                sequence: 0,
                body,
            };
            parse(message).unwrap().unwrap()
        };
        let mut expected = Listener {
            path: "/a".into(),
            uid: Some(7),
            inode: Some(9),
        };
        assert_eq!(read(&body), expected);
        (expected.uid, expected.inode) = (None, None);
        assert_eq!(read(&body[..ANSWERED + 8]), expected, "an older kernel");
    }

    #[test]
    fn a_socket_of_another_network_namespace_is_elsewhere() {
        let path = std::env::temp_dir().join(format!("tripod-elsewhere-{}", std::process::id()));
        let _ours = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!is_elsewhere(&path));
        assert!(!is_elsewhere(Path::new("/nowhere")), "there is none");
        let there = path.clone();
        in_namespace(move || assert!(is_elsewhere(&there)));
        fs::remove_file(path).unwrap();
    }
}
