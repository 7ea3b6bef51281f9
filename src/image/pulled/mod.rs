//! Verifies which pods may use an image that is present on the node (kubelet `pullmanager.PullManager`, KEP-2535).
//!
//! ```text
//! |     a pull begins ─► pulling/ ─► ends ─► pulled/: the image, and the credentials that it was pulled with
//!
//! |     an image is present ─► policy ─► record ─► has one of the pod's credentials? ──yes──► it starts
//! |                                                             └──no──► it is pulled: the registry decides
//! ```
//!
//! Decisions are in [`policy`] and [`record`] (PURE); [`records`] is the kubelet's directory `image_manager` in the state
//! directory, in its format, so that the records survive a change between kubelet and smolet.

pub mod policy;
pub mod record;
mod records;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use self::policy::VerificationPolicy;
use self::record::{Access, PullSecret};
use self::records::Records;
use super::name::without_tag;
use crate::blocking::Blocking;
use crate::cri::{Image, Runtime};
use crate::limits::{IMAGES_LISTED_BYTES_MAX, PULL_RECORD_SECRETS_MAX};

/// The pull manager; one per agent. No borrow of its state is held across an await.
pub struct PullManager {
    policy: VerificationPolicy,
    records: Arc<Mutex<Records>>,
    /// Number of the last pull that began.
    begun: Cell<u64>,
    /// Pulls whose task was dropped: recorded as failed before any other access.
    dropped: RefCell<Vec<u64>>,
    /// True once the unfinished pulls of an earlier agent are settled.
    settled: Cell<bool>,
}

/// A pull in progress. Dropping it records a failure.
pub struct Intent<'a> {
    manager: &'a PullManager,
    number: u64,
    over: bool,
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.manager.dropped.borrow_mut().push(self.number);
        }
    }
}

/// A present image, for the decision.
#[derive(Clone, Copy)]
pub struct Present<'a> {
    /// Its name in the pod.
    pub image: &'a str,
    /// The runtime's image id.
    pub image_ref: &'a str,
}

impl PullManager {
    /// A pull manager with its records in that state directory.
    pub fn new(policy: VerificationPolicy, root_dir: &Path) -> Self {
        Self {
            policy,
            records: Arc::new(Mutex::new(Records::new(root_dir))),
            begun: Cell::new(0),
            dropped: RefCell::default(),
            settled: Cell::new(false),
        }
    }

