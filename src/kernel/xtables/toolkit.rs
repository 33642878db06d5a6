//! What a mode writes its rules with.

use super::{
    Engine, Error, Family, Xtables,
    features::{self, Features},
};

/// iptables or ip6tables as it works on this node, and what its rules may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolkit {
    /// The programs.
    pub xtables: Xtables,
    /// The engine that they speak to.
    pub engine: Engine,
    /// What their rules may use.
    pub features: Features,
}

impl Toolkit {
    /// Finds out by trying; takes some tenths of a second. A process does this
    /// once, as part of [`Kernel::examine`]. Changes nothing.
    ///
    /// [`Kernel::examine`]: crate::kernel::probe::Kernel::examine
    ///
    /// # Errors
    /// When no program works with table nat; says what each said.
    pub async fn find(family: Family) -> Result<Toolkit, Error> {
        let (xtables, engine) = Xtables::chosen(family).await?;
        let features = features::probe(&xtables).await;
        Ok(Toolkit {
            xtables,
            engine,
            features,
        })
    }

    /// The family of its rules.
    pub fn family(&self) -> Family {
        self.xtables.family()
    }
}
