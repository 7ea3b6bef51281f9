//! The state machine of a node that joins a k3s server. PURE.
//!
//! ```text
//!     Inspecting ─► ReadingToken ─► FetchingAuthority ─► FetchingCluster ─► ReadingPassword ─► RequestingCertificates
//!         ▲ │                                                   │                                          │
//!         │ │                                                   │ certificates hold, same cluster          ▼
//!         │ │ certificates hold, server heard                   └──────────────► Storing ◄─────────────────┘
//!         │ ▼                                                                       ▼
//!     Waiting ◄── FetchingServers, StoringServers ◄── RequestingComponents ◄── Publishing
//!                 when the list of servers is due     when theirs are due
//! ```
//!
//! A step that fails leads to `Waiting`, by way of the list of servers when that is due. After each wait the files are inspected
//! anew: a renewal, another cluster's files and another name of the node are found there.
//!
//! A server is greeted at the start, and again half a minute after a tunnel was lost: a server that was restarted may have other
//! settings, and another authority. Its `/cacerts`, which anybody may send, serve as intermediates: a new authority that the
//! trusted one has signed is followed so (`k3s certificate rotate-ca`), another one is not.
//!
//! [`JoinTask`](super::JoinTask) carries out each [`Step`] and brings its [`Outcome`].

use std::rc::Rc;
use std::time::Duration;

use super::component::{self, ComponentsDue};
use super::token::TOKEN_FILE;
use super::{List, Refused, Settings, Token, pinned};
use crate::certificates::{is_for, usable};
use crate::cluster::csr::{self, Due};
use crate::kube::{RetryWait, seed};
use crate::limits::{
    CERTIFICATE_CHECK_PERIOD, CSR_RETRY_MIN, K3S_LIST_PERIOD, K3S_LOST_WAIT, KUBE_RETRY_MIN,
};
use crate::model::{Mono, Now};
use crate::tls::certificates;
use crate::x509::{Validity, subject};

/// The files from the server, as read from the disk; `None` for one that cannot be read.
pub(super) struct Found {
    /// Validity of the certificate in the file that the kubeconfig names.
    pub(super) certificate: Option<Validity>,
    /// The node's certificate with its key.
    pub(super) client: Option<Vec<u8>>,
    /// The serving certificate with its key, behind the mark of what it is for.
    pub(super) serving: Option<Vec<u8>>,
    pub(super) client_ca: Option<Vec<u8>>,
    pub(super) server_ca: Option<Vec<u8>>,
    /// The cluster's settings are there.
    pub(super) has_settings: bool,
    /// The certificates of the components with their keys, in the order of `Component::ALL`.
    pub(super) components: [Option<Vec<u8>>; 2],
}

/// The cluster's certificate authorities, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Authorities {
    /// That of the node API's clients.
    pub(super) client: Vec<u8>,
    /// That of the servers.
    pub(super) server: Vec<u8>,
}

impl Authorities {
    /// `None` when one of them holds no certificate.
    fn parse(client: Option<Vec<u8>>, server: Option<Vec<u8>>) -> Option<Self> {
        let parse = |pem: Option<Vec<u8>>| pem.filter(|pem| certificates(pem).is_some());
        Some(Self { client: parse(client)?, server: parse(server)? })
    }
}

/// The usable ones among the node's files.
pub(super) struct Inspection {
    /// Validity of the client certificate; `None` when the kubeconfig, it or the serving certificate is missing or damaged, or
    /// when one of them is for another name, or the serving certificate for other addresses.
    certificate: Option<Validity>,
    authorities: Option<Authorities>,
    has_settings: bool,
    /// Validity of the components' certificates.
    components: [Option<Validity>; 2],
}

impl Inspection {
    /// What cannot be used is as good as none. A serving certificate begins with its `mark`; a node that has no address yet goes
    /// by its name. Checks keys: not on the loop's thread.
    pub(super) fn new(found: Found, node: &str, mark: &str, has_addresses: bool) -> Self {
        let serves = found
            .serving
            .filter(|pem| is_for(pem, mark, has_addresses))
            .is_some_and(|pem| usable(&pem).is_ok());
        let is_known = found.client.is_some_and(|pem| is_of_node(&pem, node) && usable(&pem).is_ok());
        Self {
            certificate: found.certificate.filter(|_| serves && is_known),
            authorities: Authorities::parse(found.client_ca, found.server_ca),
            has_settings: found.has_settings,
            components: found.components.map(|pem| usable(&pem?).ok()),
        }
    }

