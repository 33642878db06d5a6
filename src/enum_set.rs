//! Sets of the variants of an enum, a bit for each.

use std::{fmt, hash::Hash, marker::PhantomData};

/// An enum that has at most 32 variants.
pub trait Variants: Copy + fmt::Debug + Eq + Hash + 'static {
    /// All variants, in the order in which they are declared.
    const ALL: &'static [Self];

    /// Returns the index of the variant in that order, from 0.
    fn place(self) -> u32;
}

/// Some of the variants of `T`.
///
/// ```
/// # use tripod::{enum_set::EnumSet, kernel::extension::Extension};
/// let without = EnumSet::ALL.without(&[Extension::Comment]);
/// assert!(without.contains(Extension::Mark) && !without.contains(Extension::Comment));
/// assert!(EnumSet::ALL.covers(without) && !without.covers(EnumSet::ALL));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EnumSet<T> {
    bits: u32,
    of: PhantomData<T>,
}

impl<T: Variants> EnumSet<T> {
    /// The set without any variant.
    pub const NONE: EnumSet<T> = EnumSet::of_bits(0);
    /// The set of all variants.
    pub const ALL: EnumSet<T> = EnumSet::of_bits(u32::MAX >> (u32::BITS as usize - T::ALL.len()));

    const fn of_bits(bits: u32) -> EnumSet<T> {
        let of = PhantomData;
        EnumSet { bits, of }
    }

    /// Adds `variant` to the set.
    pub fn insert(&mut self, variant: T) {
        self.bits |= 1 << variant.place();
    }

    /// Returns whether `variant` is in the set.
    pub fn contains(self, variant: T) -> bool {
        self.bits & (1 << variant.place()) != 0
    }

    /// Returns this set without `variants`.
    #[must_use]
    pub fn without(self, variants: &[T]) -> EnumSet<T> {
        let gone: EnumSet<T> = variants.iter().copied().collect();
        EnumSet::of_bits(self.bits & !gone.bits)
    }

    /// Returns the variants that are in both sets.
    pub fn and(self, other: EnumSet<T>) -> EnumSet<T> {
        EnumSet::of_bits(self.bits & other.bits)
    }

    /// Returns the variants that are in either set.
    pub fn or(self, other: EnumSet<T>) -> EnumSet<T> {
        EnumSet::of_bits(self.bits | other.bits)
    }

    /// Returns whether all variants of `other` are in this set.
    pub fn covers(self, other: EnumSet<T>) -> bool {
        self.and(other) == other
    }
}

impl<T: Variants> Default for EnumSet<T> {
    fn default() -> EnumSet<T> {
        EnumSet::NONE
    }
}

impl<T: Variants> FromIterator<T> for EnumSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(variants: I) -> EnumSet<T> {
        let mut set = EnumSet::NONE;
        variants.into_iter().for_each(|variant| set.insert(variant));
        set
    }
}

impl<T: Variants> fmt::Debug for EnumSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = T::ALL.iter();
        let some = all.filter(|variant| self.contains(**variant));
        f.debug_set().entries(some).finish()
    }
}
