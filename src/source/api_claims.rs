//! Persistent volume claims of pods. A node may read a claim of its pods, and the volume it is bound to, but may watch neither:
//! they are polled until the claim is bound, which does not change afterwards.

use std::sync::Arc;

use hyper::Method;

use super::api_objects::{ObjectState, ObjectStates};
use super::claim::{bound, volume};
use crate::kube::{AuthorizerLag, Client, KubeError, Resource, RetryWait, object_path, seed};
use crate::limits::CLAIM_RETRY_MAX;
use crate::model::object::{Claim, ClaimedVolume};
use crate::model::{Object, ObjectKey};

/// Polls the claim and its volume until it is dropped.
pub async fn keep_claim(client: Client, key: ObjectKey, found: ObjectStates) {
    let mut wait = RetryWait::new(seed(&key.name));
    let (mut reported, mut of_claim, mut of_volume) =
        (None, AuthorizerLag::default(), AuthorizerLag::default());
    loop {
        let mut soon = None;
        match ask(&client, &key).await {
            Err((volume, why)) => {
                soon = if volume.is_some() { of_volume.wait(&why) } else { of_claim.wait(&why) };
                if soon.is_none() && (why.is(403) || why.is_not_found()) {
                    let what = volume.map_or_else(|| "PVC".to_owned(), |volume| format!("PV {volume}"));
                    let why = format!("failed to fetch {what} from API server: {why}");
                    put(&found, &key, &mut reported, Err(why.into()));
                } else {
                    // The pod keeps its current state and waits.
                    log::debug!("{key}: {why}");
                }
            }
            Ok(volume) => {
                let is_there = volume.is_ok();
                put(&found, &key, &mut reported, volume);
                if is_there {
                    return std::future::pending().await;
                }
            }
        }
        client.clock().sleep(soon.unwrap_or_else(|| wait.failed().min(CLAIM_RETRY_MAX))).await;
    }
}

type Claimed = Result<Arc<ClaimedVolume>, Arc<str>>;

/// Records a claim; unchanged claims are not reported again.
fn put(found: &ObjectStates, key: &ObjectKey, reported: &mut Option<Claimed>, volume: Claimed) {
    if reported.as_ref() != Some(&volume) {
        *reported = Some(volume.clone());
        let claim = Claim { namespace: key.namespace.clone(), name: key.name.clone(), volume };
        found.put(key, ObjectState::Present(Object::Claim(Arc::new(claim))));
    }
}

/// The claim's volume, or why there is none; or the error of reading the claim, or the volume of that name.
async fn ask(client: &Client, key: &ObjectKey) -> Result<Claimed, (Option<Box<str>>, KubeError)> {
    // The pod's UID follows the claim's name.
    let name = key.name.split('/').next().unwrap_or_default();
    let path = object_path(Resource::CLAIMS, &key.namespace, name);
    let claim = client.call(Method::GET, &path, None).await.map_err(|why| (None, why))?;
    let claim = match bound(&claim) {
        Ok(bound) => bound,
        Err(why) => return Ok(Err(why.into())),
    };
    let path = object_path(Resource::VOLUMES, "", &claim.volume);
    let found = client.call(Method::GET, &path, None).await;
    let found = found.map_err(|why| (Some(claim.volume.clone()), why))?;
    Ok(volume(&found, &claim).map(Arc::new).map_err(Arc::from))
}
