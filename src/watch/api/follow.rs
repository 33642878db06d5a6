//! Follows one kind of objects: lists it, watches it, and comes back after
//! every failure. The last known state stays in force all the while.

use std::{
    hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use bytes::BytesMut;
use hashbrown::HashMap;
use http::Response;
use http_body_util::BodyExt;
use kube::{
    api::{ListParams, WatchParams},
    client::Body,
    core::{Request, Status},
};
use serde_json::value::RawValue;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Access,
    ask::{self, Failure, STALLED, ask},
    kind::Kind,
    known::Known,
    lines::{End, Lines},
    pause::Pauses,
    wire::{Bare, Page, WatchLine},
};
use crate::services::Names;

/// Objects on a page of a list, as client-go has it.
const PAGE: u32 = 500;
/// A watch is ended by the server after this many seconds, up to twice as many
/// by chance (client-go has the same), and by us when it should have been.
const WATCH: u32 = 300;
const OVERDUE: Duration = Duration::from_secs(30);
/// A watch that told something or lasted this long shows that the server is
/// well.
const PROVEN: Duration = Duration::from_secs(5);
/// A watch that ends sooner, having told nothing, is a failure.
const SHORT: Duration = Duration::from_secs(1);
/// Marks the bookmark after the initial events of a watch (KEP-3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Follows one kind of objects.
pub(super) struct Follower<'a, K: Kind> {
    access: &'a Access,
    fields: Option<String>,
    names: &'a Mutex<Names>,
    known: &'a Mutex<Known<K>>,
    news: &'a Notify,
    pauses: Pauses,
    /// Where a watch goes on; `None`: everything is to be listed.
    version: Option<String>,
    /// A watch that should have listed everything broke off before it had:
    /// the next list comes in pages, in case something between the server and
    /// us holds streams back.
    unfinished: bool,
    /// Listing anew was tried since the server was last well.
    expired: bool,
    outage: Option<Outage>,
    /// Hashes of what was last said about objects that are odd.
    complaints: HashMap<K::Name, u64>,
}

