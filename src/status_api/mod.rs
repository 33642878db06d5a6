//! The JSON API of the running proxy, version 1: the types of its answers, and the paths
//! at which they are served. The proxy writes these types, the commands read them.
//!
//! Fields may be added to version 1; none is removed or changes its meaning. Readers
//! ignore fields that they do not know. A value that is not known is `null`, never 0.

mod destination;
mod dials;
mod diff;
mod explanation;
mod services;
mod status;
mod syncs;

use serde::{Deserialize, Serialize};

pub use self::{
    destination::{Addressee, Destination, NamedService},
    dials::{Dial, DialList},
    diff::{Diff, Difference, FamilyDiff},
    explanation::{
        Candidate, Connection, Connections, Explanation, ExplanationList, Object, PassedOver,
    },
    services::{
        Address, Endpoint, HealthCheck, Limited, NoEndpoints, ServicePort, ServicePortList, Traffic,
    },
    status::{
        Conflict, Counts, Draining, Failing, FamilySync, Health, HealthCheckFailing, LastSync,
        Mode, ObjectKind, Objects, Progress, Status, Trouble, Unsupported, Unusable,
    },
    syncs::{PastSync, SyncList},
};

/// Version of all answers, in their field `apiVersion`.
pub const VERSION: &str = "tripod.proxy/v1";

/// Path of the unix socket on which the API is served, unless a flag names another.
pub const SOCKET: &str = "/run/tripod/tripod.sock";

/// Path of [`Status`].
pub const STATUS_PATH: &str = "/v1/status";

/// Path of [`Health`].
pub const HEALTH_PATH: &str = "/v1/health";

/// Path of [`SyncList`].
pub const SYNCS_PATH: &str = "/v1/syncs";

/// Path of [`ServicePortList`]: of all namespaces, or followed by `/NAMESPACE` or
/// `/NAMESPACE/NAME`. A page begins after the ServicePort that the parameter `continue`
/// names.
pub const SERVICES_PATH: &str = "/v1/services";

/// Path of [`Diff`].
pub const DIFF_PATH: &str = "/v1/diff";

/// Path of [`Explanation`] and [`ExplanationList`]. The parameter `to` is an address with a
/// port, or a Service ([`Destination`]); `protocol` is `tcp`, `udp` or `sctp`; `from` is an
/// address, `pod`, `node` or `outside`; `kernel` is `false` to skip reading the state of the
/// kernel.
pub const EXPLAIN_PATH: &str = "/v1/explain";

/// Path of [`DialList`]. The parameter `servicePort` is `namespace/name:port`, `protocol` is `tcp`
/// or `udp`, and `after` is `next` of an earlier answer. Without `after` nothing is listed:
/// attempts are recorded from then on, for ten seconds after each request.
pub const DIALS_PATH: &str = "/v1/dials";

/// The first entries of a list, and their total number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed<T> {
    /// The total number of entries, which may be larger than the length of `items`.
    pub total: usize,
    /// The first entries, as many as the answer may hold.
    pub items: Vec<T>,
}

impl<T> Listed<T> {
    /// Returns the first `most` of `all` as `show` makes them, and the number of all.
    pub fn first<S>(
        all: impl IntoIterator<Item = S>,
        most: usize,
        show: impl FnMut(S) -> T,
    ) -> Listed<T> {
        let mut all = all.into_iter();
        let items: Vec<T> = all.by_ref().take(most).map(show).collect();
        Listed {
            total: items.len() + all.count(),
            items,
        }
    }
}

/// An empty list.
impl<T> Default for Listed<T> {
    fn default() -> Listed<T> {
        Listed {
            total: 0,
            items: Vec::new(),
        }
    }
}

/// The answer to a request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Readable description of the error.
    pub error: String,
}
