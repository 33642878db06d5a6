//! The rules of one family, written beside the syncs: a program may wait seconds
//! for a lock, take long over a hundred thousand rules of others, or hang, and
//! endpoints wait for none of that.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, error::TryRecvError, unbounded_channel},
    time::timeout_at,
};

use super::{
    plan::{self, Filled, Rules, Site},
    tables::Tables,
};
use crate::{
    kernel::xtables::{Engine, Error, Toolkit, features::Features},
    net::Family,
};

/// How long a sync waits for an answer while no rules are known to be in force,
/// and nothing can be opened; and after which one that is missing is named.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a sync waits otherwise.
const BRIEF: Duration = Duration::from_secs(1);
/// Before what failed is tried again: at first, then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How soon to look again whether an answer has come.
const LOOK: Duration = Duration::from_millis(100);

/// What a thread is asked for.
enum Request {
    Ensure(Rules),
    TakeOver,
}

/// What came of it.
#[derive(Debug)]
struct Answer {
    outcome: Result<Vec<String>, Error>,
    lost: bool,
    takes_over_later: bool,
}

/// What is being written.
#[derive(Debug)]
struct UnderWay {
    since: Instant,
    /// `None`: what takes over from iptables mode.
    rules: Option<Rules>,
    filled: Filled,
}

/// What came of what was asked for.
#[derive(Debug)]
pub enum Outcome {
    /// The rules for these sets are in force; what somebody had changed was
    /// repaired.
    InForce(Filled, Vec<String>),
    /// They are not.
    Failed {
        /// Why not.
        error: Error,
        /// Nor are those that were before.
        lost: bool,
    },
}

/// Has the rules of one family written by a thread that does nothing else.
#[derive(Debug)]
pub struct RuleWriter {
    family: Family,
    engine: Engine,
    program: String,
    features: Features,
    requests: UnboundedSender<Request>,
    answers: UnboundedReceiver<Answer>,
    under_way: Option<UnderWay>,
    /// What was in force at the last answer, if it was a good one.
    in_force: Option<Rules>,
    takes_over_later: bool,
    retry: Retry,
}

impl RuleWriter {
    /// One for `family`, with these tools, in the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(family: Family, tools: Toolkit) -> Result<RuleWriter, Error> {
        let Toolkit {
            xtables,
            engine,
            features,
        } = tools;
        let program = xtables.program().to_owned();
        tracing::debug!(%family, program, ?engine, ?features, "rules");
        let tables = Tables::new(family, xtables);
        let (requests, asked) = unbounded_channel();
        let (answer, answers) = unbounded_channel();
        thread::Builder::new()
            .name(format!("rules-{family}"))
            .spawn(move || work(tables, asked, &answer))
            .map_err(|source| Error::Run {
                program: program.clone(),
                source,
            })?;
        Ok(RuleWriter {
            family,
            engine,
            program,
            features,
            requests,
            answers,
            under_way: None,
            in_force: None,
            takes_over_later: false,
            retry: Retry::default(),
        })
    }

    /// The engine that the rules are in.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Asks for the rules that go with sets of which those `filled` have members.
    /// Does nothing if they are in force, and are not to be `read` again; nor while
    /// something else is under way, or rests after a failure. Returns true if it
    /// asked.
    pub fn ask(&mut self, site: &Site, filled: Filled, read: bool) -> bool {
        if self.under_way.is_some() || self.retry.rests(Instant::now()) {
            return false;
        }
        let rules = plan::rules(self.family, site, &self.features, filled);
        if !read && self.in_force.as_ref() == Some(&rules) {
            return false;
        }
        self.send(Request::Ensure(rules.clone()), Some(rules), filled);
        true
    }

    /// Asks for the last step of taking over from iptables mode, if there is one:
    /// virtual servers and addresses are there now. Returns true if it asked.
    pub fn ask_to_take_over(&mut self, filled: Filled) -> bool {
        let asks = self.takes_over_later && self.under_way.is_none();
        if asks {
            self.send(Request::TakeOver, None, filled);
        }
        asks
    }

    fn send(&mut self, request: Request, rules: Option<Rules>, filled: Filled) {
        // A thread that has ended is noticed where its answer is missing.
        let _ = self.requests.send(request);
        self.under_way = Some(UnderWay {
            since: Instant::now(),
            rules,
            filled,
        });
    }

    /// What came of what was asked for, if that is known by now.
    pub fn poll(&mut self) -> Option<Outcome> {
        self.under_way.as_ref()?;
        match self.answers.try_recv() {
            Ok(answer) => Some(self.take(answer)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(self.take(ended())),
        }
    }

    /// Waits for what comes of what was asked for: a moment, or longer if nothing
    /// can go on without it, but not for what failed the last time. `None`: that is
    /// not known yet.
    pub async fn wait(&mut self, is_needed: bool) -> Option<Outcome> {
        let since = self.under_way.as_ref()?.since;
        let patience = match is_needed {
            _ if self.retry.failures > 0 => Duration::ZERO,
            true => PATIENCE,
            false => BRIEF,
        };
        let until = (since + patience).into();
        let answer = timeout_at(until, self.answers.recv()).await.ok()?;
        Some(self.take(answer.unwrap_or_else(ended)))
    }

    fn take(&mut self, answer: Answer) -> Outcome {
        let Some(done) = self.under_way.take() else {
            // Nobody answers who was not asked.
            return Outcome::InForce(Filled::default(), Vec::new());
        };
        self.takes_over_later = answer.takes_over_later;
        match answer.outcome {
            Ok(repaired) => {
                self.retry = Retry::default();
                if done.rules.is_some() {
                    self.in_force = done.rules;
                }
                Outcome::InForce(done.filled, repaired)
            }
            Err(error) => {
                self.retry.failed(Instant::now());
                // After half a takeover, nat may have the chains of nobody.
                let lost = answer.lost || done.rules.is_none();
                self.in_force = None;
                Outcome::Failed { error, lost }
            }
        }
    }

    /// Returns true if an answer has been missing for longer than it should.
    pub fn is_overdue(&self) -> bool {
        let asked = self.under_way.as_ref();
        asked.is_some_and(|asked| asked.since.elapsed() >= PATIENCE)
    }

    /// That an answer is missing, as an error.
    pub fn unanswered(&self) -> Error {
        Error::Run {
            program: self.program.clone(),
            source: io::ErrorKind::TimedOut.into(),
        }
    }

    /// Returns how soon another sync should look at it again; `None`: there is
    /// nothing to look for.
    pub fn look_again(&self) -> Option<Duration> {
        match &self.under_way {
            // Less often the longer it takes.
            Some(job) => Some((job.since.elapsed() / 4).clamp(LOOK, BRIEF)),
            None => self.retry.pause(Instant::now()),
        }
    }
}