struct Outage {
    since: Instant,
    failures: u32,
    /// What was last said of it.
    said: Option<String>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl<'a, K: Kind> Follower<'a, K> {
    pub(super) fn new(
        access: &'a Access,
        fields: Option<String>,
        names: &'a Mutex<Names>,
        known: &'a Mutex<Known<K>>,
        news: &'a Notify,
        pauses: Pauses,
    ) -> Self {
        Follower {
            access,
            fields,
            names,
            known,
            news,
            pauses,
            version: None,
            unfinished: false,
            expired: false,
            outage: None,
            complaints: HashMap::new(),
        }
    }

    /// Never ends.
    pub(super) async fn run(mut self) {
        loop {
            self.access.turn().await;
            let begun = Instant::now();
            let result = match self.version.clone() {
                None => self.list().await,
                Some(version) => self.watch(&version).await,
            };
            if begun.elapsed() >= PROVEN {
                self.is_well();
            }
            if let Err(failure) = result {
                let pause = self.failed(&failure);
                sleep(pause).await;
            }
        }
    }

    /// Says what happened and answers how long to wait.
    fn failed(&mut self, failure: &Failure) -> Duration {
        if *failure == Failure::Expired {
            debug!("{}: {failure}; listing them anew", K::PLURAL);
            self.version = None;
            // It happens to whoever was away for long, and waiting does not
            // make it better; but not again and again.
            if !std::mem::replace(&mut self.expired, true) {
                return Duration::ZERO;
            }
        }
        let pause = match failure {
            Failure::Busy(at_least, _) => self.pauses.told(*at_least),
            _ => self.pauses.next(),
        };
        if matches!(failure, Failure::Withheld(_)) {
            lock(self.known).settle();
            self.news.notify_one();
        }
        let outage = self.outage.get_or_insert_with(|| Outage {
            since: Instant::now(),
            failures: 0,
            said: None,
        });
        outage.failures += 1;
        let text = failure.to_string();
        debug!("{}: {text}; trying again in {pause:?}", K::PLURAL);
        // A stream that breaks once is an API server being restarted.
        let by_chance = outage.failures == 1 && matches!(failure, Failure::Broken(_));
        if !by_chance && outage.said.as_ref() != Some(&text) {
            warn!(
                "{} cannot be followed: {text}; the last known state stays in force",
                K::PLURAL
            );
            outage.said = Some(text);
        }
        pause
    }

    /// The next failure is the first of a new outage.
    fn is_well(&mut self) {
        self.pauses.reset();
        self.expired = false;
    }

    fn works(&mut self) {
        if let Some(outage) = self.outage.take()
            && outage.said.is_some()
        {
            let seconds = outage.since.elapsed().as_secs_f32();
            info!("{} are followed again after {seconds:.1} s", K::PLURAL);
        }
    }

    async fn list(&mut self) -> Result<(), Failure> {
        if !std::mem::take(&mut self.unfinished) {
            match self.list_by_watch().await {
                Err(Failure::Unsupported(text)) => {
                    debug!("{}: no streaming list ({text}); in pages", K::PLURAL);
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
        // Without a version: at least as new as this request, also where the
        // server's cache lags behind (`resourceVersion=0` would not be).
        let request = Request::new(K::PATH).watch(&params, "");
        let response = ask(self.access, request).await?;
        lock(self.known).begin_list();
        self.unfinished = true;
        self.read(response, &params, true).await
    }

    async fn watch(&mut self, version: &str) -> Result<(), Failure> {
        let params = self.watch_params();
        let request = Request::new(K::PATH).watch(&params, version);
        let response = ask(self.access, request).await?;
        self.works();
        self.read(response, &params, false).await
    }

    fn watch_params(&self) -> WatchParams {
        let chance = RandomState::new().hash_one(K::PATH) % u64::from(WATCH);
        WatchParams {
            label_selector: K::LABELS.map(str::to_owned),
            field_selector: self.fields.clone(),
            timeout: Some(WATCH + u32::try_from(chance).unwrap_or(0)),
            bookmarks: true,
            send_initial_events: false,
        }
    }

    /// Reads a watch to its end; while `listing` it first gives everything
    /// that there is.
    async fn read(
        &mut self,
        response: Response<Body>,
        params: &WatchParams,
        mut listing: bool,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let lasts = Duration::from_secs(params.timeout.unwrap_or(WATCH).into());
        let mut lines = Lines::of(response.into_body());
        let mut told = false;
        loop {
            let patience = match listing {
                true => STALLED,
                false => (lasts + OVERDUE).saturating_sub(begun.elapsed()),
            };
            match lines.next(patience).await {
                Ok(line) => {
                    let of_list = listing;
                    self.line(line, &mut listing)?;
                    if !of_list {
                        told = true;
                        self.is_well();
                    }
                }
                Err(End::Broken(text)) => return Err(Failure::Broken(text)),
                Err(End::Silent | End::Clean) if listing => {
                    let text = "the server did not finish the list";
                    return Err(Failure::Broken(text.to_owned()));
                }
                Err(End::Clean) if !told && begun.elapsed() < SHORT => {
                    let text = "the server ended the watch at once";
                    return Err(Failure::Broken(text.to_owned()));
                }
                Err(End::Silent | End::Clean) => return Ok(()),
            }
        }
    }

    fn line(&mut self, line: &[u8], listing: &mut bool) -> Result<(), Failure> {
        let line: WatchLine<'_> = serde_json::from_slice(line)
            .map_err(|error| Failure::Broken(format!("an event cannot be read: {error}")))?;
        match line.kind {
            "ADDED" | "MODIFIED" => self.came(line.object, *listing)?,
            "DELETED" => self.went(line.object, *listing)?,
            "BOOKMARK" => {
                let mark: Bare = bare(line.object)?;
                let ends = |notes: &std::collections::BTreeMap<String, String>| {
                    notes.get(INITIAL_END).is_some_and(|value| value == "true")
                };
                let ends = mark.metadata.annotations.as_ref().is_some_and(ends);
                if *listing && ends {
                    *listing = false;
                    self.unfinished = false;
                    self.listed(mark.metadata.resource_version)?;
                } else if !*listing {
                    self.advance(mark.metadata.resource_version.as_deref())?;
                }
            }
            "ERROR" => {
                let status: Status = serde_json::from_str(line.object.get())
                    .map_err(|error| Failure::Broken(format!("an ERROR event: {error}")))?;
                return Err(ask::of_status(&status));
            }
            other => debug!("{}: unknown event {other:?}", K::PLURAL),
        }
        if lock(self.known).has_news() {
            self.news.notify_one();
        }
        Ok(())
    }

    async fn list_in_pages(&mut self) -> Result<(), Failure> {
        let mut params = ListParams {
            label_selector: K::LABELS.map(str::to_owned),
            field_selector: self.fields.clone(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        lock(self.known).begin_list();
        loop {
            let request = Request::new(K::PATH).list(&params);
            let body = whole(ask(self.access, request).await?).await?;
            let page: Page<'_> = serde_json::from_slice(&body)
                .map_err(|error| Failure::Broken(format!("a list cannot be read: {error}")))?;
            for item in page.items.into_iter().flatten() {
                self.came(item, true)?;
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return self.listed(page.metadata.resource_version);
            }
        }
    }

    /// An object came or changed, or is on the list.
    fn came(&mut self, object: &RawValue, listing: bool) -> Result<(), Failure> {
        let wire: K::Wire = match serde_json::from_str(object.get()) {
            Ok(wire) => wire,
            Err(error) => {
                let Bare { metadata } = bare(object)?;
                if listing || self.advance(metadata.resource_version.as_deref())? {
                    let name = K::name(&metadata, &mut lock(self.names));
                    self.unusable(name, &format!("it cannot be read: {error}"));
                }
                return Ok(());
            }
        };
        let meta = K::meta(&wire);
        if !listing && !self.advance(meta.resource_version.as_deref())? {
            return Ok(());
        }
        let mut names = lock(self.names);
        let name = K::name(meta, &mut names);
        let reduced = K::reduce(wire, &mut names);
        drop(names);
        match (name, reduced) {
            (Some(name), Ok(reduced)) => {
                if reduced.warnings.is_empty() {
                    self.complaints.remove(&name);
                } else {
                    let texts = reduced.warnings.iter().map(ToString::to_string);
                    let text = texts.collect::<Vec<_>>().join("; ");
                    self.complain(&name, &format!("{text}; this is left out"));
                }
                lock(self.known).put(name, reduced.object);
            }
            (name, Err(invalid)) => self.unusable(name, &invalid.to_string()),
            (None, Ok(_)) => self.unusable(None, "it has no name"),
        }
        Ok(())
    }

    fn unusable(&mut self, name: Option<K::Name>, text: &str) {
        match name {
            Some(name) => {
                lock(self.known).keep(&name);
                self.complain(&name, &format!("{text}; it stays as it was"));
            }
            None => warn!("one of the {} is left out: {text}", K::PLURAL),
        }
    }

    /// Says it unless it was the last thing said about that object.
    fn complain(&mut self, name: &K::Name, text: &str) {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = hasher.finish();
        if self.complaints.insert(name.clone(), hash) != Some(hash) {
            warn!("{} {name}: {text}", K::PLURAL);
        }
    }

    /// An object went.
    fn went(&mut self, object: &RawValue, listing: bool) -> Result<(), Failure> {
        let Bare { metadata } = bare(object)?;
        if !listing && !self.advance(metadata.resource_version.as_deref())? {
            return Ok(());
        }
        if let Some(name) = K::name(&metadata, &mut lock(self.names)) {
            self.complaints.remove(&name);
            lock(self.known).remove(name);
        }
        Ok(())
    }

    /// Everything that there is has been told.
    fn listed(&mut self, version: Option<String>) -> Result<(), Failure> {
        let version = version.filter(|version| !version.is_empty());
        let Some(version) = version else {
            let text = "the server lists without a resourceVersion";
            return Err(Failure::Broken(text.to_owned()));
        };
        lock(self.known).end_list();
        self.version = Some(version);
        self.works();
        // Even if there is nothing: now that is known.
        self.news.notify_one();
        Ok(())
    }

    /// A watch goes on from `version`. False if what has it is older than what
    /// we know: versions of one resource can be compared as numbers (KEP-5504).
    fn advance(&mut self, version: Option<&str>) -> Result<bool, Failure> {
        let Some(version) = version.filter(|version| !version.is_empty()) else {
            let text = "an event without a resourceVersion";
            return Err(Failure::Broken(text.to_owned()));
        };
        let held = self.version.get_or_insert_default();
        let number = |text: &str| text.parse::<u64>().ok();
        if let (Some(new), Some(old)) = (number(version), number(held))
            && new < old
        {
            debug!("{}: an event from before {old} at {new}", K::PLURAL);
            return Ok(false);
        }
        version.clone_into(held);
        Ok(true)
    }
}

fn bare(object: &RawValue) -> Result<Bare, Failure> {
    serde_json::from_str(object.get())
        .map_err(|error| Failure::Broken(format!("an object's metadata: {error}")))
}

/// The whole body of an answer.
async fn whole(response: Response<Body>) -> Result<BytesMut, Failure> {
    let mut body = response.into_body();
    let mut bytes = BytesMut::new();
    loop {
        match timeout(STALLED, body.frame()).await {
            Err(_) => return Err(Failure::Broken("a list stands still".to_owned())),
            Ok(None) => return Ok(bytes),
            Ok(Some(Err(error))) => return Err(Failure::Broken(ask::chain(&error))),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    bytes.extend_from_slice(&data);
                }
            }
        }
    }
}
