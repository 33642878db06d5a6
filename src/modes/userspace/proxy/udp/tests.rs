//! What the tests of the data path set.

use super::*;

impl Resources {
    /// Sets the maximum number of flows.
    pub fn limit(&self, most: usize) {
        self.flows.set_most(most);
    }
}
