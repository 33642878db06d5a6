//! The two questions to the API server.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Resource, api::PostParams, core::ClusterResourceScope};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use crate::api_client::Access;

/// How long one answer may take (`ClientTimeout` of
/// `k8s.io/apiserver/pkg/server/options/authentication.go`).
const PATIENCE: Duration = Duration::from_secs(10);

/// The owner of a token, as the API server knows it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct User {
    name: Option<String>,
    uid: Option<String>,
    groups: Option<Vec<String>>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

impl User {
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("an unnamed user")
    }
}

impl From<UserInfo> for User {
    fn from(info: UserInfo) -> User {
        User {
            name: info.username,
            uid: info.uid,
            groups: info.groups,
            extra: info.extra,
        }
    }
}

/// Finds the user of a token; `None` if it is nobody's.
///
/// # Errors
/// Says why there is no answer.
pub(super) async fn user(access: &Access, token: String) -> Result<Option<User>, String> {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token,
            audiences: None,
        },
        ..TokenReview::default()
    };
    let status = create(access, review).await?.status.unwrap_or_default();
    if status.authenticated != Some(true) {
        return Ok(None);
    }
    Ok(status.user.map(User::from))
}

/// Returns whether `user` may do `verb` to a path.
///
/// # Errors
/// Says why there is no answer.
pub(super) async fn allowed(
    access: &Access,
    user: &User,
    verb: &str,
    path: &str,
) -> Result<bool, String> {
    let user = user.clone();
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.name,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some(verb.to_owned()),
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let status = create(access, review).await?.status;
    Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
}

async fn create<K>(access: &Access, review: K) -> Result<K, String>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>,
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let kind = K::kind(&());
    let answer = async {
        access.turn(&Method::POST).await;
        let api = Api::<K>::all(access.client().await);
        api.create(&PostParams::default(), &review).await
    };
    match timeout(PATIENCE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(format!(
            "the API server does not let this proxy create a {kind}: {}; bind the ClusterRole \
             system:auth-delegator to its user",
            status.message
        )),
        Ok(Err(error)) => {
            if matches!(&error, kube::Error::Api(status) if status.code == 401) {
                access.distrust();
            }
            Err(format!("the API server did not answer a {kind}: {error}"))
        }
        Err(_) => Err(format!(
            "the API server did not answer a {kind} within {} s",
            PATIENCE.as_secs()
        )),
    }
}
