//! The certificate by which the node is known to its cluster: asked for with a bootstrap kubeconfig when there is none, and
//! renewed before it ends. A task of its own: pods of manifests run meanwhile.

mod files;
mod requester;
mod serving;

use std::path::{Path, PathBuf};
use std::rc::Weak;
use std::time::Duration;

pub(crate) use files::{CertificateSpec, current, is_for, usable};
pub(crate) use requester::{CertificateRequester, apart};
pub(crate) use serving::ServingCertificate;

use files::Request;
use requester::{Failed, Pace};

use crate::cluster::csr::{self, Due};
use crate::executor::Executor;
use crate::kube::{self, Access, Client, Credential};
use crate::limits::ApiRates;
use crate::limits::CERTIFICATE_CHECK_PERIOD;
use crate::model::{Mono, Wall};

/// What it takes.
pub(crate) struct Certificates {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) bootstrap: Option<PathBuf>,
    /// Whether it is renewed (`rotateCertificates`).
    pub(crate) rotates: bool,
    pub(crate) requester: CertificateRequester,
    /// The node's own client.
    pub(crate) client: Client,
    /// Weak: a task that holds the executor lasts for ever.
    pub(crate) executor: Weak<Executor>,
}

impl Certificates {
    /// Keeps the certificate as it is to be, for ever.
    pub(crate) async fn run(self) {
        let mut pace = Pace::new("the node's certificate", &self.requester.wanted.node);
        // A new one is not renewed before this instant.
        let mut kept = self.requester.clock.now().mono;
        loop {
            let kubeconfig = self.kubeconfig.clone();
            let held = apart(move || kube::credential(&kubeconfig)).await;
            let done = match held {
                Ok(held) => self.turn(held, &mut kept).await,
                Err(why) => Err(Failed::Refused(why)),
            };
            self.requester.clock.sleep(pace.after(done)).await;
        }
    }

    /// Does what is to be done; how long to wait before the next look.
    async fn turn(&self, held: Credential, kept: &mut Mono) -> Result<Duration, Failed> {
        let now = self.requester.clock.now();
        let (file, validity) = match held {
            Credential::NoKubeconfig | Credential::Gone(_) => {
                let Some(bootstrap) = &self.bootstrap else { return Ok(CERTIFICATE_CHECK_PERIOD) };
                let file = match held {
                    Credential::Gone(file) => file,
                    _ => self.requester.wanted.current(),
                };
                return self.join(bootstrap, file, kept).await;
            }
            Credential::NoCertificate => return Ok(CERTIFICATE_CHECK_PERIOD),
            Credential::InFile(file, validity) => (Some(file), validity),
            Credential::Elsewhere(validity) => (None, validity),
        };
        let due = match csr::due(validity, now.wall, kube::seed(&self.requester.wanted.node)) {
            Due::Later(pause) => return Ok(pause),
            Due::Now if !self.rotates => return Ok(CERTIFICATE_CHECK_PERIOD),
            due => due,
        };
        if *kept > now.mono {
            return Ok(kept.since(now.mono).min(CERTIFICATE_CHECK_PERIOD));
        }
        let kubeconfig = self.kubeconfig.display();
        let ended = |mend: &str| {
            let why = format!("that of kubeconfig {kubeconfig} has ended on {}; {mend}", validity.until);
            Failed::Refused(why)
        };
        let Some(file) = file else {
            return Err(match due {
                Due::Ended => ended("put a new one there, with its key"),
                _ => Failed::Refused(format!(
                    "rotateCertificates: kubeconfig {kubeconfig} does not name one file with certificate and key, which could \
                     be renewed; put both into {} and name that as client-certificate and as client-key",
                    self.requester.wanted.current().display()
                )),
            });
        };
        if !self.rotates && self.bootstrap.is_none() {
            return Err(ended("put a new one there, with its key, or set rotateCertificates in time"));
        }
        // Even when it has ended, for the server's clock is the one that counts.
        match (self.obtain(&self.client, file.clone(), kept).await, &self.bootstrap) {
            (Err(Failed::Unknown(_)), Some(bootstrap)) if due == Due::Ended => {
                self.join(bootstrap, file, kept).await
            }
            (Err(Failed::Unknown(_)), None) if due == Due::Ended => Err(ended(
                "let the node join again: --bootstrap-kubeconfig FILE, with a token of kubeadm token create",
            )),
            (done, _) => done,
        }
    }

    /// Joins with the bootstrap kubeconfig.
    async fn join(&self, bootstrap: &Path, file: PathBuf, kept: &mut Mono) -> Result<Duration, Failed> {
        let executor = self.executor.upgrade().ok_or_else(|| Failed::Again("the agent ends".to_owned()))?;
        let access = Access::new(bootstrap);
        let client = Client::new(
            access,
            &executor,
            self.requester.clock.clone(),
            kube::seed(&self.requester.wanted.node),
            ApiRates::default(),
        );
        drop(executor);
        let at = |why: String| format!("bootstrap kubeconfig {}: {why}", bootstrap.display());
        self.obtain(&client, file, kept).await.map_err(|failed| match failed {
            Failed::Again(why) => Failed::Again(at(why)),
            Failed::Unknown(why) => {
                Failed::Refused(at(format!("{why}, whose token may have ended: kubeadm token create")))
            }
            Failed::Refused(why) => Failed::Refused(why),
        })
    }

    /// Asks for a certificate, waits for it, and puts it in force.
    async fn obtain(&self, client: &Client, file: PathBuf, kept: &mut Mono) -> Result<Duration, Failed> {
        let (request, pem, validity) = self.requester.issued(client).await?;
        let (kubeconfig, bootstrap) = (self.kubeconfig.clone(), self.bootstrap.clone());
        let (wanted, now) = (self.requester.wanted.clone(), self.requester.clock.now());
        let installed = apart(move || {
            install(&request, &file, &pem, now.wall, &kubeconfig, bootstrap.as_deref())?;
            files::forget(&wanted)
        });
        installed.await.map_err(Failed::Again)?;
        log::info!("node {}: client certificate valid until {}", self.requester.wanted.node, validity.until);
        *kept = now.mono + csr::least_age(validity);
        self.client.reconnect();
        Ok(Duration::ZERO)
    }
}

/// The certificate first: a kubeconfig never names what is not there. I/O, blocking.
fn install(
    request: &Request,
    file: &Path,
    pem: &[u8],
    now: Wall,
    kubeconfig: &Path,
    bootstrap: Option<&Path>,
) -> Result<(), String> {
    files::install(file, pem, request, now)?;
    match bootstrap {
        Some(bootstrap) if !kubeconfig.exists() => {
            files::write_kubeconfig(kubeconfig, &kube::joined(bootstrap, file)?)
        }
        Some(_) | None => Ok(()),
    }
}
