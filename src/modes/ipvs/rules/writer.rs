//! The rules of one family, written in parallel with the syncs: a program may wait
//! seconds for a lock, take long over a hundred thousand rules of others, or hang, and
//! endpoints wait for none of that.

use std::{future::Future, io, thread, time::Duration};

use net::Family;
use netlink::system;
use tokio::{
    runtime,
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, error::TryRecvError, unbounded_channel},
        oneshot,
    },
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use xtables::{Engine, Error, Toolkit, desired::RuleSet, features::Features};

use super::tables::{Ensured, Previous, Tables};
use crate::{
    backoff::Backoff,
    modes::{
        Difference,
        ipvs::plan::{self, NodeContext, NonEmptySets},
    },
};

/// How long a sync waits for an answer while no rules are known to be applied, and nothing can be
/// opened; and after what time a missing answer is reported.
pub const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How long a sync waits for an answer otherwise.
pub const SHORT_WAIT: Duration = Duration::from_secs(1);
/// The first pause before a retry; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How soon another sync sees whether an answer has come.
const POLL: Duration = Duration::from_millis(100);
/// The same for a program that seems not to end.
const LONGEST_POLL: Duration = Duration::from_secs(5);

/// A request to the thread.
enum Request {
    Ensure(RuleSet),
    TakeOver,
    Compare(RuleSet, oneshot::Sender<Result<Vec<Difference>, Error>>),
}

/// The thread's answer to a request.
#[derive(Debug)]
struct Answer {
    outcome: Result<Ensured, Error>,
    previous: Previous,
    takes_over_later: bool,
}

/// When the rules that the kernel holds are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Even if they should be as asked for.
    Always,
    /// Only if other rules were applied at the last answer.
    IfTheyDiffer,
}

/// A request that has no answer yet.
#[derive(Debug)]
struct UnderWay {
    since: Instant,
    /// The rules that were asked for; `None`: the last step of taking over from iptables mode.
    rules: Option<RuleSet>,
    non_empty: NonEmptySets,
}

/// Outcome of a request.
#[derive(Debug)]
pub enum Outcome {
    /// The requested rules are applied.
    InForce {
        /// The sets that they match against.
        sets: NonEmptySets,
        /// Repaired changes of other programs.
        repaired: Vec<String>,
        /// Why table mangle could not be read; its rules are not among the applied ones.
        unread: Option<Error>,
    },
    /// They are not applied.
    Failed {
        /// The error of the program, or of the thread.
        error: Error,
        /// The fate of the rules that were applied before.
        previous: Previous,
    },
}

/// Hands the rules of one family to a thread that only writes them. One request is under way at a
/// time.
#[derive(Debug)]
pub struct RuleWriter {
    family: Family,
    engine: Engine,
    program: String,
    features: Features,
    requests: UnboundedSender<Request>,
    answers: UnboundedReceiver<Answer>,
    under_way: Option<UnderWay>,
    /// Rules that were applied at the last answer, if it was a good one.
    in_force: Option<RuleSet>,
    takes_over_later: bool,
    backoff: Backoff,
    /// Does the work where that is not a thread's; it ends when the writer is dropped.
    _task: JoinSet<()>,
}

