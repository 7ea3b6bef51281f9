//! Requests a certificate from the cluster: the certificate signing request, which may exist already, its approval, and retries.

use std::cell::RefCell;
use std::time::Duration;

use hyper::Method;

use super::files::{self, CertificateSpec, Request};
use crate::addresses::NodeAddresses;
use crate::blocking::unblock_apart;
use crate::clock::SharedClock;
use crate::cluster::csr::{self, Answer, Purpose};
use crate::decode::Node;
use crate::kube::{self, Client, Content, KubeError, Resource, RetryWait};
use crate::limits::{CSR_POLL_MAX, CSR_POLL_MIN, CSR_POLL_SERVER_MAX, CSR_RETRY_MAX, CSR_RETRY_MIN};
use crate::x509::Validity;

/// What is asked for, again and again.
pub(crate) struct CertificateRequester {
    /// But for the addresses.
    pub(crate) wanted: CertificateSpec,
    pub(crate) addresses: NodeAddresses,
    pub(crate) clock: SharedClock,
    /// Name of the pending request that was logged.
    pub(crate) logged_pending: RefCell<String>,
}

/// Why there is no certificate.
pub(crate) enum Failed {
    /// It is tried again before long.
    Again(String),
    /// The API server does not know who asks; the same.
    Unknown(String),
    /// It takes somebody to mend it.
    Refused(String),
}

/// When something is tried again, and what is said of it.
pub(crate) struct Pace {
    what: &'static str,
    said: String,
    wait: RetryWait,
    refused: Duration,
}

impl Pace {
    pub(crate) fn new(what: &'static str, node: &str) -> Self {
        Self { what, said: String::new(), wait: RetryWait::new(kube::seed(node)), refused: CSR_RETRY_MIN }
    }

    /// How long to wait; each reason is said once.
    pub(crate) fn after(&mut self, done: Result<Duration, Failed>) -> Duration {
        let (why, pause) = match done {
            Ok(pause) => {
                self.wait.succeeded();
                self.refused = CSR_RETRY_MIN;
                (String::new(), pause)
            }
            Err(Failed::Again(why) | Failed::Unknown(why)) => (why, self.wait.failed()),
            Err(Failed::Refused(why)) => {
                let pause = self.refused;
                self.refused = (2 * self.refused).min(CSR_RETRY_MAX);
                (why, pause)
            }
        };
        if !why.is_empty() && why != self.said {
            log::warn!("{}: {why}; retrying", self.what);
        }
        self.said = why;
        pause
    }
}

impl CertificateRequester {
    /// What is asked for, with the node's addresses as they are now.
    pub(crate) fn wanted(&self) -> CertificateSpec {
        let mut wanted = self.wanted.clone();
        if wanted.purpose == Purpose::Server {
            wanted.names = self.addresses.names(&wanted.node);
        }
        wanted
    }

    /// Asks for a certificate, waits for it, and looks at it.
    pub(crate) async fn issued(&self, client: &Client) -> Result<(Request, Vec<u8>, Validity), Failed> {
        let wanted = self.wanted();
        let request = apart(move || files::request(&wanted)).await.map_err(Failed::Again)?;
        let answer = self.answer(client, &request).await.map_err(|why| {
            let said = why.to_string();
            if why.is(401) { Failed::Unknown(said) } else { Failed::Again(said) }
        })?;
        let now = self.clock.now();
        let checked = match answer {
            Answer::Issued(pem) => files::check(&pem, &request, now.wall).map(|validity| (pem, validity)),
            Answer::Refused(why) => Err(why),
            Answer::Pending => return Err(Failed::Again(format!("nobody has signed {}", request.name))),
        };
        match checked {
            Ok((pem, validity)) => Ok((request, pem, validity)),
            Err(why) => {
                let wanted = self.wanted();
                apart(move || files::forget(&wanted)).await.map_err(Failed::Again)?;
                Err(Failed::Refused(why))
            }
        }
    }

    /// What the cluster says, when it has said it.
    async fn answer(&self, client: &Client, request: &Request) -> Result<Answer, KubeError> {
        let name = &request.name;
        let mut object = self.ask(client, request).await?;
        let mut pause = CSR_POLL_MIN;
        loop {
            let answer = csr::answer(name, &object);
            if answer != Answer::Pending {
                return Ok(answer);
            }
            self.clock.sleep(pause).await;
            object = match client.call(Method::GET, &csr::path(name), None).await {
                // The cluster forgets those that nobody approves for a day.
                Err(why) if why.is_not_found() => self.ask(client, request).await?,
                object => object?,
            };
            if *self.logged_pending.borrow() != *name && csr::answer(name, &object) == Answer::Pending {
                let mend = match request.purpose {
                    Purpose::Client => ", unless the cluster does that itself",
                    // No cluster does of its own accord.
                    Purpose::Server => "",
                };
                log::info!("waiting for a certificate: kubectl certificate approve {name}{mend}");
                self.logged_pending.replace(name.clone());
            }
            pause = (2 * pause).min(match request.purpose {
                Purpose::Client => CSR_POLL_MAX,
                Purpose::Server => CSR_POLL_SERVER_MAX,
            });
        }
    }

    /// Creates the request, which may be there from before.
    async fn ask(&self, client: &Client, request: &Request) -> Result<Node, KubeError> {
        let name = &request.name;
        let content = Content::json(&csr::request(request.purpose, name, &request.pkcs10));
        match client.call(Method::POST, &Resource::SIGNING_REQUESTS.path(""), Some(content)).await {
            Err(why) if why.is(409) => client.call(Method::GET, &csr::path(name), None).await,
            made => made,
        }
    }
}

/// Blocking work, on a thread of its own.
pub(crate) async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    unblock_apart(work).await.map_err(|error| error.to_string())?
}
