//! The tools with which a mode writes its rules.

use super::{
    Error, Xtables,
    engine::Search,
    features::{self, Features, Probed},
    run::Writer,
};

/// iptables or ip6tables as it works on this node, and the features of its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolkit {
    /// Reads and writes rules.
    pub writer: Writer,
    /// Extensions that their rules may use.
    pub features: Features,
}

impl Writer {
    /// Probes the node, which takes some tenths of a second, and also returns which features could
    /// not be probed. Changes nothing.
    ///
    /// # Errors
    /// When no program works with table nat, or that is not known; with each
    /// one's message.
    pub async fn find(search: &Search<'_>) -> Result<(Writer, Probed), Error> {
        let (xtables, engine) = Xtables::chosen(search).await?;
        let probed = match search.known(engine) {
            Some(features) => Probed::known(features),
            None => features::probe(&xtables).await,
        };
        Ok((Writer { xtables, engine }, probed))
    }
}
