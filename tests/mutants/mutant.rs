//! What a mutant is.

/// A change of the source.
pub(super) struct Mutant {
    pub(super) file: &'static str,
    /// What is there, once.
    pub(super) from: &'static str,
    /// What takes its place.
    pub(super) to: &'static str,
    /// What that breaks.
    pub(super) breaks: &'static str,
    /// Why the simulation cannot notice it.
    pub(super) unnoticed: Option<&'static str>,
}

/// Returns one that is to be noticed.
pub(super) const fn noticed(
    file: &'static str,
    from: &'static str,
    to: &'static str,
    breaks: &'static str,
) -> Mutant {
    Mutant {
        file,
        from,
        to,
        breaks,
        unnoticed: None,
    }
}

/// Returns one that cannot be noticed, and why.
pub(super) const fn unnoticed(mutant: Mutant, why: &'static str) -> Mutant {
    Mutant {
        unnoticed: Some(why),
        ..mutant
    }
}
