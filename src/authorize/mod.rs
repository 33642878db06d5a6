//! Decides who may read the answers of this process. Like the kubelet and kube-rbac-proxy, it asks
//! the API server: a TokenReview tells whose token it is, and a SubjectAccessReview what that user
//! may do. Without an answer, nobody may read.

mod cache;
mod review;

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{runtime::Handle, sync::Semaphore};

use self::{
    cache::{Cache, Key},
    review::User,
};
use crate::{api_client::Access, log_once::LogOnce};

/// How long answers count: the kubelet's defaults (`authentication.webhook.cacheTTL`,
/// `authorization.webhook.cacheAuthorizedTTL` and `.cacheUnauthorizedTTL`). The last one also
/// applies to a token that is nobody's, for which the kubelet has none.
const KNOWN: Duration = Duration::from_mins(2);
const ALLOWED: Duration = Duration::from_mins(5);
const REFUSED: Duration = Duration::from_secs(30);

/// Maximum number of answers of each kind that are kept. Refusals are kept apart: requests without
/// a valid token displace no answers about those who may read.
const MOST: usize = 256;

/// Maximum number of questions that are under way at once.
const AT_ONCE: usize = 8;

/// Questions per second, and how many may exceed that in a burst. They have a limit of their own:
/// otherwise anyone who sends tokens here could keep Services from being followed.
const RATE: f32 = 20.0;
const BURST: u32 = 40;

/// Maximum length of a token in bytes: that of the head of a request.
const LONGEST_TOKEN: usize = 16 << 10;

/// Asks the API server who may read.
pub struct Authorizer(Arc<Shared>);

struct Shared {
    access: Access,
    /// The runtime on which questions are asked, as are all other requests to the API server.
    runtime: Handle,
    turns: Arc<Semaphore>,
    users: Mutex<Cache<Arc<User>>>,
    unauthenticated: Mutex<Cache<()>>,
    allowed: Mutex<Cache<()>>,
    refused: Mutex<Cache<()>>,
    logged: Mutex<LogOnce>,
}

/// Why somebody may not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no token, or it is nobody's.
    #[error("a bearer token that the API server accepts is needed")]
    Unknown,
    /// The owner of the token does not have the right.
    #[error(
        "{user} may not {verb} {path}: a ClusterRole with these as verbs and nonResourceURLs \
         allows it"
    )]
    Forbidden {
        /// Name of the user.
        user: String,
        /// The verb of the request.
        verb: String,
        /// The path of the URL that was requested.
        path: String,
    },
    /// It is not known whether it is allowed.
    #[error("{0}")]
    Unanswered(String),
}

impl Authorizer {
    /// Returns an authorizer that asks through `access`, on the runtime that this is called on.
    pub fn new(access: &Access) -> Authorizer {
        Authorizer(Arc::new(Shared {
            access: access.with_rate(RATE, BURST),
            runtime: Handle::current(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            users: Mutex::new(Cache::new(MOST, KNOWN)),
            unauthenticated: Mutex::new(Cache::new(MOST, REFUSED)),
            allowed: Mutex::new(Cache::new(MOST, ALLOWED)),
            refused: Mutex::new(Cache::new(MOST, REFUSED)),
            logged: Mutex::default(),
        }))
    }

    /// Returns `Ok` once it is known that the owner of `token` may do `verb` to `path`. It may be
    /// called on any runtime.
    ///
    /// # Errors
    /// Says why the request is not allowed.
    pub async fn authorize(
        &self,
        token: Option<&str>,
        verb: &str,
        path: &str,
    ) -> Result<(), Refusal> {
        let token = token.filter(|token| (1..=LONGEST_TOKEN).contains(&token.len()));
        let user = self.user(token.ok_or(Refusal::Unknown)?).await?;
        if self.may(&user, verb, path).await? {
            return Ok(());
        }
        Err(Refusal::Forbidden {
            user: user.name().to_owned(),
            verb: verb.to_owned(),
            path: path.to_owned(),
        })
    }

    async fn user(&self, token: &str) -> Result<Arc<User>, Refusal> {
        let key = digest(token.as_bytes());
        let shared = Arc::clone(&self.0);
        let known = move || {
            let user = shared.users.lock().get(&key);
            let unauthenticated = || shared.unauthenticated.lock().get(&key).map(|()| None);
            user.map(Some).or_else(unauthenticated)
        };
        let (shared, token) = (Arc::clone(&self.0), token.to_owned());
        let ask = async move {
            let user = review::user(&shared.access, token).await?.map(Arc::new);
            match &user {
                Some(user) => shared.users.lock().put(key, Arc::clone(user)),
                None => shared.unauthenticated.lock().put(key, ()),
            }
            Ok(user)
        };
        self.known_or_asked(known, ask)
            .await?
            .ok_or(Refusal::Unknown)
    }

    async fn may(&self, user: &Arc<User>, verb: &str, path: &str) -> Result<bool, Refusal> {
        let question = serde_json::to_vec(&(&**user, verb, path)).unwrap_or_default();
        let key = digest(&question);
        let shared = Arc::clone(&self.0);
        let known = move || {
            let allowed = shared.allowed.lock().get(&key).map(|()| true);
            allowed.or_else(|| shared.refused.lock().get(&key).map(|()| false))
        };
        let (shared, user) = (Arc::clone(&self.0), Arc::clone(user));
        let (verb, path) = (verb.to_owned(), path.to_owned());
        let ask = async move {
            let may = review::allowed(&shared.access, &user, &verb, &path).await?;
            let answers = if may {
                &shared.allowed
            } else {
                &shared.refused
            };
            answers.lock().put(key, ());
            Ok(may)
        };
        self.known_or_asked(known, ask).await
    }

    /// Returns the `known` value, or the answer to `ask`, which continues when this is dropped: a
    /// later request finds the answer.
    async fn known_or_asked<T: Send + 'static>(
        &self,
        known: impl Fn() -> Option<T>,
        ask: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Result<T, Refusal> {
        if let Some(known) = known() {
            return Ok(known);
        }
        let shared = &self.0;
        let interrupted = || Refusal::Unanswered("the request was interrupted".to_owned());
        let turn = Arc::clone(&shared.turns).acquire_owned().await;
        let turn = turn.map_err(|_| interrupted())?;
        // Another request may have asked the same meanwhile.
        if let Some(known) = known() {
            return Ok(known);
        }
        let asked = shared.runtime.spawn(async move {
            let answer = ask.await;
            drop(turn);
            answer
        });
        let answer = asked.await.map_err(|_| interrupted())?;
        shared.log(answer.as_ref().err());
        answer.map_err(Refusal::Unanswered)
    }
}

impl Shared {
    /// Logs that there is no answer, once until there is one again.
    fn log(&self, error: Option<&String>) {
        let mut logged = self.logged.lock();
        match error {
            Some(why) if logged.is_new("no answer") => tracing::warn!(
                "access to the secure metrics address is denied, because the API server cannot be \
                 asked: {why}"
            ),
            Some(_) => {}
            None if logged.end() => {
                tracing::info!(
                    "the API server answers again who has access to the secure metrics address"
                );
            }
            None => {}
        }
    }
}

impl fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorizer").finish_non_exhaustive()
    }
}

fn digest(bytes: &[u8]) -> Key {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests;