    /// `RecordPullIntent`.
    ///
    /// # Errors
    /// The intent cannot be written; nothing may be pulled then, as the image would count as preloaded.
    pub async fn begin(&self, blocking: &Blocking, image: &str) -> Result<Intent<'_>, String> {
        let number = self.begun.get() + 1;
        self.begun.set(number);
        // Before the write: an intent dropped during it is known.
        let intent = Intent { manager: self, number, over: false };
        let name = image.to_owned();
        self.work(blocking, move |records| records.begin(number, &name)).await.map_err(|error| {
            format!("Failed to record image pull intent for container image {image:?}: {error}")
        })?;
        Ok(intent)
    }

    /// `RecordImagePulled`. If the record cannot be written the intent stays: the image counts as pulled with unknown
    /// credentials.
    pub async fn pulled(&self, blocking: &Blocking, mut intent: Intent<'_>, image_ref: &str, by: Access) {
        intent.over = true;
        let (number, image_ref) = (intent.number, image_ref.to_owned());
        let shown = image_ref.clone();
        let done = self.work(blocking, move |records| records.pulled(number, &image_ref, by)).await;
        if let Err(error) = done {
            log::warn!("image {shown}: pull record not written: {error}; its pods are verified by a pull");
        }
    }

    /// `RecordImagePullFailed`.
    pub async fn failed(&self, blocking: &Blocking, mut intent: Intent<'_>) {
        intent.over = true;
        let number = intent.number;
        self.work(blocking, move |records| records.end(number)).await;
    }

    /// `MustAttemptImagePull`: true when the image is present and only the registry can tell whether this pod may use it.
    /// `secrets` are the pod's credentials for the image from pull secrets.
    ///
    /// # Errors
    /// The pod's credentials cannot be read.
    pub async fn must_pull<R: Runtime>(
        &self,
        (runtime, blocking): (&R, &Blocking),
        present: Present<'_>,
        secrets: impl AsyncFnOnce() -> Result<Vec<PullSecret>, String>,
    ) -> Result<bool, String> {
        let repository = without_tag(present.image);
        if !self.policy.may_verify(repository) {
            return Ok(false);
        }
        self.settle(runtime, blocking).await;
        let (image, image_ref) = (present.image.to_owned(), present.image_ref.to_owned());
        let known = match self.work(blocking, move |records| records.known(&image, &image_ref)).await {
            Ok(known) => known,
            Err(error) => {
                log::warn!("image {}: pull record not read: {error}; the image is pulled", present.image);
                return Ok(true);
            }
        };
        if !self.policy.verifies(known.is_pulled) {
            return Ok(false);
        }
        let Some(access) = known.record.as_ref().and_then(|record| record.access(repository)) else {
            return Ok(true);
        };
        if access.node_pods {
            return Ok(false);
        }
        if access.secrets.is_empty() {
            return Ok(true);
        }
        let secrets = secrets().await?;
        let Some((secret, is_known)) = access.matching(&secrets) else { return Ok(true) };
        // The same credentials in another secret, or other credentials in the same one: recorded from now on.
        if !is_known && access.secrets.len() < PULL_RECORD_SECRETS_MAX {
            let (image, image_ref) = (present.image.to_owned(), present.image_ref.to_owned());
            let by = Access::of_secret(secret.clone());
            let written = self.work(blocking, move |records| records.add(&image, &image_ref, by)).await;
            if let Err(error) = written {
                log::warn!("image {}: pull record not written: {error}", present.image);
            }
        }
        Ok(false)
    }

    /// `initialize`: an image that an interrupted pull has brought was pulled with unknown credentials.
    async fn settle<R: Runtime>(&self, runtime: &R, blocking: &Blocking) {
        if self.settled.get() {
            return;
        }
        if !self.work(blocking, |records| records.left_behind()).await {
            self.settled.set(true);
            return;
        }
        let (mut images, mut bytes) = (Vec::new(), 0);
        let mut listed = |image: Image| {
            bytes += image.id.len() + image.names().map(str::len).sum::<usize>();
            if bytes <= IMAGES_LISTED_BYTES_MAX {
                images.push((image.id.to_string(), image.names().map(str::to_owned).collect()));
            }
        };
        match runtime.list_images(&mut listed).await {
            Ok(()) if bytes <= IMAGES_LISTED_BYTES_MAX => {
                self.settled.set(true);
                self.work(blocking, move |records| records.settle(&images)).await;
            }
            Ok(()) => {
                log::warn!("too many images to match with earlier pulls; they are verified by name");
            }
            Err(error) => {
                log::warn!("listing images failed: {error}; images of earlier pulls are verified by name");
            }
        }
    }

    /// Before a list of the images: images pulled from now on may be missing in it.
    pub async fn begin_prune(&self, blocking: &Blocking) {
        self.work(blocking, Records::begin_prune).await;
    }

    /// `PruneUnknownRecords`: deletes the records of removed images.
    pub async fn prune(&self, blocking: &Blocking, images: Vec<String>) {
        self.work(blocking, move |records| records.prune(&images)).await;
    }

    /// Runs one operation on the records at a time, on the pool.
    async fn work<T: Send + 'static>(
        &self,
        blocking: &Blocking,
        work: impl FnOnce(&mut Records) -> T + Send + 'static,
    ) -> T {
        let (records, dropped) = (self.records.clone(), self.dropped.take());
        let job = move || {
            let mut records = records.lock().unwrap_or_else(PoisonError::into_inner);
            for number in dropped {
                records.end(number);
            }
            work(&mut records)
        };
        blocking.run(job).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `PruneUnknownRecords` with concurrent pulls.
    #[test]
    fn records_of_removed_images_are_removed() {
        let root = std::env::temp_dir().join(format!("smolet-pulled-{}", std::process::id()));
        let blocking = Blocking::on_this_thread();
        let manager = PullManager::new(VerificationPolicy::default(), &root);
        let files = |dir: &str| {
            std::fs::read_dir(root.join("image_manager").join(dir)).map_or(0, |files| files.flatten().count())
        };
        smol::block_on(async {
            let pull = async |image: &str, id: &str| {
                let intent = manager.begin(&blocking, image).await.unwrap();
                manager.pulled(&blocking, intent, id, Access::of_node()).await;
            };
            pull("a:1", "id-a").await;
            pull("b:1", "id-b").await;
            manager.begin_prune(&blocking).await;
            // While the images are listed.
            pull("c:1", "id-c").await;
            manager.prune(&blocking, vec!["id-b".to_owned()]).await;
            assert_eq!(files("pulled"), 2);
            manager.prune(&blocking, vec!["id-b".to_owned()]).await;
            assert_eq!(files("pulled"), 1);

            let (first, second) =
                (manager.begin(&blocking, "d:1").await, manager.begin(&blocking, "d:1").await);
            assert_eq!(files("pulling"), 1);
            manager.failed(&blocking, first.unwrap()).await;
            assert_eq!(files("pulling"), 1, "the other one runs");
            drop(second);
            assert_eq!(files("pulling"), 1);
            manager.begin_prune(&blocking).await;
            assert_eq!(files("pulling"), 0, "before anything else is looked at");
        });
        let mode =
            std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(root.join("image_manager")).unwrap());
        assert_eq!(mode & 0o777, 0o700);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