/// What a thread that is no more would have said.
fn ended() -> Answer {
    Answer {
        outcome: Err(Error::Run {
            program: "the thread that writes rules".to_owned(),
            source: io::ErrorKind::BrokenPipe.into(),
        }),
        lost: false,
        takes_over_later: false,
    }
}

fn work(
    mut tables: Tables,
    mut asked: UnboundedReceiver<Request>,
    answer: &UnboundedSender<Answer>,
) {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    while let Some(request) = asked.blocking_recv() {
        let outcome = match &runtime {
            Ok(runtime) => runtime.block_on(async {
                match request {
                    Request::Ensure(rules) => tables.ensure(rules).await,
                    Request::TakeOver => tables.take_over().await.map(|()| Vec::new()),
                }
            }),
            Err(error) => Err(Error::Run {
                program: "a runtime for the programs".to_owned(),
                source: error.kind().into(),
            }),
        };
        let answered = answer.send(Answer {
            outcome,
            lost: tables.is_lost(),
            takes_over_later: tables.takes_over_later(),
        });
        if answered.is_err() {
            return;
        }
    }
}

/// When to try again what failed.
#[derive(Clone, Copy, Debug, Default)]
struct Retry {
    failures: u32,
    at: Option<Instant>,
}

impl Retry {
    fn failed(&mut self, now: Instant) {
        let pause = FIRST_PAUSE * 2u32.saturating_pow(self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        self.at = Some(now + pause.min(LONGEST_PAUSE));
    }

    fn rests(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| now < at)
    }

    fn pause(&self, now: Instant) -> Option<Duration> {
        let left = self.at?.saturating_duration_since(now);
        // Not a moment too early.
        Some(left + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_again_after_pauses_that_grow() {
        let mut now = Instant::now();
        let mut retry = Retry::default();
        assert!(!retry.rests(now) && retry.pause(now).is_none());
        let pauses: Vec<u64> = (0..7)
            .map(|_| {
                retry.failed(now);
                let pause = retry.pause(now).unwrap_or_default();
                assert!(retry.rests(now));
                now += pause;
                assert!(!retry.rests(now));
                pause.as_secs()
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    }
}
