//! Claims of persistent volumes that pods name. A node may read a claim of its pods, and the volume it is bound to, and follow
//! neither: they are asked for until there is a volume, which stays.

use std::sync::Arc;

use hyper::Method;

use super::api_objects::{Found, Sought};
use super::claim::{bound, volume};
use crate::kube::{Client, KubeError, Resource, RetryWait, object_path, seed};
use crate::limits::CLAIM_RETRY_MAX;
use crate::model::object::{Claim, ClaimedVolume};
use crate::model::{Object, ObjectKey};

/// Asks for the claim and its volume, until it is dropped.
pub async fn keep_claim(client: Client, key: ObjectKey, found: Found) {
    let mut wait = RetryWait::new(seed(&key.name));
    let (mut told, mut asked_before) = (None, false);
    loop {
        match ask(&client, &key).await {
            // The pod waits as it is.
            Err(why) if !why.is(403) && !why.is_not_found() => log::debug!("{key}: {why}"),
            // A node may read what a pod of its names, and the server learns of the pod a moment after the node.
            Err(_) if !std::mem::replace(&mut asked_before, true) => {}
            Err(why) => {
                put(
                    &found,
                    &key,
                    &mut told,
                    Err(format!("failed to fetch PVC from API server: {why}").into()),
                );
            }
            Ok(volume) => {
                let is_there = volume.is_ok();
                put(&found, &key, &mut told, volume);
                if is_there {
                    return std::future::pending().await;
                }
            }
        }
        client.clock().sleep(wait.failed().min(CLAIM_RETRY_MAX)).await;
    }
}

type Claimed = Result<Arc<ClaimedVolume>, Arc<str>>;

/// What is as it was told is not told again.
fn put(found: &Found, key: &ObjectKey, told: &mut Option<Claimed>, volume: Claimed) {
    if told.as_ref() != Some(&volume) {
        *told = Some(volume.clone());
        let claim = Claim { namespace: key.namespace.clone(), name: key.name.clone(), volume };
        found.put(key, Sought::There(Object::Claim(Arc::new(claim))));
    }
}

/// Its volume, or why there is none.
async fn ask(client: &Client, key: &ObjectKey) -> Result<Claimed, KubeError> {
    // Behind it stands whose it is.
    let name = key.name.split('/').next().unwrap_or_default();
    let path = object_path(Resource::CLAIMS, &key.namespace, name);
    let claim = client.call(Method::GET, &path, None).await?;
    let claim = match bound(&claim) {
        Ok(bound) => bound,
        Err(why) => return Ok(Err(why.into())),
    };
    let path = object_path(Resource::VOLUMES, "", &claim.volume);
    match client.call(Method::GET, &path, None).await {
        Ok(found) => Ok(volume(&found, &claim).map(Arc::new).map_err(Arc::from)),
        Err(why) if why.is(403) || why.is_not_found() => {
            Ok(Err(format!("failed to fetch PV {} from API server: {why}", claim.volume).into()))
        }
        Err(why) => Err(why),
    }
}
