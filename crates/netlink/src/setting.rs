//! Settings of the kernel with their desired values.

use std::{fmt, fs, io};

use super::sysctl;

/// A setting of the kernel with its desired value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, or the path of its file.
    pub name: &'static str,
    /// The desired value.
    pub value: u64,
    /// Whether a larger value is as good.
    pub at_least: bool,
}

/// A setting whose present value differs from the desired one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differs {
    setting: Setting,
    present: u64,
}

impl Setting {
    /// A setting that must have exactly this value.
    pub const fn exactly(name: &'static str, value: u64) -> Setting {
        Setting {
            name,
            value,
            at_least: false,
        }
    }

    /// A setting that must have at least this value.
    pub const fn minimum(name: &'static str, value: u64) -> Setting {
        Setting {
            name,
            value,
            at_least: true,
        }
    }

    /// Returns whether `present` satisfies the desired value.
    pub fn is_met_by(&self, present: u64) -> bool {
        present == self.value || self.at_least && present > self.value
    }

    /// Returns how the running kernel differs; `None` also where it has no such setting,
    /// or does not show it.
    pub fn differs(&self) -> Option<Differs> {
        let present = read(self.name).ok()?;
        (!self.is_met_by(present)).then_some(Differs {
            setting: *self,
            present,
        })
    }
}

impl fmt::Display for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Differs { setting, present } = self;
        let least = if setting.at_least { "at least " } else { "" };
        let Setting { name, value, .. } = setting;
        write!(f, "setting {name}, which is {present}, not {least}{value}")
    }
}

/// Returns the present value of a setting; `name` is as in [`Setting`].
///
/// # Errors
/// When there is no such setting, or it is no number.
pub fn read(name: &str) -> io::Result<u64> {
    let text = if name.starts_with('/') {
        fs::read_to_string(name)?
    } else {
        sysctl::read(name)?
    };
    text.trim().parse().map_err(io::Error::other)
}

/// Sets the value of a setting; `name` is as in [`Setting`].
///
/// # Errors
/// When the kernel does not take it.
pub fn write(name: &str, value: u64) -> io::Result<()> {
    if name.starts_with('/') {
        fs::write(name, value.to_string())
    } else {
        Ok(sysctl::write(name, &value.to_string())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_with_another_value_is_named_with_both() {
        let name = "kernel.pid_max";
        let present = read(name).unwrap();
        let found = |setting: Setting| setting.differs().map(|differs| differs.to_string());
        assert_eq!(found(Setting::exactly(name, present)), None);
        let more = Setting::exactly(name, present + 1);
        let text = format!("setting {name}, which is {present}, not {}", present + 1);
        assert_eq!(found(more), Some(text));
        let least = Setting {
            at_least: true,
            ..more
        };
        assert!(found(least).unwrap().contains("not at least"));
        assert!(least.is_met_by(present + 2) && !more.is_met_by(present + 2));
        assert_eq!(found(Setting::exactly("kernel.no_such", 1)), None);
        assert_eq!(read("/proc/sys/kernel/pid_max").unwrap(), present);
    }
}
