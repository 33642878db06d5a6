//! IP families, and one value for each.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nix::libc;

/// An IP family. Services, addresses and everything in the kernel are of one; a
/// dual-stack Service has ServicePorts in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IP version 4.
    V4,
    /// IP version 6.
    V6,
}

impl Family {
    /// Both, in the order in which they are shown.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Returns the family that `ip` belongs to.
    pub fn of(ip: &IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Returns the family that this one is not.
    pub fn other(self) -> Family {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }

    /// The length of an address in bits: 32 or 128.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    /// Returns its loopback addresses: 127.0.0.0/8 (RFC 1122, section 3.2.1.3), ::1
    /// (RFC 4291, section 2.5.3).
    pub const fn loopback(self) -> IpNet {
        match self {
            Family::V4 => IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
            Family::V6 => IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
        }
    }

    /// Returns the address that a program calls to reach its own node.
    pub const fn localhost(self) -> IpAddr {
        match self {
            Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }
    }

    /// Returns the unspecified address of the family: `0.0.0.0` or `::`.
    pub const fn unspecified(self) -> IpAddr {
        match self {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    /// Returns `AF_INET` or `AF_INET6`.
    pub fn number(self) -> u8 {
        match self {
            Family::V4 => libc::AF_INET as u8,
            Family::V6 => libc::AF_INET6 as u8,
        }
    }

    /// Returns the family whose `AF_` constant `number` is; `None` for any other number.
    pub fn from_number(number: u8) -> Option<Family> {
        Family::ALL.into_iter().find(|f| f.number() == number)
    }

    /// Returns the name that Kubernetes uses: `IPv4` or `IPv6`.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A `T` for IPv4 and one for IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    /// The value of IPv4.
    pub v4: T,
    /// The value of IPv6.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// Calls `of` for each family.
    pub fn each(mut of: impl FnMut(Family) -> T) -> PerFamily<T> {
        PerFamily {
            v4: of(Family::V4),
            v6: of(Family::V6),
        }
    }

    /// The value for `family`.
    pub fn get(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// Mutable access to the value for `family`.
    pub fn get_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// Returns each family with its value, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = (Family, &T)> {
        [(Family::V4, &self.v4), (Family::V6, &self.v6)].into_iter()
    }

    /// Returns each family with mutable access to its value, IPv4 first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Family, &mut T)> {
        [(Family::V4, &mut self.v4), (Family::V6, &mut self.v6)].into_iter()
    }

    /// Calls `change` with each family's value, and returns the results.
    pub fn map<U>(self, mut change: impl FnMut(Family, T) -> U) -> PerFamily<U> {
        PerFamily {
            v4: change(Family::V4, self.v4),
            v6: change(Family::V6, self.v6),
        }
    }

    /// Returns references to both values.
    pub fn as_ref(&self) -> PerFamily<&T> {
        PerFamily {
            v4: &self.v4,
            v6: &self.v6,
        }
    }

    /// Returns mutable references to both values.
    pub fn as_mut(&mut self) -> PerFamily<&mut T> {
        PerFamily {
            v4: &mut self.v4,
            v6: &mut self.v6,
        }
    }
}

impl<T, E> PerFamily<Result<T, E>> {
    /// Returns each family that has a value, IPv4 first.
    pub fn present(&self) -> impl Iterator<Item = (Family, &T)> {
        let families = self.iter();
        families.filter_map(|(family, value)| Some((family, value.as_ref().ok()?)))
    }

    /// Returns each family that has a value, with mutable access to it, IPv4 first.
    pub fn present_mut(&mut self) -> impl Iterator<Item = (Family, &mut T)> {
        let families = self.iter_mut();
        families.filter_map(|(family, value)| Some((family, value.as_mut().ok()?)))
    }
}

impl<T> IntoIterator for PerFamily<T> {
    type Item = (Family, T);
    type IntoIter = std::array::IntoIter<(Family, T), 2>;

    /// Returns each family with its value, IPv4 first.
    fn into_iter(self) -> Self::IntoIter {
        [(Family::V4, self.v4), (Family::V6, self.v6)].into_iter()
    }
}
