//! Pulls the images of lists (`*.txt` in the directory of image archives) before pods need them, one after the other. What fails is
//! tried again; images that are there are left alone.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;

use smol::channel::Receiver;

use super::node_runtime::NodeRuntime;
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::image::lists::ListedImages;
use crate::image::pull::{ImageProblem, ImagePuller, ImageRequest, LoginSources, PullPolicy};
use crate::limits::IMAGE_ARCHIVE_RETRY;
use crate::model::PodUid;
use crate::proto::runtime::v1::PodSandboxConfig;

/// What it takes.
pub(super) struct ImageLists {
    pub(super) listed: ListedImages,
    pub(super) changes: Receiver<()>,
    pub(super) runtime: NodeRuntime,
    pub(super) puller: ImagePuller,
    /// The node's own credentials.
    pub(super) logins: PathBuf,
    pub(super) blocking: Rc<Blocking>,
    pub(super) clock: SharedClock,
}

impl ImageLists {
    /// Pulls, for the agent's lifetime.
    pub(super) async fn run(self) {
        // What is still to be pulled, each with the error that was logged of it.
        let mut left: Vec<(String, String)> = Vec::new();
        loop {
            let changed = async { self.changes.recv().await.map(|()| true) };
            let again = async {
                if left.is_empty() {
                    std::future::pending().await
                } else {
                    self.clock.sleep(IMAGE_ARCHIVE_RETRY).await;
                    Ok(false)
                }
            };
            let next = smol::future::or(changed, again).await;
            match next {
                Ok(true) => {
                    left = self.listed.now().into_iter().map(|image| (image, String::new())).collect();
                }
                Ok(false) => {}
                // The importer is gone only when the process ends.
                Err(_) => return,
            }
            for (image, logged) in std::mem::take(&mut left) {
                if let Some(why) = self.pull(&image, &logged).await {
                    left.push((image, why));
                }
            }
        }
    }

    /// Why it is not there, unless that will not change.
    async fn pull(&self, image: &str, logged: &str) -> Option<String> {
        let pod = PodUid::from("");
        let logins = LoginSources { secrets: &[], node: &self.logins, blocking: &self.blocking };
        let sandbox = PodSandboxConfig::default();
        let request =
            ImageRequest { pod: &pod, image, policy: PullPolicy::IfNotPresent, logins, sandbox: &sandbox };
        let is_pulled = Cell::new(false);
        let pulled =
            self.puller.ensure(&self.runtime, &request, &|_, _, _| {}, &mut || is_pulled.set(true)).await;
        match pulled {
            Ok(_) => {
                if is_pulled.get() {
                    log::info!("image list: {image}: pulled");
                }
                None
            }
            Err(error) if error.problem == ImageProblem::InvalidName => {
                log::warn!("image list: {}; correct the line", error.message);
                None
            }
            Err(error) if error.problem == ImageProblem::BackOff => Some(logged.to_owned()),
            Err(error) => {
                if error.message != logged {
                    log::warn!("image list: {image}: {}; retrying", error.message);
                }
                Some(error.message)
            }
        }
    }
}
