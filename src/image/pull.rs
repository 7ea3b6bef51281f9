//! The image puller: ensures that a container's image is on the node (`imageManager.EnsureImageExists`).
//!
//! ```text
//! |     Never          present, and this pod may use it? ──no──► ErrImageNeverPull
//! |     IfNotPresent   present, and this pod may use it? ──no──► back-off over? ──no──► ImagePullBackOff
//! |     Always         ────────────────────────────────────────►     │ yes
//! |                                                                  ▼
//! |                                                   wait for a permit, pull ─error──► ErrImagePull, the back-off doubles
//! ```
//!
//! One puller serves all tasks. It has its own back-off table, apart from the loop's, because the second container of a pod
//! must see within the same sync that the first one's pull of the same image failed. No borrow of it is held across an
//! await.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use smol::lock::Semaphore;

use super::credentials;
use super::keyring::Login;
use super::name::{ImageName, for_runtime};
use super::pulled::record::Access;
use super::pulled::{Present, PullManager};
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cri::{Image, Runtime};
use crate::events::EventKind;
use crate::limits::{PULL_LOGINS_MAX, PULL_MESSAGE_BYTES_MAX, PULL_MESSAGES_MAX, PULL_TURN, Rate};
use crate::model::backoff::{Backoff, BackoffKey, GoDuration};
use crate::model::{Mono, Now, PodUid};
use crate::proto::runtime::v1::PodSandboxConfig;
use crate::rate::TokenBucket;
use crate::text::quoted;
use crate::text::start_of;

/// An image that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyImage {
    /// The image reference for `CreateContainer`: the image's id, or the result of `PullImage`.
    pub image_ref: Box<str>,
    /// The runtime's image status; `None` when it has none.
    pub image: Option<Image>,
}

/// Why an image is not available. The names are the kubelet's: they are shown as a container's waiting reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImageProblem {
    /// The name is invalid.
    InvalidName,
    /// The runtime's `ImageStatus` failed.
    Inspect,
    /// It is not present, and the policy is Never.
    NeverPull,
    /// The pull failed.
    Pull,
    /// The registry could not be reached.
    RegistryUnavailable,
    /// The image's signature was rejected.
    SignatureValidationFailed,
    /// The pull failed before and is in back-off.
    BackOff,
}

impl ImageProblem {
    /// True when a pull was tried just now and failed.
    pub fn is_of_a_pull(self) -> bool {
        match self {
            Self::Pull | Self::RegistryUnavailable | Self::SignatureValidationFailed => true,
            Self::InvalidName | Self::Inspect | Self::NeverPull | Self::BackOff => false,
        }
    }
}

impl fmt::Display for ImageProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidName => "InvalidImageName",
            Self::Inspect => "ImageInspectError",
            Self::NeverPull => "ErrImageNeverPull",
            Self::Pull => "ErrImagePull",
            Self::RegistryUnavailable => "RegistryUnavailable",
            Self::SignatureValidationFailed => "SignatureValidationFailed",
            Self::BackOff => "ImagePullBackOff",
        })
    }
}

/// The error of an image that is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageError {
    /// The class.
    pub problem: ImageProblem,
    /// The message for the pod's status.
    pub message: String,
    /// The time of the next pull attempt, if a pull is needed.
    pub retry_at: Option<Mono>,
}

/// An image to ensure.
#[derive(Clone, Copy)]
pub struct ImageRequest<'a> {
    /// The pod: each pod has its own back-off.
    pub pod: &'a PodUid,
    /// The image's name in the manifest.
    pub image: &'a str,
    /// `imagePullPolicy`.
    pub policy: PullPolicy,
    /// Sources of registry credentials.
    pub logins: LoginSources<'a>,
    /// The pod's sandbox configuration, which the runtime may need for the pull.
    pub sandbox: &'a PodSandboxConfig,
}

/// Sources of registry credentials, in the order in which they are tried.
#[derive(Clone, Copy)]
pub struct LoginSources<'a> {
    /// The pod's pull secrets.
    pub secrets: &'a [Arc<Secret>],
    /// The node's own credentials ([`credentials::NODE_LOGINS`]).
    pub node: &'a Path,
    /// Pool for reading them.
    pub blocking: &'a Blocking,
}