    fn is_complete(&self) -> bool {
        self.authorities.is_some() && self.has_settings
    }
}

/// Whether the certificate is that of the node with this name.
pub(super) fn is_of_node(pem: &[u8], node: &str) -> bool {
    let own = certificates(pem).and_then(|certificates| subject(certificates.first()?));
    own.is_some_and(|(name, _)| name.strip_prefix("system:node:") == Some(node))
}

/// The node's credentials, and the authority that is trusted already.
pub(super) struct Identity {
    pub(super) token: Result<Token, String>,
    /// The node's certificate with its key, in PEM.
    pub(super) certificate: Option<Vec<u8>>,
    pub(super) authority: Option<Vec<u8>>,
}

/// Credentials of requests to a supervisor.
pub(super) struct Credentials {
    /// The trusted authority, in PEM.
    pub(super) authority: Vec<u8>,
    /// What the server listed as its authorities, in PEM: not trusted, but possibly between its certificate and the authority.
    pub(super) intermediates: Vec<u8>,
    /// The node's certificate with its key, in PEM.
    pub(super) certificate: Option<Vec<u8>>,
    /// The token's `Authorization` header.
    pub(super) authorization: Option<String>,
}

/// The cluster, as a server describes it.
pub(super) struct Cluster {
    pub(super) settings: Settings,
    pub(super) authorities: Authorities,
}

impl Cluster {
    /// # Errors
    /// One of the authorities holds no certificate.
    pub(super) fn new(settings: Settings, client_ca: Vec<u8>, server_ca: Vec<u8>) -> Result<Self, String> {
        for (path, pem) in [("client-ca.crt", &client_ca), ("server-ca.crt", &server_ca)] {
            if certificates(pem).is_none() {
                return Err(format!("/v1-k3s/{path} holds no certificate in PEM"));
            }
        }
        Ok(Self { settings, authorities: Authorities { client: client_ca, server: server_ca } })
    }
}

/// The certificates that a server issued, in PEM, each with its key.
pub(super) struct Certificates {
    /// That of the node's API, behind the mark of what it is for.
    pub(super) serving: Vec<u8>,
    pub(super) client: Vec<u8>,
    /// Validity of the client's.
    pub(super) validity: Validity,
}

/// The results of a join.
pub(super) struct Given {
    pub(super) cluster: Cluster,
    /// `None`: the stored ones stay.
    pub(super) certificates: Option<Certificates>,
}

/// State at the first request to a server.
struct Greeting {
    /// The authorities of the cluster whose certificates the node has, when these need no renewal.
    held: Option<Authorities>,
    token: Option<Token>,
    certificate: Option<Vec<u8>>,
    /// The authority that is trusted already.
    authority: Option<Vec<u8>>,
}

/// The state of joining. `held` is that of [`Greeting`].
enum State {
    /// The node's files are being read.
    Inspecting,
    /// The token and the node's other credentials are being read.
    ReadingToken { held: Option<Authorities> },
    /// The server's authorities are being fetched.
    FetchingAuthority(Greeting),
    /// The settings and the authorities of the cluster are being fetched.
    FetchingCluster { held: Option<Authorities>, credentials: Rc<Credentials> },
    /// The node's password is being read, or made.
    ReadingPassword { cluster: Cluster, credentials: Rc<Credentials> },
    /// The certificates are being requested.
    RequestingCertificates { cluster: Cluster, credentials: Rc<Credentials> },
    /// The results are being written.
    Storing { renewed: Option<Validity>, credentials: Rc<Credentials> },
    /// The API client is being sent to the servers anew.
    Publishing { credentials: Rc<Credentials> },
    /// The certificates of the components are being requested, and written.
    RequestingComponents,
    /// The list of servers is being fetched since `began`; then there is a wait of `pause`.
    FetchingServers { began: Mono, pause: Duration },
    /// The list of servers is being written; `wrong`: with what was skipped of it.
    StoringServers { began: Mono, pause: Duration, wrong: String },
    /// Until the next inspection of the files.
    Waiting,
}

