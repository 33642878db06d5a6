//! Tells connections that the address of their endpoint has left all EndpointSlices, for Services
//! that want these connections to end (`tripod.proxy/reset`).

use std::{future::pending, net::IpAddr, pin::pin, sync::Arc};

use hashbrown::HashSet;
use tokio::{sync::Notify, time::sleep};

use crate::services::SETTLED;

/// The addresses of all endpoints of a Service, until others replace them.
#[derive(Debug)]
pub struct Present {
    addresses: Arc<HashSet<IpAddr>>,
    replaced: Notify,
}

impl Present {
    /// The one for `addresses`, which may be that of `before`.
    pub fn of(addresses: &Arc<HashSet<IpAddr>>, before: Option<&Arc<Present>>) -> Arc<Present> {
        let same = before.filter(|before| before.addresses == *addresses);
        same.cloned().unwrap_or_else(|| {
            Arc::new(Present {
                addresses: Arc::clone(addresses),
                replaced: Notify::new(),
            })
        })
    }

    /// Returns whether it is the one for `addresses`.
    pub fn is_of(&self, addresses: &HashSet<IpAddr>) -> bool {
        *self.addresses == *addresses
    }

    /// Wakes the connections that wait, unless `next` has the same endpoints.
    pub fn replaced_by(&self, next: Option<&Arc<Present>>) {
        if next.is_none_or(|next| !std::ptr::eq(self, Arc::as_ptr(next))) {
            self.replaced.notify_waiters();
        }
    }
}

/// Waits until `endpoint` is gone from what is `present`; for ever if the Service does not request a
/// reset.
pub async fn gone(present: impl Fn() -> Option<Arc<Present>>, endpoint: IpAddr) {
    let is_lost = |present: &Present| !present.addresses.contains(&endpoint);
    while let Some(now) = present() {
        let mut replaced = pin!(now.replaced.notified());
        replaced.as_mut().enable();
        if is_lost(&now) {
            sleep(SETTLED).await;
            if present().as_deref().is_some_and(is_lost) {
                return;
            }
        } else if present().is_some_and(|next| Arc::ptr_eq(&next, &now)) {
            replaced.await;
        }
    }
    pending().await
}
