//! Follows one kind of objects: lists it, watches it, and resumes after every failure. Meanwhile
//! the last known state stays in use.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use http::{Method, Response};
use http_body_util::BodyExt;
use kube::{
    api::{ListParams, WatchParams},
    client::Body,
    core::Request,
};
use tokio::{
    sync::{MutexGuard, Notify},
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    ask::{self, Failure, STALLED, ask},
    followed::Followed,
    intake::Intake,
    lines::{End, Lines},
    pause::Pauses,
    server::{Server, TURN},
    splitter::Splitter,
};
use crate::{api_client::Access, log_once::LogOnce, watch::SourceHealth};

/// Number of objects on a page of a list, as in client-go.
const PAGE: u32 = 500;
/// The server ends a watch after this many seconds, or a random time up to twice as long, as for
/// client-go.
const WATCH: u32 = 300;
const OVERDUE: Duration = Duration::from_secs(30);
/// A watch that brought an event or lasted this long proves that the server is well.
const PROVEN: Duration = Duration::from_secs(5);
/// A watch that ends sooner, without an event, is a failure.
const SHORT: Duration = Duration::from_secs(1);
/// After this many watches in a row that failed before they showed anything, everything is listed
/// again: from the point where they resume, the server may fail each time. client-go lists after
/// each.
const FUTILE: u32 = 3;
/// Longest pause while the server does not answer, and for `RECOVERY` after it answered again. A
/// change made after its return should take effect within 3 s.
const OUTAGE: Duration = Duration::from_secs(2);
/// A server that starts refuses requests for some seconds.
const RECOVERY: Duration = Duration::from_secs(30);

/// Follows one kind of objects.
pub(super) struct Follower<'a> {
    followed: &'a Followed,
    access: &'a Access,
    server: &'a Server,
    health: &'a SourceHealth,
    changes: &'a Notify,
    intake: Intake<'a>,
    pauses: Pauses,
    /// Whether a watch that should have listed everything broke off before the end: then the next
    /// list comes in pages, in case a proxy in front of the server buffers streams.
    unfinished: bool,
    /// Whether everything was listed again since the server was last well.
    expired: bool,
    /// Whether it was logged that the server does not have such objects.
    is_absent: bool,
    reach: Reach<'a>,
    /// Number of watches in a row that failed before they showed that they work.
    futile: u32,
    outage: Option<Outage>,
}

/// Whether the server answers at all.
enum Reach<'a> {
    Answers,
    /// The last request had no answer. The holder of the turn may make the next one.
    Silent(Option<MutexGuard<'a, ()>>),
    /// It has answered again since then.
    AnswersAgain(Instant),
}

/// The progress of a watch.
struct Progress {
    /// When it began to show changes.
    since: Instant,
    /// Whether it brought an event, or has lasted for some time.
    is_proven: bool,
}

struct Outage {
    since: Instant,
    failures: u32,
    logged: LogOnce,
}

impl<'a> Follower<'a> {
    pub(super) fn new(
        access: &'a Access,
        server: &'a Server,
        changes: &'a Notify,
        intake: Intake<'a>,
        pauses: Pauses,
    ) -> Self {
        let (followed, health) = (intake.followed, intake.health());
        health.begins(followed.plural, followed.required);
        Follower {
            followed,
            access,
            server,
            health,
            changes,
            intake,
            pauses,
            unfinished: false,
            expired: false,
            is_absent: false,
            reach: Reach::Answers,
            futile: 0,
            outage: None,
        }
    }

    /// Follows the objects forever.
    pub(super) async fn run(mut self) {
        loop {
            let result = match self.intake.version() {
                None => self.list().await,
                Some(_) => self.watch().await,
            };
            if let Err(failure) = result {
                let pause = self.failed(&failure);
                sleep(pause).await;
                if let Reach::Silent(turn) = &mut self.reach {
                    *turn = None;
                }
            }
        }
    }