/// The next action, with the outcome that follows it; [`Outcome::Failed`] may follow any but the last.
pub(super) enum Step {
    /// [`Outcome::Inspected`]
    Inspect,
    /// [`Outcome::Identified`]
    ReadToken,
    /// Fetch `/cacerts` from a server that is not verified, without a secret: [`Outcome::Authority`].
    FetchAuthority,
    /// [`Outcome::Described`]
    FetchCluster(Rc<Credentials>),
    /// [`Outcome::Password`]
    ReadPassword,
    /// [`Outcome::Issued`]
    RequestCertificates { credentials: Rc<Credentials>, password: String },
    /// Send the settings to the agent's other tasks, then write everything: [`Outcome::Stored`]. In this order the first pods that
    /// the API server names find the settings.
    Store(Box<Given>),
    /// Let the API client use the files: [`Outcome::Published`].
    Publish { is_renewed: bool },
    /// [`Outcome::ComponentsStored`]
    RequestComponents(Rc<Credentials>),
    /// [`Outcome::Servers`] or [`Outcome::NoServers`]
    FetchServers,
    /// [`Outcome::ServersStored`]
    StoreServers(List),
    /// [`Outcome::Waited`], or [`Outcome::TunnelLost`] before.
    Wait(Duration),
}

/// The result of a step.
pub(super) enum Outcome {
    /// The reason as a sentence with its remedy.
    Failed(String),
    Inspected(Inspection),
    Identified(Identity),
    /// The server's host, and its `/cacerts`.
    Authority {
        host: String,
        pem: Vec<u8>,
    },
    Described(Box<Cluster>),
    Password(String),
    Issued(Certificates),
    Stored,
    Published,
    /// With the shortest validity of them.
    ComponentsStored(Validity),
    /// The list of servers, as it was sent.
    Servers(Vec<u8>),
    /// There is no list, with the reason as a sentence.
    NoServers {
        refused: Refused,
        why: String,
    },
    ServersStored,
    /// The time is over, or the node's addresses changed.
    Waited,
    TunnelLost,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Info(String),
    Warn(String),
}

/// The next step, with its log line.
pub(super) struct Next {
    pub(super) line: Option<Line>,
    pub(super) step: Step,
}

/// When the list of servers is fetched.
struct ServersDue {
    at: Mono,
    /// How long after a try that brought nothing the next one is.
    wait: Duration,
    /// What was logged of the last one; empty: nothing.
    logged: String,
}

/// Joining: its state, and what it remembers from round to round.
pub(super) struct Joining {
    state: State,
    node: Box<str>,
    /// The server has answered since the start.
    is_greeted: bool,
    /// When it is greeted again: a tunnel was lost.
    greet_again: Option<Mono>,
    /// The node has everything it needs, with certificates that are not to be renewed yet.
    is_provided: bool,
    /// It was logged that the token pins no authority.
    is_warned: bool,
    /// A new certificate is not renewed before this instant, whatever the clock says.
    renewed_after: Mono,
    retry: RetryWait,
    /// The failure that was logged last; empty after a success.
    failure: String,
    servers: ServersDue,
    components: ComponentsDue,
}

impl Joining {
    /// The first step is [`Step::Inspect`].
    pub(super) fn new(node: &str, now: Mono) -> Self {
        Self {
            state: State::Inspecting,
            node: node.into(),
            is_greeted: false,
            greet_again: None,
            is_provided: false,
            is_warned: false,
            renewed_after: now,
            retry: RetryWait::new(seed(node)),
            failure: String::new(),
            servers: ServersDue { at: now, wait: KUBE_RETRY_MIN, logged: String::new() },
            components: ComponentsDue::new(now),
        }
    }

