//! Answers `/v1/syncs`.

use super::{StatusApi, seconds, time};
use crate::status_api::{PastSync, SyncList, VERSION};

impl StatusApi {
    pub(super) fn syncs(&self) -> SyncList {
        let syncs = self.runner.history().into_iter();
        let items = syncs.map(|(family, sync)| {
            let extent = sync.result.as_ref().ok();
            PastSync {
                family: family.to_string(),
                ended: time(sync.ended),
                seconds: seconds(sync.took),
                full: sync.full,
                service_ports: extent.map(|extent| extent.service_ports),
                failed: extent.map(|extent| extent.failed),
                error: sync.result.err(),
            }
        });
        SyncList {
            api_version: VERSION.to_owned(),
            kind: "SyncList".to_owned(),
            items: items.collect(),
        }
    }
}
