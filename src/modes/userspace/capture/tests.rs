//! Capture of both families, for the tests of both methods.

use super::*;
use crate::kernel::probe::{Examination, Kernel};

impl Target {
    /// Returns a target for a cluster IP that our listener on `port` serves.
    pub(super) fn at(port: u16) -> Target {
        Target {
            port,
            name: Arc::from("default/web:http"),
            other_ports: OtherPorts::Refuse,
        }
    }
}

impl Capture {
    pub(super) fn of_both(method: Method) -> Capture {
        let choice = Choice {
            methods: PerFamily::each(|_| method),
            reasons: Vec::new(),
        };
        let kernel = Kernel::examine(&Examination::default());
        Capture::new(choice, &kernel).expect("the kernel's way of capture")
    }

    /// Syncs both families: the `changed` frontends, or everything. Returns the results of both
    /// together.
    pub(super) async fn sync_both(
        &mut self,
        desired: &Desired,
        changed: Option<&[Frontend]>,
    ) -> Result<Report, Error> {
        let scopes = PerFamily::each(|_| {
            Some(Scope {
                extent: changed.map_or(Extent::Full, |_| Extent::Changed),
                changed: changed.unwrap_or_default().to_vec(),
                has_predecessor: false,
            })
        });
        let mut all = Report::default();
        for (_, outcome) in self.sync(desired, &scopes).await {
            let report = outcome.unwrap_or_else(|| Ok(Report::default()))?;
            all.failed.extend(report.failed);
            all.unfinished.extend(report.unfinished);
            all.messages.extend(report.messages);
        }
        Ok(all)
    }
}
