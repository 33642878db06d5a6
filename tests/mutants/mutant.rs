//! The definition of a mutant.

/// A change of the source.
pub(super) struct Mutant {
    pub(super) file: &'static str,
    /// The text to replace, which occurs once.
    pub(super) from: &'static str,
    /// The text that replaces it.
    pub(super) to: &'static str,
    /// Describes the damage, for the report.
    pub(super) breaks: &'static str,
    /// Why the simulation cannot notice it.
    pub(super) unnoticed: Option<&'static str>,
}

/// A mutant that must be noticed.
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

/// A mutant that cannot be noticed, and why.
pub(super) const fn unnoticed(mutant: Mutant, why: &'static str) -> Mutant {
    Mutant {
        unnoticed: Some(why),
        ..mutant
    }
}