    /// Handles an outcome: sets the state, and returns the next step.
    pub(super) fn next(mut self, outcome: Outcome, now: Now) -> (Self, Next) {
        // Every transition below sets the next state; one that does not leads to an inspection of the files.
        let state = std::mem::replace(&mut self.state, State::Inspecting);
        let next = match (outcome, state) {
            (
                Outcome::Failed(why),
                State::FetchingServers { pause, .. } | State::StoringServers { pause, .. },
            ) => self.servers_failed(why, pause, now),
            (Outcome::Failed(why), State::RequestingComponents) => self.components_failed(&why, now),
            (Outcome::Failed(why), _) => self.failed(why, now),
            (Outcome::Inspected(found), State::Inspecting) => self.inspected(found, now),
            (Outcome::Identified(identity), State::ReadingToken { held }) => {
                self.identified(identity, held, now)
            }
            (Outcome::Authority { host, pem }, State::FetchingAuthority(greeting)) => {
                self.authority(&host, pem, greeting, now)
            }
            (Outcome::Described(cluster), State::FetchingCluster { held, credentials }) => {
                self.described(*cluster, held.as_ref(), credentials)
            }
            (Outcome::Password(password), State::ReadingPassword { cluster, credentials }) => {
                self.state = State::RequestingCertificates { cluster, credentials: credentials.clone() };
                Next::quiet(Step::RequestCertificates { credentials, password })
            }
            (Outcome::Issued(certificates), State::RequestingCertificates { cluster, credentials }) => {
                self.store(cluster, Some(certificates), credentials)
            }
            (Outcome::Stored, State::Storing { renewed, credentials }) => {
                self.stored(renewed, credentials, now)
            }
            (Outcome::Published, State::Publishing { credentials }) if self.components.is_due(now.mono) => {
                self.state = State::RequestingComponents;
                Next::quiet(Step::RequestComponents(credentials))
            }
            // Whatever is wrong with what it gave, the server is not asked again at once.
            (Outcome::Published, State::Publishing { .. }) => self.succeeded(CSR_RETRY_MIN, now),
            (Outcome::ComponentsStored(validity), State::RequestingComponents) => {
                self.components.stored(validity, now.mono);
                self.succeeded(CSR_RETRY_MIN, now)
            }
            (Outcome::Servers(list), State::FetchingServers { began, pause }) => {
                self.listed(&list, began, pause, now)
            }
            (Outcome::NoServers { refused, why }, State::FetchingServers { began, pause }) => match refused {
                // An older server knows no such list.
                Refused::Status(404, _) => self.servers_known(String::new(), began, pause, now),
                // Who is not there was said of the connection and the tunnels.
                Refused::Unreachable(_) | Refused::Untrusted => self.wait(pause, None, now),
                Refused::Status(..) => self.servers_failed(why, pause, now),
            },
            (Outcome::ServersStored, State::StoringServers { began, pause, wrong }) => {
                self.servers_known(wrong, began, pause, now)
            }
            (Outcome::Waited, State::Waiting) => Next::quiet(Step::Inspect),
            (Outcome::TunnelLost, State::Waiting) => {
                let at = now.mono + K3S_LOST_WAIT;
                self.servers.at = self.servers.at.min(at);
                self.greet_again.get_or_insert(at);
                Next::quiet(Step::Inspect)
            }
            // Of no step of this state: the next round begins like any other.
            (
                Outcome::Inspected(_)
                | Outcome::Identified(_)
                | Outcome::Authority { .. }
                | Outcome::Described(_)
                | Outcome::Password(_)
                | Outcome::Issued(_)
                | Outcome::Stored
                | Outcome::Published
                | Outcome::ComponentsStored(_)
                | Outcome::Servers(_)
                | Outcome::NoServers { .. }
                | Outcome::ServersStored
                | Outcome::Waited
                | Outcome::TunnelLost,
                _,
            ) => self.failed("a step has the outcome of another one".to_owned(), now),
        };
        (self, next)
    }

