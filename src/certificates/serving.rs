//! The certificate of the node's own API, signed by the cluster (`serverTLSBootstrap`): asked for when there is none for the node's
//! names and addresses, and renewed before it ends. Until somebody has approved it the node's own serves.

use std::path::PathBuf;
use std::time::Duration;

use super::files;
use super::requester::{CertificateRequester, Failed, Pace, apart};
use crate::cluster::csr::{self, Due};
use crate::kube::{self, Client};
use crate::limits::{CERTIFICATE_CHECK_PERIOD, CSR_RETRY_MIN};
use crate::model::Mono;

/// What it takes.
pub(crate) struct ServingCertificate {
    pub(crate) requester: CertificateRequester,
    /// The node's own, which is there once it has joined.
    pub(crate) kubeconfig: PathBuf,
    /// The node's own client.
    pub(crate) client: Client,
}

impl ServingCertificate {
    /// Keeps it as it is to be, for ever.
    pub(crate) async fn run(self) {
        let mut pace = Pace::new("the certificate of the node's API", &self.requester.wanted.node);
        // A new one is not renewed before this instant.
        let mut kept = self.requester.clock.now().mono;
        let changes = self.requester.addresses.changes();
        loop {
            let turn = async {
                let done = self.turn(&mut kept).await;
                self.requester.clock.sleep(pace.after(done)).await;
            };
            // What is asked for with other addresses is of no use: begun afresh, as the kubelet does when its template changes.
            let changed = async {
                let _ = changes.recv().await;
            };
            smol::future::or(turn, changed).await;
        }
    }

    async fn turn(&self, kept: &mut Mono) -> Result<Duration, Failed> {
        let wanted = self.requester.wanted();
        let (path, mark) = (wanted.current(), wanted.mark());
        let kubeconfig = self.kubeconfig.clone();
        // Behind the name there are the addresses.
        let has_addresses = wanted.names.len() > 1;
        let held = apart(move || {
            let held = kube::read(&path).ok().filter(|pem| files::is_for(pem, &mark, has_addresses));
            Ok((held.and_then(|pem| files::usable(&pem).ok()), kubeconfig.exists()))
        });
        let (held, is_joined) = held.await.map_err(Failed::Again)?;
        if !is_joined {
            return Ok(CSR_RETRY_MIN);
        }
        let now = self.requester.clock.now();
        if let Some(validity) = held {
            match csr::due(validity, now.wall, kube::seed(&self.requester.wanted.node)) {
                Due::Later(pause) => return Ok(pause),
                Due::Now | Due::Ended if *kept > now.mono => return Ok(CERTIFICATE_CHECK_PERIOD),
                Due::Now | Due::Ended => {}
            }
        }
        let (request, pem, validity) = self.requester.issued(&self.client).await?;
        let now = self.requester.clock.now();
        let installed = apart(move || {
            files::install(&wanted.current(), &pem, &request, now.wall)?;
            files::forget(&wanted)
        });
        installed.await.map_err(Failed::Again)?;
        log::info!("node {}: serving certificate valid until {}", self.requester.wanted.node, validity.until);
        *kept = now.mono + csr::least_age(validity);
        Ok(Duration::ZERO)
    }
}
