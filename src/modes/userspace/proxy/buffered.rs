//! Bytes that this process buffers for receivers that do not read them yet.

use prometheus::IntGauge;

/// Relays may buffer one part in this many of the memory limit before they read less at once.
const SHARE: u64 = 16;

/// Number of bytes that all relays of a data path buffer.
#[derive(Clone, Debug)]
pub struct Buffered {
    bytes: IntGauge,
    /// Above this number of bytes, relays read only little at once.
    most: i64,
}

/// Buffered bytes, counted until this is dropped.
#[derive(Debug)]
pub struct Counted {
    of: Buffered,
    bytes: i64,
}

impl Buffered {
    /// Counts in `bytes`; `memory` is the limit in bytes, if there is one.
    pub fn new(bytes: IntGauge, memory: Option<u64>) -> Self {
        let most = memory.and_then(|limit| i64::try_from(limit / SHARE).ok());
        Buffered {
            bytes,
            most: most.unwrap_or(i64::MAX),
        }
    }

    /// Returns whether so much is buffered that a relay should read little at once.
    pub fn is_much(&self) -> bool {
        self.bytes.get() >= self.most
    }

    /// Counts `bytes` until the returned value is dropped.
    pub fn count(&self, bytes: usize) -> Counted {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes.add(bytes);
        Counted {
            of: self.clone(),
            bytes,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.of.bytes.sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_counts_until_it_is_taken() {
        let gauge = IntGauge::new("kept", "kept").unwrap();
        let buffered = Buffered::new(gauge.clone(), Some(1600));
        let some = buffered.count(60);
        assert!(!buffered.is_much());
        let more = buffered.count(40);
        assert!(buffered.is_much());
        drop(some);
        assert!(!buffered.is_much());
        drop(more);
        assert_eq!(gauge.get(), 0);
        assert!(!Buffered::new(gauge, None).is_much(), "no limit");
    }
}