/// `imagePullPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Pull before every start.
    Always,
    /// Pull when it is not present.
    IfNotPresent,
    /// Never pull.
    Never,
}

impl PullPolicy {
    /// Parses the field. An absent or unknown value means Always, as in the kubelet for a pod without defaults.
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("IfNotPresent") => Self::IfNotPresent,
            Some("Never") => Self::Never,
            Some(_) | None => Self::Always,
        }
    }
}

/// The image puller; one per agent.
pub struct ImagePuller {
    clock: SharedClock,
    turns: Semaphore,
    rate: RefCell<Option<TokenBucket>>,
    failures: RefCell<Failures>,
    /// The last warning about the node's credentials, to log each once.
    complaint: RefCell<Option<String>>,
    /// Verifies which pods may use a present image; `None`: all pods may.
    pulled: Option<PullManager>,
    /// k3s' `registries.yaml`, and the reader of its logins for a registry; `None`: the runtime reads it itself.
    registries: Option<(PathBuf, ReadLogins)>,
}

/// Reads the logins for images of a registry from a file. Blocks.
pub type ReadLogins = fn(&Path, &str) -> Result<Vec<Login>, String>;

struct Failures {
    backoff: Backoff,
    /// The error of the last pull by key (`prevPullErrMsg`), oldest first.
    messages: Vec<(BackoffKey, Box<str>)>,
}

impl ImagePuller {
    /// A puller that runs up to `at_once` pulls at the same time (`limits::PULLS_AT_ONCE` unless configured).
    pub fn new(clock: SharedClock, at_once: usize) -> Self {
        let backoff = Backoff::for_images(clock.now().mono);
        Self {
            clock,
            turns: Semaphore::new(at_once.max(1)),
            rate: RefCell::default(),
            failures: RefCell::new(Failures { backoff, messages: Vec::new() }),
            complaint: RefCell::default(),
            pulled: None,
            registries: None,
        }
    }

    /// The same puller, with further logins of the node's own.
    #[must_use]
    pub fn with_registries(self, registries: Option<(PathBuf, ReadLogins)>) -> Self {
        Self { registries, ..self }
    }

    /// The same puller, which verifies access to present images (`KubeletEnsureSecretPulledImages`).
    #[must_use]
    pub fn verifying(self, pulled: PullManager) -> Self {
        Self { pulled: Some(pulled), ..self }
    }

    /// The pull manager (KEP-2535).
    pub fn pull_manager(&self) -> Option<&PullManager> {
        self.pulled.as_ref()
    }

    /// The same puller with a rate limit on pulls per second and a burst (`throttleImagePulling`).
    #[must_use]
    pub fn limited(self, rate: Option<Rate>) -> Self {
        let now = self.clock.now().mono;
        self.rate.replace(rate.map(|rate| TokenBucket::new(rate, now)));
        self
    }

    /// The back-offs after failed pulls, for a checkpoint (`Backoff::waits`).
    pub fn waits(&self, now: Mono) -> Vec<(BackoffKey, Duration, Duration)> {
        self.failures.borrow().backoff.waits(now).collect()
    }

    /// Restores a back-off (`Backoff::restore`); its error message is lost.
    pub fn restore(&self, key: BackoffKey, wait: Duration, at: Mono) {
        self.failures.borrow_mut().backoff.restore(key, wait, at);
    }

    /// Increases with each change of the back-offs.
    pub fn changes(&self) -> u64 {
        self.failures.borrow().backoff.changes()
    }

    /// Number of back-offs, number of kept errors, and the errors' bytes.
    pub fn held(&self) -> (usize, usize, usize) {
        let failures = self.failures.borrow();
        let bytes =
            |(_, message): &(BackoffKey, Box<str>)| size_of::<(BackoffKey, Box<str>)>() + message.len();
        (failures.backoff.len(), failures.messages.len(), failures.messages.iter().map(bytes).sum())
    }

