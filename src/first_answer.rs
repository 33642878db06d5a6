//! How long clients wait for the first answer of an endpoint, in the modes in which the kernel forwards
//! connections: each time that the metrics are read, the next connections are followed in the
//! kernel's notifications of connection tracking. If nobody reads them, there is no subscription.

use std::{io, sync::Arc, time::Duration};

use hashbrown::HashMap;
use net::Family;
use netlink::conntrack::{
    events::{Change, Event, Events},
    flows::{Flow, TCP, Tuple},
};
use prometheus::{Registry, core::Collector};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    family_metrics::{at_scrape, histogram, observe},
    log_once::LoggedFlag,
};

/// Connections that are followed after the metrics were read.
const SAMPLE: usize = 200;

/// How long to wait for them to begin.
const BEGIN_WITHIN: Duration = Duration::from_secs(15);

/// How long one is followed, and how long it counts if there is no answer: a client repeats its first
/// packet after one and after three seconds.
const LONGEST: Duration = Duration::from_secs(5);

/// Time from the start of one sample to the next, however often the metrics are read.
const BETWEEN: Duration = Duration::from_secs(10);

/// Bounds of the histogram, in seconds: from 250 µs to 4.096 s.
pub fn bounds() -> Vec<f64> {
    (0..15).map(|n| 0.000_25 * f64::from(1 << n)).collect()
}

/// Follows some connections after each time that the metrics of `registry` are read.
///
/// # Errors
/// When `registry` has a metric of this name already.
pub fn begin(registry: &Registry) -> prometheus::Result<()> {
    let took = histogram(
        &Registry::new(),
        "tripod_first_answer_duration_seconds",
        "Time from the first packet of a TCP connection to a Service until the first packet of its \
         endpoint, of some connections after each scrape.",
        bounds(),
    )?;
    let read = Arc::new(Notify::new());
    let (shown, asked) = (took.clone(), Arc::clone(&read));
    at_scrape(registry, move || {
        asked.notify_one();
        Ok(vec![Box::new(shown.clone()) as Box<dyn Collector>])
    })?;
    tokio::spawn(async move {
        let failed = LoggedFlag::default();
        loop {
            read.notified().await;
            let begun = Instant::now();
            let followed = follow(begun, |family, time| {
                observe(&took, family, time.as_secs_f64());
            });
            if let Err(error) = followed.await
                && failed.is_first()
            {
                tracing::info!("tripod_first_answer_duration_seconds stays empty: {error}");
            }
            sleep_until(begun + BETWEEN).await;
        }
    });
    Ok(())
}

/// Calls `answered` for each connection of a sample that begins now.
async fn follow(begun: Instant, mut answered: impl FnMut(Family, Duration)) -> io::Result<()> {
    let mut events = Events::open().map_err(io::Error::other)?;
    let mut sample = Sample {
        room: SAMPLE,
        until: begun + BEGIN_WITHIN,
        waiting: HashMap::new(),
    };
    while let Some(due) = sample.due() {
        let arrived = timeout_at(due, events.arrived()).await;
        if arrived.is_ok() {
            let lost = events.drain(|event| {
                if let Some((family, time)) = sample.read(&event, Instant::now()) {
                    answered(family, time);
                }
            })?;
            if lost {
                // Answers may be among them.
                return Ok(());
            }
        }
        for family in sample.take_unanswered(Instant::now()) {
            answered(family, LONGEST);
        }
    }
    Ok(())
}

/// Connections that are followed.
struct Sample {
    /// How many more may be.
    room: usize,
    /// When the last of them begins.
    until: Instant,
    /// When each that was not answered yet began.
    waiting: HashMap<Tuple, Instant>,
}

impl Sample {
    /// Records `event`. Returns how long a connection waited, if it is answered now; a refusal is
    /// an answer.
    fn read(&mut self, event: &Event, now: Instant) -> Option<(Family, Duration)> {
        let Event { change, flow } = event;
        let family = Family::of(&flow.original.destination.ip());
        let is_answered = match change {
            Change::New => {
                if self.room > 0 && now < self.until && is_to_service(flow) {
                    self.room -= 1;
                    self.waiting.insert(flow.original, now);
                }
                return None;
            }
            Change::Update if !flow.state.is_answered() => return None,
            Change::Update => true,
            Change::Destroy => flow.state.is_refused(),
        };
        let began = self.waiting.remove(&flow.original)?;
        is_answered.then_some((family, now - began))
    }

    /// When something is due, even if nothing arrives; `None`: the sample is complete.
    fn due(&self) -> Option<Instant> {
        let open = (self.room > 0 && Instant::now() < self.until).then_some(self.until);
        let oldest = self.waiting.values().min();
        oldest
            .map(|began| *began + LONGEST)
            .into_iter()
            .chain(open)
            .min()
    }

    /// Removes the connections that have waited too long, and returns their families.
    fn take_unanswered(&mut self, now: Instant) -> Vec<Family> {
        let late = self.waiting.extract_if(|_, began| now >= *began + LONGEST);
        late.map(|(tuple, _)| Family::of(&tuple.destination.ip()))
            .collect()
    }
}

/// Returns whether the destination of a TCP connection is translated.
fn is_to_service(flow: &Flow) -> bool {
    flow.protocol == TCP && flow.original.destination != flow.reply.source
}
