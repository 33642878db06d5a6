//! The two questions to the API server.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Resource, api::PostParams, core::ClusterResourceScope};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use super::Refusal;
use crate::api_client::Access;

/// How long one answer may take (`ClientTimeout` of
/// `k8s.io/apiserver/pkg/server/options/authentication.go`).
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns whether the owner of a token may do `verb` to a path.
///
/// # Errors
/// Says why there is no answer.
pub(super) async fn may_read(
    access: &Access,
    token: String,
    verb: String,
    path: String,
) -> Result<Result<(), Refusal>, String> {
    let Some(user) = user(access, token).await? else {
        return Ok(Err(Refusal::Unknown));
    };
    let name = user.username.clone();
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.clone()),
                verb: Some(verb.clone()),
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let status = create(access, review).await?.status;
    if status.is_some_and(|status| status.allowed && status.denied != Some(true)) {
        return Ok(Ok(()));
    }
    let user = name.unwrap_or_else(|| "an unnamed user".to_owned());
    Ok(Err(Refusal::Forbidden { user, verb, path }))
}

/// Finds the user of a token; `None` if it is nobody's.
async fn user(access: &Access, token: String) -> Result<Option<UserInfo>, String> {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token,
            audiences: None,
        },
        ..TokenReview::default()
    };
    let status = create(access, review).await?.status.unwrap_or_default();
    Ok(status.user.filter(|_| status.authenticated == Some(true)))
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
