//! The simulated kernel as a system that threads enter.

use std::{
    io::{self, Cursor, Read, Seek, SeekFrom, Write},
    path::Path,
    process::Command,
};

use net::Family;
use netlink::system::{Access, Ended, Peer, ProcFile, Protocol, Running, System};
use nix::{errno::Errno, libc};
use tokio::io::AsyncWriteExt;
use xtables::info::GET_INFO;

use super::{Kernel, programs};

/// The file that shows the virtual servers.
const IPVS: &str = "/proc/thread-self/net/ip_vs";
/// The folder of the settings.
const SETTINGS: &str = "/proc/sys/";
/// Size of the buffer between a program and its reader, in bytes.
const PIPE: usize = 64 * 1024;
/// Where `struct ipt_getinfo` (`linux/netfilter_ipv4/ip_tables.h`) has the name of the table, and
/// the number and the size of its entries, in bytes.
const NAME: std::ops::Range<usize> = 0..32;
const ENTRIES: std::ops::Range<usize> = 76..80;
const SIZE: std::ops::Range<usize> = 80..84;

impl System for Kernel {
    fn connect(&self, protocol: Protocol, groups: &[u32]) -> io::Result<Box<dyn Peer>> {
        self.open_socket(protocol, groups)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn ProcFile>> {
        let path = path.to_string_lossy();
        let content = match path.strip_prefix(SETTINGS) {
            Some(name) => Content::Setting(name.replace('/', ".")),
            None if path == IPVS => Content::VirtualServers,
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        let mut file = File {
            kernel: self.clone(),
            content,
            text: Cursor::default(),
        };
        if access == Access::Read {
            file.rewind()?;
        }
        Ok(Box::new(file))
    }

    fn start<'a>(&self, command: Command, input: &'a str) -> io::Result<Running<'a>> {
        let answer = self.run(programs::Command::of(&command, input));
        let (mut stdout, reader) = tokio::io::duplex(PIPE);
        let ended = async move {
            let output = answer.await?;
            stdout.write_all(&output.stdout).await?;
            Ok(Ended {
                status: output.status,
                stderr: output.stderr,
            })
        };
        Ok(Running {
            stdout: Box::pin(reader),
            ended: Box::pin(ended),
        })
    }

    fn option(&self, family: Family, option: libc::c_int, value: &mut [u8]) -> io::Result<()> {
        if option != GET_INFO || value.len() < SIZE.end {
            return Err(Errno::ENOPROTOOPT.into());
        }
        let name: Vec<u8> = value[NAME]
            .iter()
            .copied()
            .take_while(|byte| *byte != 0)
            .collect();
        let size = self.size(family, &String::from_utf8_lossy(&name))?;
        value[ENTRIES].copy_from_slice(&size.entries.to_ne_bytes());
        value[SIZE].copy_from_slice(&size.bytes.to_ne_bytes());
        Ok(())
    }

    fn has_threads(&self) -> bool {
        false
    }
}

/// Content of a file.
enum Content {
    VirtualServers,
    Setting(String),
}

/// An open file below `/proc`.
struct File {
    kernel: Kernel,
    content: Content,
    /// The text of the file, as it was when reading began.
    text: Cursor<Vec<u8>>,
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.text.read(buffer)
    }
}

impl Write for File {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let Content::Setting(name) = &self.content else {
            return Err(io::ErrorKind::PermissionDenied.into());
        };
        self.kernel.set(name, &String::from_utf8_lossy(text))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        if to == SeekFrom::Start(0) {
            let text = match &self.content {
                Content::VirtualServers => self.kernel.virtual_servers()?,
                Content::Setting(name) => self.kernel.setting(name),
            };
            self.text = Cursor::new(text.into());
        }
        self.text.seek(to)
    }
}