    /// | certificates hold | authorities and settings | server heard | components' certificates | next                    |
    /// |-------------------|--------------------------|--------------|--------------------------|-------------------------|
    /// | yes               | both                     | yes          | not due                  | wait until they are due |
    /// | otherwise         |                          |              |                          | greet the server        |
    fn inspected(&mut self, found: Inspection, now: Now) -> Next {
        let due = found.certificate.map(|validity| component::due(validity, now.wall, seed(&self.node)));
        let held_for = match due {
            Some(Due::Later(pause)) => Some(pause),
            Some(Due::Now | Due::Ended) if self.renewed_after > now.mono => Some(CERTIFICATE_CHECK_PERIOD),
            Some(Due::Now | Due::Ended) | None => None,
        };
        self.is_provided = held_for.is_some() && found.is_complete();
        let components = self.components.inspect(found.components, seed(&self.node), now);
        match held_for {
            Some(pause)
                if self.is_provided
                    && self.is_greeted
                    && !self.greets_again(now)
                    && !components.is_zero() =>
            {
                self.succeeded(pause.min(components), now)
            }
            Some(_) | None => {
                self.state = State::ReadingToken { held: found.authorities.filter(|_| held_for.is_some()) };
                Next::quiet(Step::ReadToken)
            }
        }
    }

    fn identified(&mut self, identity: Identity, held: Option<Authorities>, now: Now) -> Next {
        let Identity { token, certificate, authority } = identity;
        let token = match token {
            // Whoever is known by a certificate needs no token, which may have ended meanwhile, or be gone.
            Err(_) if certificate.is_some() && authority.is_some() => None,
            Err(why) => return self.failed(why, now),
            Ok(token) => Some(token),
        };
        self.state = State::FetchingAuthority(Greeting { held, token, certificate, authority });
        Next::quiet(Step::FetchAuthority)
    }

    /// | the token has a hash | an authority was trusted before | trusted now                                   |
    /// |----------------------|---------------------------------|-----------------------------------------------|
    /// | yes                  |                                 | what of `pem` has this hash, or none          |
    /// | no                   | yes                             | the same as before                            |
    /// | no                   | no                              | `pem`, with a warning                         |
    fn authority(&mut self, host: &str, pem: Vec<u8>, greeting: Greeting, now: Now) -> Next {
        let hash = greeting.token.as_ref().and_then(|token| token.authority.as_deref());
        let mut line = None;
        let authority = match (hash, greeting.authority.clone()) {
            (Some(hash), _) => match pinned(&pem, hash) {
                Ok(authority) => authority,
                Err(why) => return self.failed(format!("k3s server {host}: {why}"), now),
            },
            (None, Some(before)) => before,
            (None, None) => {
                line = (!std::mem::replace(&mut self.is_warned, true)).then(|| {
                    Line::Warn(format!(
                        "joining: the token has no CA hash; trusting the CA of k3s server {host} on first use; use the whole \
                         token of {TOKEN_FILE}"
                    ))
                });
                pem.clone()
            }
        };
        let Greeting { held, token, certificate, .. } = greeting;
        let authorization = token.map(|token| token.authorization);
        let credentials = Rc::new(Credentials { authority, intermediates: pem, certificate, authorization });
        self.state = State::FetchingCluster { held, credentials: credentials.clone() };
        Next { line, step: Step::FetchCluster(credentials) }
    }

    fn greets_again(&self, now: Now) -> bool {
        self.greet_again.is_some_and(|at| at <= now.mono)
    }

    /// Certificates that hold stay, unless they are another cluster's.
    fn described(
        &mut self,
        cluster: Cluster,
        held: Option<&Authorities>,
        credentials: Rc<Credentials>,
    ) -> Next {
        if held == Some(&cluster.authorities) {
            return self.store(cluster, None, credentials);
        }
        self.state = State::ReadingPassword { cluster, credentials };
        Next::quiet(Step::ReadPassword)
    }

    fn store(
        &mut self,
        cluster: Cluster,
        certificates: Option<Certificates>,
        credentials: Rc<Credentials>,
    ) -> Next {
        let renewed = certificates.as_ref().map(|certificates| certificates.validity);
        self.state = State::Storing { renewed, credentials };
        Next::quiet(Step::Store(Box::new(Given { cluster, certificates })))
    }

