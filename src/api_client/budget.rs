//! Limits the rate of requests: client-go's token bucket (`flowcontrol`), whose
//! parameters are `clientConnection.qps` and `.burst`.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// client-go's `DefaultQPS` and `DefaultBurst`.
const DEFAULT_QPS: f32 = 5.0;
const DEFAULT_BURST: u32 = 10;

/// A token bucket.
pub(super) struct Budget {
    /// Time that each request costs; `None` if there is no limit.
    cost: Option<Duration>,
    /// How far the paid time may be ahead of the clock.
    credit: Duration,
    /// When all requests so far are paid for.
    paid_at: Mutex<Instant>,
}

impl Budget {
    /// Returns a full bucket; `qps` 0 means 5, negative no limit; `burst` 0 means 10.
    pub(super) fn new(qps: f32, burst: u32) -> Budget {
        let qps = if qps == 0.0 { DEFAULT_QPS } else { qps };
        let burst = if burst == 0 { DEFAULT_BURST } else { burst };
        let cost = Duration::try_from_secs_f32(1.0 / qps).ok();
        Budget {
            cost,
            credit: cost.unwrap_or_default().saturating_mul(burst - 1),
            paid_at: Mutex::new(Instant::now()),
        }
    }

    /// Waits for the turn of one request. Returns how long that took; `None` if there is no limit.
    pub(super) async fn take(&self) -> Option<Duration> {
        self.take_on(self.credit).await
    }

    /// Like [`Budget::take`], for a request that can wait: the burst is left to the others.
    pub(super) async fn take_last(&self) -> Option<Duration> {
        self.take_on(Duration::ZERO).await
    }

    async fn take_on(&self, credit: Duration) -> Option<Duration> {
        let cost = self.cost?;
        let now = Instant::now();
        let turn = {
            let mut paid_at = self.paid_at.lock();
            let turn = paid_at.checked_sub(credit).unwrap_or(now).max(now);
            *paid_at = (*paid_at).max(now) + cost;
            turn
        };
        sleep_until(turn).await;
        Some(now.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn seconds_for(requests: u32, qps: f32, burst: u32) -> f32 {
        let budget = Budget::new(qps, burst);
        let begun = Instant::now();
        for _ in 0..requests {
            budget.take().await;
        }
        begun.elapsed().as_secs_f32()
    }

    #[tokio::test(start_paused = true)]
    async fn bursts_are_free_and_the_rest_is_paced() {
        let cases = [
            (10, 0.0, 0, 0.0),
            (15, 0.0, 0, 1.0),
            (4, 2.0, 1, 1.5),
            (1000, -1.0, 0, 0.0),
            (1000, f32::NAN, 0, 0.0),
            (5, f32::INFINITY, 1, 0.0),
        ];
        for (requests, qps, burst, expected) in cases {
            let took = seconds_for(requests, qps, burst).await;
            assert!(
                (took - expected).abs() < 0.05,
                "{requests} at {qps}/{burst}: {took}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_can_wait_is_paced_and_leaves_the_burst_to_others() {
        let budget = Budget::new(5.0, 10);
        let begun = Instant::now();
        for _ in 0..11 {
            budget.take_last().await;
        }
        let took = begun.elapsed().as_secs_f32();
        assert!((took - 2.0).abs() < 0.05, "{took}");
        for _ in 0..9 {
            budget.take().await;
        }
        assert!(begun.elapsed().as_secs_f32() - took < 0.05);
    }
}
