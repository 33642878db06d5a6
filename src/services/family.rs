//! One value for each IP family: what is asked of one, and what becomes of it,
//! is no matter of the other.

use super::IpFamily;

/// A `T` for IPv4 and one for IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    /// IPv4's.
    pub v4: T,
    /// IPv6's.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// What `of` answers for each.
    pub fn each(mut of: impl FnMut(IpFamily) -> T) -> PerFamily<T> {
        PerFamily {
            v4: of(IpFamily::V4),
            v6: of(IpFamily::V6),
        }
    }

    /// That of `family`.
    pub fn get(&self, family: IpFamily) -> &T {
        match family {
            IpFamily::V4 => &self.v4,
            IpFamily::V6 => &self.v6,
        }
    }

    /// That of `family`.
    pub fn get_mut(&mut self, family: IpFamily) -> &mut T {
        match family {
            IpFamily::V4 => &mut self.v4,
            IpFamily::V6 => &mut self.v6,
        }
    }

    /// Both, IPv4's first.
    pub fn iter(&self) -> impl Iterator<Item = (IpFamily, &T)> {
        [(IpFamily::V4, &self.v4), (IpFamily::V6, &self.v6)].into_iter()
    }

    /// Both, IPv4's first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (IpFamily, &mut T)> {
        [(IpFamily::V4, &mut self.v4), (IpFamily::V6, &mut self.v6)].into_iter()
    }

    /// What `change` makes of each.
    pub fn map<U>(self, mut change: impl FnMut(IpFamily, T) -> U) -> PerFamily<U> {
        PerFamily {
            v4: change(IpFamily::V4, self.v4),
            v6: change(IpFamily::V6, self.v6),
        }
    }

    /// References to both.
    pub fn as_ref(&self) -> PerFamily<&T> {
        PerFamily {
            v4: &self.v4,
            v6: &self.v6,
        }
    }
}

impl<T> IntoIterator for PerFamily<T> {
    type Item = (IpFamily, T);
    type IntoIter = std::array::IntoIter<(IpFamily, T), 2>;

    /// Both, IPv4's first.
    fn into_iter(self) -> Self::IntoIter {
        [(IpFamily::V4, self.v4), (IpFamily::V6, self.v6)].into_iter()
    }
}
