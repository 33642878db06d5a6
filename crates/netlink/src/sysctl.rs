//! Kernel settings under `/proc/sys`.

use std::{
    io::{self, Read, Write},
    path::PathBuf,
};

use super::{
    passing,
    system::{self, Access, ProcFile},
};

/// A setting could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} sysctl {name}: {source}")]
pub struct Error {
    operation: &'static str,
    name: String,
    source: io::Error,
}

impl Error {
    /// Returns whether the error says that this kernel, or this network
    /// namespace, has no such setting.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// Returns whether the reason is temporary, such as a lack of memory, and so says nothing about
    /// the setting.
    pub fn is_passing(&self) -> bool {
        passing::is_passing_io(&self.source)
    }

    /// Returns the reason, without the name of the setting.
    pub fn reason(&self) -> String {
        self.source.to_string()
    }
}

impl From<Error> for io::Error {
    /// Preserves the kind; the text says what could not be done.
    fn from(error: Error) -> io::Error {
        io::Error::new(error.source.kind(), error)
    }
}

fn open(name: &str, access: Access) -> io::Result<Box<dyn ProcFile>> {
    system::current().open(&path(name)?, access)
}

fn path(name: &str) -> Result<PathBuf, io::Error> {
    // Interface names may contain dots, so that a name with slashes is taken as
    // it is.
    let relative = if name.contains('/') {
        name.to_owned()
    } else {
        name.replace('.', "/")
    };
    if relative.starts_with('/')
        || relative
            .split('/')
            .any(|part| part == ".." || part.is_empty())
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a name of a setting",
        ));
    }
    Ok(PathBuf::from("/proc/sys").join(relative))
}

/// Reads the value of `name`, as in `net.ipv4.ip_forward` or, where an interface's name contains a
/// dot, `net/ipv4/conf/eth0.100/rp_filter`.
///
/// # Errors
/// When there is no such setting or it cannot be read.
pub fn read(name: &str) -> Result<String, Error> {
    let read = || {
        let mut text = String::new();
        open(name, Access::Read)?.read_to_string(&mut text)?;
        Ok(text.trim_end().to_owned())
    };
    read().map_err(|source| error("read", name, source))
}

/// Sets `name` to `value`, if it has another.
///
/// # Errors
/// When there is no such setting, `/proc/sys` is read-only, or the kernel
/// refuses the value.
pub fn write(name: &str, value: &str) -> Result<(), Error> {
    if read(name).is_ok_and(|present| present == value) {
        return Ok(());
    }
    open(name, Access::Write)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|source| error("write", name, source))
}

/// Checks that `name` has `value`, or can be set.
///
/// # Errors
/// The same as for [`write()`], except for those that only the attempt would show.
pub fn settable(name: &str, value: &str) -> Result<(), Error> {
    if read(name).is_ok_and(|present| present == value) {
        return Ok(());
    }
    open(name, Access::Write)
        .map(drop)
        .map_err(|source| error("write", name, source))
}

fn error(operation: &'static str, name: &str, source: io::Error) -> Error {
    Error {
        operation,
        name: name.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_dots_and_slashes_lead_to_the_same_setting() {
        let dots = read("kernel.ostype").unwrap();
        assert_eq!(dots, "Linux");
        assert_eq!(read("kernel/ostype").unwrap(), dots);
    }

    #[test]
    fn a_missing_setting_is_named() {
        let error = read("net.ipv4.no_such").unwrap_err();
        assert!(error.is_missing());
        assert!(error.to_string().contains("net.ipv4.no_such"), "{error}");
        for name in ["", "/etc/passwd", "net/../../etc"] {
            assert!(!read(name).unwrap_err().is_missing(), "{name}");
        }
    }
}
