//! The program that has an address, for messages about an address that is in use.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::bound::{BoundAddress, BoundSocket, each_bound};

/// Where the kernel shows processes.
const PROC: &str = "/proc";

/// The sockets that wait for clients at one moment.
#[derive(Debug)]
pub struct Sockets(Vec<(BoundAddress, BoundSocket)>);

impl Sockets {
    /// Lists them.
    ///
    /// # Errors
    /// Those of reading the kernel's tables.
    pub fn list() -> io::Result<Sockets> {
        let mut all = Vec::new();
        each_bound(|address, socket| all.push((address, socket)))?;
        Ok(Sockets(all))
    }

    /// Describes who keeps others from waiting for clients at an address; `None` if nobody does.
    pub fn who_has(&self, wanted: BoundAddress) -> Option<String> {
        let mut conflicting = self.0.iter().filter(|(address, _)| {
            address.protocol == wanted.protocol && conflict(address.address, wanted.address)
        });
        let (_, socket) = conflicting.next()?;
        Some(describe(Path::new(PROC), *socket))
    }
}

/// Returns whether sockets of different users cannot both be bound to these addresses.
fn conflict(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = |ip: IpAddr| ip.is_unspecified();
    let same = one.ip().to_canonical() == other.ip().to_canonical();
    one.port() == other.port() && (same || is_any(one.ip()) || is_any(other.ip()))
}

/// Describes the owner of a socket: the user, and the program as far as this process may see it.
fn describe(proc: &Path, socket: BoundSocket) -> String {
    let BoundSocket { uid, inode } = socket;
    let link = PathBuf::from(format!("socket:[{inode}]"));
    let mut programs = Vec::new();
    for process in fs::read_dir(proc).into_iter().flatten().flatten() {
        let path = process.path();
        let id = process.file_name().into_string().unwrap_or_default();
        let is_of_user = fs::metadata(&path).is_ok_and(|found| found.uid() == uid);
        if !is_of_user || id.parse::<u32>().is_err() {
            continue;
        }
        let Ok(descriptors) = fs::read_dir(path.join("fd")) else {
            // Without CAP_SYS_PTRACE this process cannot see the open files of other users'
            // processes.
            programs.push(name(&path));
            continue;
        };
        let mut links = descriptors.filter_map(|one| fs::read_link(one.ok()?.path()).ok());
        if links.any(|found| found == link) {
            return format!("process {id} ({}) of user {uid}", name(&path));
        }
    }
    programs.sort_unstable();
    programs.dedup();
    match &programs[..] {
        [only] => format!("a process of user {uid}, who runs {only}"),
        _ => format!("a process of user {uid}"),
    }
}

/// The name that a program gave itself, with unusual characters replaced.
fn name(process: &Path) -> String {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/+@".contains(c);
    let name = name.trim_end().chars();
    name.map(|c| if plain(c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use net::Protocol;
    use nix::{sys::stat::fstat, unistd::geteuid};

    use super::*;

    #[test]
    fn who_has_an_address_or_its_port_on_all_is_named() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        let sockets = Sockets::list().unwrap();
        let own = format!("process {} (", std::process::id());
        let of = |protocol, address: SocketAddr| BoundAddress { protocol, address };
        let port = udp.local_addr().unwrap().port();
        let elsewhere = SocketAddr::new("10.96.0.10".parse().unwrap(), port);
        for taken in [
            of(Protocol::Tcp, tcp.local_addr().unwrap()),
            of(Protocol::Udp, elsewhere),
        ] {
            let who = sockets.who_has(taken).unwrap();
            assert!(who.starts_with(&own), "{who}");
            assert!(who.ends_with(&format!("of user {}", geteuid())), "{who}");
        }
        drop((tcp, udp));
        let sockets = Sockets::list().unwrap();
        assert_eq!(sockets.who_has(of(Protocol::Udp, elsewhere)), None);
    }

    #[test]
    fn addresses_conflict_as_for_the_kernel() {
        for (one, other, expected) in [
            ("10.96.0.1:80", "10.96.0.1:80", true),
            ("10.96.0.1:80", "10.96.0.2:80", false),
            ("10.96.0.1:80", "10.96.0.1:81", false),
            ("0.0.0.0:80", "10.96.0.1:80", true),
            ("[::]:80", "10.96.0.1:80", true),
            ("[::ffff:10.96.0.1]:80", "10.96.0.1:80", true),
            ("[fd00::1]:80", "[fd00::2]:80", false),
        ] {
            let [a, b] = [one, other].map(|text| text.parse().unwrap());
            assert_eq!(conflict(a, b), expected, "{one} {other}");
            assert_eq!(conflict(b, a), expected, "{one} {other}");
        }
    }

    /// A program can give itself any name.
    #[test]
    fn names_of_programs_are_plain() {
        let folder = std::env::temp_dir().join(format!("tripod-owner-{}", std::process::id()));
        let process = folder.join("42");
        fs::create_dir_all(process.join("fd")).unwrap();
        let bytes = b"nc\n2026 ERROR \xff\x1b[2J\n";
        fs::write(process.join("comm"), bytes).unwrap();
        std::os::unix::fs::symlink("socket:[7]", process.join("fd/3")).unwrap();
        let uid = geteuid().as_raw();
        let who = describe(&folder, BoundSocket { uid, inode: 7 });
        let expected = format!("process 42 (nc?2026?ERROR????2J) of user {uid}");
        assert_eq!(who, expected);
        let other = describe(&folder, BoundSocket { uid, inode: 8 });
        assert_eq!(other, format!("a process of user {uid}"));
        fs::remove_dir_all(folder).unwrap();
        let inode = fstat(io::stdin()).unwrap().st_ino;
        let nobody = describe(Path::new("/nowhere"), BoundSocket { uid: 1, inode });
        assert_eq!(nobody, "a process of user 1");
    }
}