impl RuleWriter {
    /// Starts the thread for `family`, with these tools, in the calling thread's
    /// network namespace.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(family: Family, tools: Toolkit) -> Result<RuleWriter, Error> {
        let Toolkit { writer, features } = tools;
        let engine = writer.engine;
        let program = writer.xtables.program().to_owned();
        tracing::debug!(%family, program, ?engine, ?features, "rules");
        let tables = Tables::new(writer);
        let (requests, asked) = unbounded_channel();
        let (answer, answers) = unbounded_channel();
        let work = work(tables, asked, answer);
        let mut task = JoinSet::new();
        if system::current().has_threads() {
            run_in_thread(family, work).map_err(|source| Error::Run {
                program: program.clone(),
                source,
            })?;
        } else {
            task.spawn(work);
        }
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
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            _task: task,
        })
    }

    /// Returns the engine that the rules are in.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Asks for the rules for the case that the `non_empty` sets have members. Does nothing if they
    /// were applied at the last answer, unless they have to be `read`; nor while a request is under
    /// way, or while a failed one must not be tried again yet. Returns true if it asked.
    pub fn ask(&mut self, node: &NodeContext, non_empty: NonEmptySets, read: Read) -> bool {
        if self.under_way.is_some() || self.is_backing_off() {
            return false;
        }
        let rules = plan::rules(self.family, node, &self.features, non_empty);
        if read == Read::IfTheyDiffer && self.in_force.as_ref() == Some(&rules) {
            return false;
        }
        self.send(Request::Ensure(rules.clone()), Some(rules), non_empty);
        true
    }

    /// Asks for the last step of taking over from iptables mode, if there is one:
    /// virtual servers and addresses are there now. Returns true if it asked.
    pub fn ask_to_take_over(&mut self, non_empty: NonEmptySets) -> bool {
        let asks = self.takes_over_later && self.under_way.is_none();
        if asks {
            self.send(Request::TakeOver, None, non_empty);
        }
        asks
    }

    /// Compares the rules in the kernel with those for the case that the `non_empty` sets have
    /// members, after the requests before it.
    ///
    /// # Errors
    /// When the program failed, or takes longer than it should.
    pub async fn compare(
        &self,
        node: &NodeContext,
        non_empty: NonEmptySets,
    ) -> Result<Vec<Difference>, Error> {
        let rules = plan::rules(self.family, node, &self.features, non_empty);
        let (reply, compared) = oneshot::channel();
        let _ = self.requests.send(Request::Compare(rules, reply));
        match timeout(LONGEST_WAIT, compared).await {
            Ok(Ok(compared)) => compared,
            Ok(Err(_)) => Err(has_ended()),
            Err(_) => Err(self.unanswered()),
        }
    }

    /// Returns true if it is too early for a retry.
    fn is_backing_off(&self) -> bool {
        let due = self.backoff.due();
        due.is_some_and(|due| Instant::now() < due)
    }

    fn send(&mut self, request: Request, rules: Option<RuleSet>, non_empty: NonEmptySets) {
        // A thread that has ended is noticed where its answer is missing.
        let _ = self.requests.send(request);
        self.under_way = Some(UnderWay {
            since: Instant::now(),
            rules,
            non_empty,
        });
    }

    /// Takes the outcome of the request under way, if it is known.
    pub fn poll(&mut self) -> Option<Outcome> {
        self.under_way.as_ref()?;
        match self.answers.try_recv() {
            Ok(answer) => self.take(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.take(ended()),
        }
    }

    /// Waits until `longest` after the request under way began, but not at all if the one before it
    /// failed. Returns its outcome; `None`: none yet.
    pub async fn wait(&mut self, longest: Duration) -> Option<Outcome> {
        let since = self.under_way.as_ref()?.since;
        let longest = if self.backoff.due().is_some() {
            Duration::ZERO
        } else {
            longest
        };
        let answer = timeout_at(since + longest, self.answers.recv())
            .await
            .ok()?;
        self.take(answer.unwrap_or_else(ended))
    }

    /// Takes the outcome of the request under way; `None`: there is none.
    fn take(&mut self, answer: Answer) -> Option<Outcome> {
        let done = self.under_way.take()?;
        self.takes_over_later = answer.takes_over_later;
        Some(match answer.outcome {
            Ok(Ensured { repaired, unread }) => {
                self.backoff.succeeded();
                if done.rules.is_some() {
                    self.in_force = done.rules;
                }
                let mut sets = done.non_empty;
                if unread.is_some() {
                    sets -= plan::MATCHED_IN_MANGLE;
                }
                Outcome::InForce {
                    sets,
                    repaired,
                    unread,
                }
            }
            Err(error) => {
                self.backoff.failed(Instant::now());
                self.in_force = None;
                // After half a takeover, nat may jump to no mode's chains.
                let previous = done.rules.map_or(Previous::Lost, |_| answer.previous);
                Outcome::Failed { error, previous }
            }
        })
    }

    /// Returns true if an answer has been missing for longer than it should.
    pub fn is_overdue(&self) -> bool {
        let asked = self.under_way.as_ref();
        asked.is_some_and(|asked| asked.since.elapsed() >= LONGEST_WAIT)
    }

    /// Returns the error that says that an answer is missing.
    pub fn unanswered(&self) -> Error {
        Error::Run {
            program: self.program.clone(),
            source: io::ErrorKind::TimedOut.into(),
        }
    }

    /// Returns how soon another sync should poll or ask again; `None`: no request is
    /// under way or failed.
    pub fn next_check(&self) -> Option<Duration> {
        match &self.under_way {
            // Less often the longer it takes.
            Some(job) => Some((job.since.elapsed() / 4).clamp(POLL, LONGEST_POLL)),
            None => {
                let left = self
                    .backoff
                    .due()?
                    .saturating_duration_since(Instant::now());
                // Not a moment too early.
                Some(left + Duration::from_millis(1))
            }
        }
    }
}

/// Returns the answer for a thread that ended without one.
fn ended() -> Answer {
    Answer {
        outcome: Err(has_ended()),
        previous: Previous::InForce,
        takes_over_later: false,
    }
}

fn has_ended() -> Error {
    Error::Run {
        program: "the thread that writes rules".to_owned(),
        source: io::ErrorKind::BrokenPipe.into(),
    }
}

/// Runs the work of a family in a thread of its own.
fn run_in_thread(
    family: Family,
    work: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::Builder::new()
        .name(format!("rules-{family}"))
        .spawn(move || runtime.block_on(work))?;
    Ok(())
}

/// Serves requests, one after the other, until the last sender is dropped.
async fn work(
    mut tables: Tables,
    mut asked: UnboundedReceiver<Request>,
    answer: UnboundedSender<Answer>,
) {
    while let Some(request) = asked.recv().await {
        let outcome = match request {
            Request::Compare(rules, mut reply) => {
                // The caller may have stopped waiting, and then rules that are due must not wait
                // for its request.
                tokio::select! {
                    compared = tables.compare(&rules) => {
                        let _ = reply.send(compared);
                    }
                    () = reply.closed() => {}
                }
                continue;
            }
            Request::Ensure(rules) => tables.ensure(rules).await,
            Request::TakeOver => tables.take_over().await.map(|()| Ensured::default()),
        };
        let answered = answer.send(Answer {
            outcome,
            previous: tables.previous(),
            takes_over_later: tables.takes_over_later(),
        });
        if answered.is_err() {
            return;
        }
    }
}