    fn stored(&mut self, renewed: Option<Validity>, credentials: Rc<Credentials>, now: Now) -> Next {
        self.is_greeted = true;
        self.greet_again = None;
        let line = renewed.map(|validity| {
            self.renewed_after = now.mono + csr::least_age(validity);
            self.components.renew(now.mono);
            Line::Info(format!("node {}: client certificate valid until {}", self.node, validity.until))
        });
        self.state = State::Publishing { credentials };
        Next { line, step: Step::Publish { is_renewed: renewed.is_some() } }
    }

    /// The node has joined without them; they are asked for again in the next round that finds them due.
    fn components_failed(&mut self, why: &str, now: Now) -> Next {
        let is_news = self.components.failed(why, now.mono);
        let next = self.succeeded(CSR_RETRY_MIN, now);
        let text = || format!("joining: no credentials for {why}; retrying");
        Next { line: is_news.then(|| Line::Warn(text())), ..next }
    }

    /// The round has succeeded.
    fn succeeded(&mut self, pause: Duration, now: Now) -> Next {
        self.retry.succeeded();
        self.failure.clear();
        self.end_round(pause, None, now)
    }

    /// The round has failed: another failure than the last one is logged. A node that has what it needs asks for news only.
    fn failed(&mut self, why: String, now: Now) -> Next {
        let line = (why != self.failure).then(|| Line::Warn(format!("joining failed: {why}; retrying")));
        self.failure = why;
        let pause = match self.is_provided {
            true if self.greet_again.is_some() => K3S_LOST_WAIT,
            true => CERTIFICATE_CHECK_PERIOD,
            false => self.retry.failed(),
        };
        self.end_round(pause, line, now)
    }

    /// Before the wait the list of servers is fetched, when it is due. The longer nobody knows it, the more seldom.
    fn end_round(&mut self, pause: Duration, line: Option<Line>, now: Now) -> Next {
        let began = now.mono;
        if !self.is_greeted || self.servers.at > began {
            return self.wait(pause, line, now);
        }
        self.servers.at = began + self.servers.wait;
        self.servers.wait = (2 * self.servers.wait).min(K3S_LIST_PERIOD);
        self.state = State::FetchingServers { began, pause };
        Next { line, step: Step::FetchServers }
    }

    fn wait(&mut self, pause: Duration, line: Option<Line>, now: Now) -> Next {
        let until_list = self.servers.at.since(now.mono);
        let until_greeting = self.greet_again.map(|at| at.since(now.mono)).filter(|left| !left.is_zero());
        let pause = if self.is_greeted { pause.min(until_list) } else { pause };
        self.state = State::Waiting;
        Next { line, step: Step::Wait(until_greeting.map_or(pause, |left| left.min(pause))) }
    }

    fn listed(&mut self, list: &[u8], began: Mono, pause: Duration, now: Now) -> Next {
        match List::parse(list) {
            // The cluster does not know its servers at the moment: the known ones are kept.
            Ok(List { servers, skipped: None }) if servers.is_empty() => self.wait(pause, None, now),
            Ok(List { servers, skipped: Some(wrong) }) if servers.is_empty() => {
                self.servers_failed(wrong, pause, now)
            }
            Ok(list) => {
                let wrong = list.skipped.clone().unwrap_or_default();
                self.state = State::StoringServers { began, pause, wrong };
                Next::quiet(Step::StoreServers(list))
            }
            Err(why) => self.servers_failed(why, pause, now),
        }
    }

    /// The list that was fetched since `began` is in use.
    fn servers_known(&mut self, wrong: String, began: Mono, pause: Duration, now: Now) -> Next {
        self.servers.at = began + K3S_LIST_PERIOD;
        self.servers.wait = KUBE_RETRY_MIN;
        self.servers_failed(wrong, pause, now)
    }

    /// `wrong`: with the list, or with a part of it; empty: nothing.
    fn servers_failed(&mut self, wrong: String, pause: Duration, now: Now) -> Next {
        let is_news = !wrong.is_empty() && wrong != self.servers.logged;
        let line =
            is_news.then(|| Line::Warn(format!("joining: the servers at /v1-k3s/apiservers: {wrong}")));
        self.servers.logged = wrong;
        self.wait(pause, line, now)
    }
}

impl Next {
    fn quiet(step: Step) -> Self {
        Self { line: None, step }
    }
}

#[cfg(test)]
mod tests;