    /// Makes a request. While the server does not answer, the kinds take turns: one request of this
    /// node at a time shows when it is back, and the others follow at once.
    async fn ask(
        &mut self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Response<Body>, Failure> {
        if let Reach::Silent(turn @ None) = &mut self.reach {
            *turn = timeout(TURN, self.server.turn.lock()).await.ok();
        }
        self.access.turn(&Method::GET).await;
        let answer = ask(self.access, request).await;
        match (&answer, &self.reach) {
            (Err(Failure::Silent(_)), Reach::Silent(_)) => {}
            (Err(Failure::Silent(_)), _) => self.reach = Reach::Silent(None),
            (_, Reach::Silent(_)) => {
                self.reach = Reach::AnswersAgain(Instant::now());
                self.pauses.reset();
            }
            _ => {}
        }
        answer
    }

    /// Returns the longest pause after a failure.
    fn longest_pause(&self) -> Duration {
        match self.reach {
            Reach::Silent(_) => OUTAGE,
            Reach::AnswersAgain(since) if since.elapsed() < RECOVERY => OUTAGE,
            _ => Duration::MAX,
        }
    }

    /// Logs a failure once, and returns the pause after it.
    fn failed(&mut self, failure: &Failure) -> Duration {
        if *failure == Failure::Expired {
            debug!("{}: {failure}; listing them again", self.followed.plural);
            self.intake.expire();
            // It happens after a long outage, and waiting does not help; but it must not repeat.
            if !std::mem::replace(&mut self.expired, true) {
                self.pauses.reset();
                return Duration::ZERO;
            }
        }
        let longest = self.longest_pause();
        let pause = match failure {
            Failure::Busy(at_least, _) => self.pauses.at_least(*at_least, longest),
            _ => self.pauses.next(longest),
        };
        let is_withheld = matches!(
            failure,
            Failure::Withheld(_) | Failure::Absent(_) | Failure::Unsupported(_)
        );
        if !self.followed.required && is_withheld {
            self.intake.settle();
            self.health.is_complete(self.followed.plural);
            self.changes.notify_one();
        }
        if let (Failure::Absent(_), Some(text)) = (failure, self.followed.without) {
            self.health.works(self.followed.plural);
            if !std::mem::replace(&mut self.is_absent, true) {
                info!("{text}");
            }
            return pause;
        }
        let outage = self.outage.get_or_insert_with(|| Outage {
            since: Instant::now(),
            failures: 0,
            logged: LogOnce::default(),
        });
        outage.failures += 1;
        let text = failure.to_string();
        debug!(
            "{}: {text}; trying again in {pause:?}",
            self.followed.plural
        );
        // A stream that breaks once means that an API server is being restarted.
        let by_chance =
            outage.failures == 1 && matches!(failure, Failure::Broken(_) | Failure::Silent(_));
        if !by_chance {
            self.health.fails(self.followed.plural, text.as_str());
        }
        if !by_chance && outage.logged.differs(&text) {
            let is_known =
                (self.health.kinds().get(self.followed.plural)).is_some_and(|kind| kind.complete);
            let meanwhile = match is_known {
                true => "the last known state stays applied",
                false => "nothing is applied before they are known",
            };
            warn!(
                "{} cannot be followed: {text}; {meanwhile}",
                self.followed.plural
            );
        }
        pause
    }

    /// Records that the server is well: the next failure has the shortest
    /// pause.
    fn is_well(&mut self) {
        self.pauses.reset();
        self.expired = false;
    }

    /// Records that the objects have been followed since then.
    fn works(&mut self, since: Instant) {
        self.futile = 0;
        self.health.works(self.followed.plural);
        if let Some(mut outage) = self.outage.take()
            && outage.logged.end()
        {
            let seconds = since.duration_since(outage.since).as_secs_f32();
            info!(
                "{} are followed again after {seconds:.1} s",
                self.followed.plural
            );
        }
    }

    /// Records that a watch was answered, but failed before it showed that it works.
    fn is_futile(&mut self) {
        self.futile += 1;
        if self.futile.is_multiple_of(FUTILE) {
            debug!(
                "{}: {FUTILE} watches failed; listing them again",
                self.followed.plural
            );
            self.intake.expire();
        }
    }

    async fn list(&mut self) -> Result<(), Failure> {
        if !std::mem::take(&mut self.unfinished) && self.server.may_stream() {
            match self.list_by_watch().await {
                Err(Failure::Unsupported(text)) => self.server.does_not_stream(&text),
                // A broken stream: a proxy in front of the server may buffer streams.
                Err(Failure::Broken(text)) if std::mem::take(&mut self.unfinished) => {
                    debug!(
                        "{}: no streaming list ({text}); listing in pages",
                        self.followed.plural
                    );
                }
                other => return other,
            }
        }
        self.list_in_pages().await
    }

    async fn list_by_watch(&mut self) -> Result<(), Failure> {
        let params = WatchParams {
            send_initial_events: true,
            ..self.watch_params()
        };
        // Without a version: at least as new as this request, even if the server's cache lags
        // behind (with `resourceVersion=0` it would not be).
        let request = self.watch_from(&params, "");
        let response = self.ask(request).await?;
        self.intake.begin_list();
        self.unfinished = true;
        self.read(response, &params).await
    }

    async fn watch(&mut self) -> Result<(), Failure> {
        let params = self.watch_params();
        let version = self.intake.version().unwrap_or_default();
        let request = self.watch_from(&params, version);
        let response = self.ask(request).await?;
        self.read(response, &params).await
    }

    fn watch_from(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
        if self.followed.weights_only {
            Request::new(self.followed.path).watch_metadata(params, version)
        } else {
            Request::new(self.followed.path).watch(params, version)
        }
    }

    fn watch_params(&self) -> WatchParams {
        let chance = RandomState::new().hash_one(self.followed.path) % u64::from(WATCH);
        WatchParams {
            label_selector: self.followed.labels.map(str::to_owned),
            field_selector: self.followed.fields.clone(),
            timeout: Some(WATCH + u32::try_from(chance).unwrap_or(0)),
            bookmarks: true,
            send_initial_events: false,
        }
    }

    /// Reads a watch to its end; it may begin with a list.
    async fn read(
        &mut self,
        response: Response<Body>,
        params: &WatchParams,
    ) -> Result<(), Failure> {
        let mut progress = Progress {
            since: Instant::now(),
            is_proven: false,
        };
        let read = self.read_lines(response, params, &mut progress).await;
        match &read {
            // A watch that the server ended properly was no failure.
            Ok(()) => self.works(progress.since),
            Err(Failure::Expired) => {}
            Err(_) if progress.is_proven || self.intake.is_listing() => {}
            Err(_) => self.is_futile(),
        }
        read
    }

    async fn read_lines(
        &mut self,
        response: Response<Body>,
        params: &WatchParams,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let lasts = Duration::from_secs(params.timeout.unwrap_or(WATCH).into());
        let mut lines = Lines::of(response.into_body());
        let mut any_event = false;
        loop {
            let listing = self.intake.is_listing();
            let left = (lasts + OVERDUE).saturating_sub(begun.elapsed());
            let patience = match (listing, progress.is_proven) {
                (true, _) => STALLED,
                (false, false) => left.min(PROVEN.saturating_sub(progress.since.elapsed())),
                (false, true) => left,
            };
            let next = lines.next(patience).await;
            if !listing && !progress.is_proven && progress.since.elapsed() >= PROVEN {
                self.is_proven(progress);
            }
            match next {
                Ok(line) => {
                    self.intake.line(line).map_err(|failure| match failure {
                        // The answer of the server is not a list: it may support pages.
                        Failure::Broken(text) | Failure::Silent(text) if listing => {
                            Failure::Unsupported(text)
                        }
                        other => other,
                    })?;
                    if listing {
                        self.health
                            .listed(self.followed.plural, self.intake.listed());
                    }
                    if listing && !self.intake.is_listing() {
                        self.listed();
                        progress.since = Instant::now();
                    }
                    if !listing {
                        any_event = true;
                        self.is_proven(progress);
                    }
                    if self.intake.has_changes() {
                        self.changes.notify_one();
                    }
                }
                Err(End::Broken(text)) => return Err(Failure::Broken(text)),
                Err(End::Silent | End::Clean) if listing => {
                    let text = "the server did not finish the list";
                    return Err(Failure::Broken(text.to_owned()));
                }
                Err(End::Clean) if !any_event && progress.since.elapsed() < SHORT => {
                    let text = "the server ended the watch at once";
                    return Err(Failure::Broken(text.to_owned()));
                }
                // This wait only checked whether the watch still lasts.
                Err(End::Silent) if patience < left => {}
                Err(End::Silent | End::Clean) => return Ok(()),
            }
        }
    }

    /// Records that a watch brought an event, or has lasted.
    fn is_proven(&mut self, progress: &mut Progress) {
        self.is_well();
        if !std::mem::replace(&mut progress.is_proven, true) {
            self.works(progress.since);
        }
    }

    async fn list_in_pages(&mut self) -> Result<(), Failure> {
        let mut params = ListParams {
            label_selector: self.followed.labels.map(str::to_owned),
            field_selector: self.followed.fields.clone(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        self.intake.begin_list();
        loop {
            let request = if self.followed.weights_only {
                Request::new(self.followed.path).list_metadata(&params)
            } else {
                Request::new(self.followed.path).list(&params)
            };
            let answer = self.ask(request).await?;
            params.continue_token = self.read_page(answer.into_body()).await?;
            self.health
                .listed(self.followed.plural, self.intake.listed());
            if params.continue_token.is_none() {
                self.listed();
                return Ok(());
            }
        }
    }

    /// Reads a page of a list. Returns the token of the next one, if there is one.
    async fn read_page(&mut self, mut body: Body) -> Result<Option<String>, Failure> {
        let mut splitter = Splitter::default();
        loop {
            match timeout(STALLED, body.frame()).await {
                Err(_) => return Err(Failure::Broken("a list makes no progress".to_owned())),
                Ok(None) => break,
                Ok(Some(Err(error))) => return Err(Failure::Broken(ask::chain(&error))),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        splitter.feed(&data);
                    }
                }
            }
            while let Some(item) = splitter.next().map_err(Failure::Broken)? {
                self.intake.item(item)?;
            }
        }
        let rest = splitter.end().map_err(Failure::Broken)?;
        self.intake.end_page(&rest)
    }

    /// Records that a list is complete.
    fn listed(&mut self) {
        self.unfinished = false;
        self.is_absent = false;
        self.health.is_complete(self.followed.plural);
        // If it was listed because watches failed, the next watch may also fail.
        if self.futile == 0 {
            self.works(Instant::now());
        }
        // Even after an empty list: it is now known that there are no objects.
        self.changes.notify_one();
    }
}