    /// Forgets the failed pulls of the image for that pod: the back-off starts again.
    pub fn forget(&self, pod: &PodUid, image: &str) {
        let key = BackoffKey::image(pod, image);
        let mut failures = self.failures.borrow_mut();
        failures.backoff.forget(key);
        failures.messages.retain(|(known, _)| *known != key);
    }

    /// `EnsureImageExists`. `note` receives events as they happen: pulls take minutes. `before_pull` is called when a pull
    /// is needed.
    pub async fn ensure<R: Runtime>(
        &self,
        runtime: &R,
        request: &ImageRequest<'_>,
        note: &dyn Fn(EventKind, &'static str, &str),
        before_pull: &mut dyn FnMut(),
    ) -> Result<ReadyImage, ImageError> {
        let fail = |problem, reason, message: String| {
            note(EventKind::Warning, reason, &message);
            Err(ImageError { problem, message, retry_at: None })
        };
        let wanted = quoted(request.image);
        let name = match for_runtime(request.image) {
            Ok(name) => name,
            Err(error) => {
                let message = format!("Failed to apply default image tag {wanted}: {error}");
                return fail(ImageProblem::InvalidName, "InspectFailed", message);
            }
        };
        let present = match request.policy {
            PullPolicy::Always => None,
            PullPolicy::IfNotPresent | PullPolicy::Never => match runtime.image_status(&name).await {
                Ok(image) => image,
                Err(error) => {
                    // The kubelet shows an empty name here; the image's is more useful.
                    let message = format!("Failed to inspect image {wanted}: {error}");
                    return fail(ImageProblem::Inspect, "InspectFailed", message);
                }
            },
        };
        let present = present.filter(|image| !image.id.is_empty());
        let may_use = match &present {
            None => false,
            // Boxed: it ends before anything is created.
            Some(image) => match Box::pin(self.may_use(runtime, request, image)).await {
                Ok(may_use) => may_use,
                Err(message) => {
                    note(EventKind::Warning, "Failed", &format!("Failed to pull image {wanted}: {message}"));
                    return Err(ImageError { problem: ImageProblem::Pull, message, retry_at: None });
                }
            },
        };
        if let Some(image) = present.filter(|_| may_use) {
            let message =
                format!("Container image {wanted} already present on machine and can be accessed by the pod");
            note(EventKind::Normal, "Pulled", &message);
            return Ok(ReadyImage { image_ref: image.id.clone(), image: Some(image) });
        }
        match request.policy {
            // A pod must not learn that an image is present which it may not use (`imageNotPresentOnNeverPolicyError`).
            PullPolicy::Never => {
                let message = format!("Container image {wanted} is not present with pull policy of Never");
                fail(ImageProblem::NeverPull, "ErrImageNeverPull", message)
            }
            // Boxed: most starts find their image, and need no memory for a pull.
            PullPolicy::Always | PullPolicy::IfNotPresent => {
                before_pull();
                Box::pin(self.pull(runtime, request, &name, note)).await
            }
        }
    }

    /// True when the pod may use a present image without asking the registry.
    async fn may_use<R: Runtime>(
        &self,
        runtime: &R,
        request: &ImageRequest<'_>,
        image: &Image,
    ) -> Result<bool, String> {
        let Some(pulled) = &self.pulled else { return Ok(true) };
        let present = Present { image: request.image, image_ref: &image.id };
        let secrets = async || {
            let logins = self.logins(request).await?;
            Ok(logins.iter().filter_map(Login::secret).collect())
        };
        let must_pull = pulled.must_pull((runtime, request.logins.blocking), present, secrets).await?;
        Ok(!must_pull)
    }

    /// `pullImage`. Differs from the kubelet, which records a pull also during back-off.
    async fn pull<R: Runtime>(
        &self,
        runtime: &R,
        request: &ImageRequest<'_>,
        name: &str,
        note: &dyn Fn(EventKind, &'static str, &str),
    ) -> Result<ReadyImage, ImageError> {
        let wanted = quoted(request.image);
        let key = BackoffKey::image(request.pod, request.image);
        if let Some((until, cause)) = self.wait_of(key, self.clock.now()) {
            let message = format!("Back-off pulling image {wanted}");
            note(EventKind::Normal, "BackOff", &message);
            let message = cause.map_or(message.clone(), |cause| format!("{message}: {cause}"));
            return Err(ImageError { problem: ImageProblem::BackOff, message, retry_at: Some(until) });
        }
        let logins = match self.logins(request).await {
            Ok(logins) => logins,
            Err(message) => {
                note(EventKind::Warning, "Failed", &format!("Failed to pull image {wanted}: {message}"));
                return Err(ImageError { problem: ImageProblem::Pull, message, retry_at: None });
            }
        };
        let blocking = request.logins.blocking;
        let intent = match &self.pulled {
            None => None,
            Some(pulled) => match pulled.begin(blocking, request.image).await {
                Ok(intent) => Some((pulled, intent)),
                Err(message) => {
                    note(EventKind::Warning, "Failed", &format!("Failed to pull image {wanted}: {message}"));
                    return Err(ImageError { problem: ImageProblem::Pull, message, retry_at: None });
                }
            },
        };
        note(EventKind::Normal, "Pulling", &format!("Pulling image {wanted}"));
        let asked = self.clock.now().mono;
        let (began, pulled) = self.pull_in_turn(runtime, request, name, &logins).await;
        let now = self.clock.now();
        let image_ref = match pulled {
            Ok((image_ref, login)) => {
                if let Some((pulled, intent)) = intent {
                    let secret = login.and_then(Login::secret);
                    let by = secret.map_or_else(Access::of_node, Access::of_secret);
                    pulled.pulled(blocking, intent, &image_ref, by).await;
                }
                image_ref
            }
            Err(error) => {
                if let Some((pulled, intent)) = intent {
                    pulled.failed(blocking, intent).await;
                }
                note(EventKind::Warning, "Failed", &format!("Failed to pull image {wanted}: {error}"));
                let (problem, message) = pull_problem(request.image, error);
                let retry_at = self.failed(key, now, &format!("{problem}: {message}"));
                return Err(ImageError { problem, message, retry_at });
            }
        };
        self.failures.borrow_mut().backoff.collect(now.mono);
        // For the image's user and its size. An error is no reason to fail the pull: the kubelet only logs a missing size,
        // and treats a missing image status as root's.
        let image = runtime.image_status(name).await.ok().flatten();
        let ms = |since: Mono| GoDuration(now.mono.since(since));
        let size = image.as_ref().map_or(0, |image| image.size_bytes);
        let message = format!(
            "Successfully pulled image {wanted} in {} ({} including waiting). Image size: {size} bytes.",
            ms(began),
            ms(asked)
        );
        note(EventKind::Normal, "Pulled", &message);
        Ok(ReadyImage { image_ref, image })
    }

    /// Runs the pull when it has a permit; returns when that was. A pull that takes longer than its turn continues beside the
    /// next one.
    async fn pull_in_turn<'l, R: Runtime>(
        &self,
        runtime: &R,
        request: &ImageRequest<'_>,
        name: &str,
        logins: &'l [Login],
    ) -> (Mono, Result<(Box<str>, Option<&'l Login>), String>) {
        let turn = self.turns.acquire().await;
        let began = self.clock.now().mono;
        let is_within_rate = self.rate.borrow_mut().as_mut().is_none_or(|rate| rate.try_accept(began));
        let mut pull = pin!(async {
            if is_within_rate {
                return pull_with(runtime, name, logins, request.sandbox).await;
            }
            Err("pull QPS exceeded".to_owned())
        });
        let in_turn = async { Some(pull.as_mut().await) };
        let turn_is_over = async {
            self.clock.sleep(PULL_TURN).await;
            None
        };
        let ended = smol::future::or(in_turn, turn_is_over).await;
        drop(turn);
        let pulled = match ended {
            Some(pulled) => pulled,
            None => pull.await,
        };
        (began, pulled)
    }

    /// The credentials to try (`makeLookupPullCredentialsFunc`); empty to pull anonymously.
    async fn logins(&self, request: &ImageRequest<'_>) -> Result<Vec<Login>, String> {
        let LoginSources { secrets, node, blocking } = request.logins;
        let repository = ImageName::parse(request.image)?.repository;
        let of_pod = credentials::of_secrets(secrets)?;
        let path = node.to_owned();
        let mut of_node = blocking.run(move || credentials::of_node(&path)).await;
        let mut of_registries = Vec::new();
        if let Some((path, read)) = self.registries.clone() {
            let host = repository.split('/').next().unwrap_or_default().to_owned();
            match blocking.run(move || read(&path, &host)).await {
                Ok(logins) => of_registries = logins,
                Err(why) => {
                    let complaint = format!("{why}; images are pulled without its credentials");
                    of_node.complaint.get_or_insert(complaint);
                }
            }
        }
        if *self.complaint.borrow() != of_node.complaint {
            if let Some(complaint) = &of_node.complaint {
                log::warn!("{complaint}");
            }
            self.complaint.replace(of_node.complaint);
        }
        let found = of_pod.lookup(&repository).into_iter().chain(of_node.keyring.lookup(&repository));
        let found = found.chain(&of_registries);
        Ok(found.take(PULL_LOGINS_MAX).cloned().collect())
    }

    /// The back-off of the image; without one its old error is forgotten.
    fn wait_of(&self, key: BackoffKey, now: Now) -> Option<(Mono, Option<Box<str>>)> {
        let failures = &mut *self.failures.borrow_mut();
        let at = failures.messages.iter().position(|(known, _)| *known == key);
        if let Some(hold) = failures.backoff.held_since_update(key, now.mono) {
            return Some((hold.until, at.map(|at| failures.messages[at].1.clone())));
        }
        if let Some(at) = at {
            failures.messages.remove(at);
        }
        None
    }

    fn failed(&self, key: BackoffKey, now: Now, message: &str) -> Option<Mono> {
        let failures = &mut *self.failures.borrow_mut();
        failures.backoff.next(key, Some(now.mono), now.mono);
        failures.messages.retain(|(known, _)| *known != key);
        if failures.messages.len() == PULL_MESSAGES_MAX {
            failures.messages.remove(0);
        }
        failures.messages.push((key, start_of(message, PULL_MESSAGE_BYTES_MAX).into()));
        failures.backoff.held_since_update(key, now.mono).map(|hold| hold.until)
    }
}

/// `kubeGenericRuntimeManager.PullImage`: tries the credentials in order until a pull succeeds, and returns those used.
async fn pull_with<'a, R: Runtime>(
    runtime: &R,
    name: &str,
    logins: &'a [Login],
    sandbox: &PodSandboxConfig,
) -> Result<(Box<str>, Option<&'a Login>), String> {
    if logins.is_empty() {
        let image_ref = runtime.pull_image(name, None, sandbox).await.map_err(|error| error.to_string())?;
        return Ok((image_ref, None));
    }
    let mut errors: Vec<String> = Vec::new();
    for login in logins {
        let auth = login.auth();
        match runtime.pull_image(name, Some(&auth), sandbox).await {
            Ok(image_ref) => return Ok((image_ref, Some(login))),
            Err(error) => {
                let error = credentials::without_login(error.to_string(), &auth);
                if !errors.contains(&error) {
                    errors.push(error);
                }
            }
        }
    }
    // The format of `utilerrors.NewAggregate`.
    Err(if errors.len() == 1 { errors.remove(0) } else { format!("[{}]", errors.join(", ")) })
}

/// `evalCRIPullErr`: the CRI defines two specific errors.
fn pull_problem(image: &str, text: String) -> (ImageProblem, String) {
    let named = [
        (ImageProblem::RegistryUnavailable, "the registry is unavailable"),
        (ImageProblem::SignatureValidationFailed, "the signature validation failed"),
    ];
    for (problem, because) in named {
        if let Some(detail) = text.strip_prefix(&problem.to_string()) {
            return (problem, format!("image pull failed for {image} because {because}{detail}"));
        }
    }
    (ImageProblem::Pull, text)
}
