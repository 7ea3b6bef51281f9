//! The state machine of a node that joins a k3s server. PURE.
//!
//! ```text
//!     Inspecting ─► ReadingToken ─► FetchingAuthority ─► FetchingCluster ─► ReadingPassword ─► RequestingCertificates
//!         ▲ │                                                   │                                          │
//!         │ │                                                   │ certificates hold, same cluster          ▼
//!         │ │ certificates hold, server heard                   └──────────────► Storing ◄─────────────────┘
//!         │ ▼                                                                       ▼
//!     Waiting ◄──────────── FetchingServers, StoringServers ◄──────────────── Publishing
//!                           when the list of servers is due
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
    RequestingCertificates { cluster: Cluster },
    /// The results are being written.
    Storing { renewed: Option<Validity> },
    /// The API client is being sent to the servers anew.
    Publishing,
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
                self.state = State::RequestingCertificates { cluster };
                Next::quiet(Step::RequestCertificates { credentials, password })
            }
            (Outcome::Issued(certificates), State::RequestingCertificates { cluster }) => {
                self.store(cluster, Some(certificates))
            }
            (Outcome::Stored, State::Storing { renewed }) => self.stored(renewed, now),
            // Whatever is wrong with what it gave, the server is not asked again at once.
            (Outcome::Published, State::Publishing) => self.succeeded(CSR_RETRY_MIN, now),
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

    /// | certificates hold | authorities and settings | server heard | next                    |
    /// |-------------------|--------------------------|--------------|-------------------------|
    /// | yes               | both                     | yes          | wait until they are due |
    /// | otherwise         |                          |              | greet the server        |
    fn inspected(&mut self, found: Inspection, now: Now) -> Next {
        let due = found.certificate.map(|validity| csr::due(validity, now.wall, seed(&self.node)));
        let held_for = match due {
            Some(Due::Later(pause)) => Some(pause),
            Some(Due::Now | Due::Ended) if self.renewed_after > now.mono => Some(CERTIFICATE_CHECK_PERIOD),
            Some(Due::Now | Due::Ended) | None => None,
        };
        self.is_provided = held_for.is_some() && found.is_complete();
        match held_for {
            Some(pause) if self.is_provided && self.is_greeted && !self.greets_again(now) => {
                self.succeeded(pause, now)
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
            return self.store(cluster, None);
        }
        self.state = State::ReadingPassword { cluster, credentials };
        Next::quiet(Step::ReadPassword)
    }

    fn store(&mut self, cluster: Cluster, certificates: Option<Certificates>) -> Next {
        let renewed = certificates.as_ref().map(|certificates| certificates.validity);
        self.state = State::Storing { renewed };
        Next::quiet(Step::Store(Box::new(Given { cluster, certificates })))
    }

    fn stored(&mut self, renewed: Option<Validity>, now: Now) -> Next {
        self.is_greeted = true;
        self.greet_again = None;
        let line = renewed.map(|validity| {
            self.renewed_after = now.mono + csr::least_age(validity);
            Line::Info(format!("node {}: client certificate valid until {}", self.node, validity.until))
        });
        self.state = State::Publishing;
        Next { line, step: Step::Publish { is_renewed: renewed.is_some() } }
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
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::limits::KUBE_RETRY_MAX;
    use crate::model::Wall;
    use crate::x509;

    const SECOND: i64 = 1_000_000_000;
    /// The path of a node that has nothing and is given everything: each state, and the outcome that leads to the next.
    const PATH: [(&str, &str); 11] = [
        ("Inspecting", "nothing found"),
        ("ReadingToken", "token with hash"),
        ("FetchingAuthority", "authority"),
        ("FetchingCluster", "cluster"),
        ("ReadingPassword", "password"),
        ("RequestingCertificates", "certificates"),
        ("Storing", "stored"),
        ("Publishing", "published"),
        ("FetchingServers", "servers"),
        ("StoringServers", "servers stored"),
        ("Waiting", "waited"),
    ];

    fn pem(of: &str) -> Vec<u8> {
        x509::pem("CERTIFICATE", of.as_bytes()).into_bytes()
    }

    /// Of the cluster that is joined.
    fn cluster(of: &str) -> Outcome {
        Outcome::Described(Box::new(Cluster::new(Settings::default(), pem(of), pem(of)).unwrap()))
    }

    fn validity() -> Validity {
        Validity { from: Wall(0), until: Wall(100_000 * SECOND) }
    }

    fn inspected(certificate: Option<Validity>, authority: Option<&str>) -> Outcome {
        let authorities = authority.map(|of| Authorities { client: pem(of), server: pem(of) });
        Outcome::Inspected(Inspection { certificate, authorities, has_settings: authority.is_some() })
    }

    fn identified(token: Result<Option<&str>, &str>, is_known: bool) -> Outcome {
        let token = token.map_err(str::to_owned).map(|authority| Token {
            authority: authority.map(|of| crate::text::hex(&Sha256::digest(pem(of)))),
            authorization: "Basic secret".to_owned(),
        });
        let known = |name: &str| is_known.then(|| pem(name));
        Outcome::Identified(Identity { token, certificate: known("node"), authority: known("kept") })
    }

    fn authority(pem: Vec<u8>) -> Outcome {
        Outcome::Authority { host: "s".to_owned(), pem }
    }

    fn no_servers(refused: Refused) -> Outcome {
        Outcome::NoServers { refused, why: "why".to_owned() }
    }

    fn outcome(name: &str) -> Outcome {
        match name {
            "failed" => Outcome::Failed("the disk is full".to_owned()),
            "nothing found" => inspected(None, None),
            "valid certificates" => inspected(Some(validity()), Some("ca")),
            "token with hash" => identified(Ok(Some("ca")), false),
            "token with hash, known node" => identified(Ok(Some("ca")), true),
            "token without hash" => identified(Ok(None), false),
            "token without hash, known node" => identified(Ok(None), true),
            "no token" => identified(Err("--token-file: gone"), false),
            "no token, known node" => identified(Err("--token-file: gone"), true),
            "authority" => authority(pem("ca")),
            "another authority" => authority(pem("other")),
            "no authority" => authority(b"404 page not found".to_vec()),
            "cluster" => cluster("ca"),
            "another cluster" => cluster("other"),
            "password" => Outcome::Password("secret".to_owned()),
            "certificates" => {
                let (serving, client) = (pem("serving"), pem("client"));
                Outcome::Issued(Certificates { serving, client, validity: validity() })
            }
            "stored" => Outcome::Stored,
            "published" => Outcome::Published,
            "servers" => Outcome::Servers(br#"["10.0.0.1:6443"]"#.to_vec()),
            "some servers" => Outcome::Servers(br#"["10.0.0.1:6443","x"]"#.to_vec()),
            "no servers yet" => Outcome::Servers(b"[]".to_vec()),
            "hostile servers" => Outcome::Servers(br#"["x"]"#.to_vec()),
            "no list of servers" => Outcome::Servers(b"{}".to_vec()),
            "servers unknown (404)" => no_servers(Refused::Status(404, String::new())),
            "servers refused (403)" => no_servers(Refused::Status(403, String::new())),
            "servers unreachable" => no_servers(Refused::Unreachable(String::new())),
            "servers stored" => Outcome::ServersStored,
            "waited" => Outcome::Waited,
            "tunnel lost" => Outcome::TunnelLost,
            _ => panic!("{name}"),
        }
    }

    fn name(state: &State) -> &'static str {
        match state {
            State::Inspecting => "Inspecting",
            State::ReadingToken { .. } => "ReadingToken",
            State::FetchingAuthority(_) => "FetchingAuthority",
            State::FetchingCluster { .. } => "FetchingCluster",
            State::ReadingPassword { .. } => "ReadingPassword",
            State::RequestingCertificates { .. } => "RequestingCertificates",
            State::Storing { .. } => "Storing",
            State::Publishing => "Publishing",
            State::FetchingServers { .. } => "FetchingServers",
            State::StoringServers { .. } => "StoringServers",
            State::Waiting => "Waiting",
        }
    }

    /// The step of each state, which is the same whatever led to it.
    fn state_of(step: &Step) -> &'static str {
        match step {
            Step::Inspect => "Inspecting",
            Step::ReadToken => "ReadingToken",
            Step::FetchAuthority => "FetchingAuthority",
            Step::FetchCluster(_) => "FetchingCluster",
            Step::ReadPassword => "ReadingPassword",
            Step::RequestCertificates { .. } => "RequestingCertificates",
            Step::Store(_) => "Storing",
            Step::Publish { .. } => "Publishing",
            Step::FetchServers => "FetchingServers",
            Step::StoreServers(_) => "StoringServers",
            Step::Wait(_) => "Waiting",
        }
    }

    /// A node, fed with outcomes.
    struct Node {
        joining: Option<Joining>,
        now: Now,
    }

    impl Node {
        fn new() -> Self {
            let now = Now { mono: Mono(0), wall: Wall(1000 * SECOND) };
            Self { joining: Some(Joining::new("gw", now.mono)), now }
        }

        /// A node of the path above, in that state.
        fn in_state(wanted: &str) -> Self {
            let mut node = Self::new();
            for (state, next) in PATH {
                assert_eq!(node.state(), state);
                if state == wanted {
                    return node;
                }
                node.take(outcome(next));
            }
            panic!("no state {wanted}");
        }

        fn state(&self) -> &'static str {
            name(&self.joining.as_ref().unwrap().state)
        }

        fn take(&mut self, outcome: Outcome) -> Next {
            let (joining, next) = self.joining.take().unwrap().next(outcome, self.now);
            assert_eq!(name(&joining.state), state_of(&next.step));
            self.joining = Some(joining);
            next
        }

        /// The last of what follows from these.
        fn take_all(&mut self, names: &[&str]) -> Next {
            names.iter().map(|name| self.take(outcome(name))).last().unwrap()
        }

        /// How long it waits after these.
        fn wait_after(&mut self, names: &[&str]) -> Duration {
            match self.take_all(names).step {
                Step::Wait(pause) => pause,
                step => panic!("{}", state_of(&step)),
            }
        }

        fn pass(&mut self, time: Duration) {
            self.now.mono = self.now.mono + time;
            self.now.wall = Wall(self.now.wall.0 + i64::try_from(time.as_nanos()).unwrap());
        }
    }

    fn said(next: &Next) -> String {
        match &next.line {
            Some(Line::Info(text)) => format!("info: {text}"),
            Some(Line::Warn(text)) => format!("warn: {text}"),
            None => String::new(),
        }
    }

    #[test]
    fn each_state_has_its_outcomes_and_no_others() {
        const FAILED: &str = "warn: joining failed: the disk is full; retrying";
        const SERVERS: &str = "warn: joining: the servers at /v1-k3s/apiservers: ";
        // State | outcome | state that follows | what is logged.
        let rows = [
            ("Inspecting", "nothing found", "ReadingToken", ""),
            ("Inspecting", "valid certificates", "ReadingToken", ""),
            ("ReadingToken", "token with hash", "FetchingAuthority", ""),
            ("ReadingToken", "token with hash, known node", "FetchingAuthority", ""),
            ("ReadingToken", "token without hash", "FetchingAuthority", ""),
            ("ReadingToken", "token without hash, known node", "FetchingAuthority", ""),
            ("ReadingToken", "no token, known node", "FetchingAuthority", ""),
            ("ReadingToken", "no token", "Waiting", "warn: joining failed: --token-file: gone; retrying"),
            ("FetchingAuthority", "authority", "FetchingCluster", ""),
            (
                "FetchingAuthority",
                "another authority",
                "Waiting",
                "its authority is not the one of the token",
            ),
            (
                "FetchingAuthority",
                "no authority",
                "Waiting",
                "k3s server s: its /cacerts holds no certificate",
            ),
            ("FetchingCluster", "cluster", "ReadingPassword", ""),
            ("ReadingPassword", "password", "RequestingCertificates", ""),
            ("RequestingCertificates", "certificates", "Storing", ""),
            ("Storing", "stored", "Publishing", "info: node gw: client certificate valid until 1970-01-02T"),
            ("Publishing", "published", "FetchingServers", ""),
            ("FetchingServers", "servers", "StoringServers", ""),
            ("FetchingServers", "some servers", "StoringServers", ""),
            ("FetchingServers", "no servers yet", "Waiting", ""),
            ("FetchingServers", "hostile servers", "Waiting", "entries skipped that are not HOST:PORT: 1"),
            ("FetchingServers", "no list of servers", "Waiting", "is no list"),
            ("FetchingServers", "servers unknown (404)", "Waiting", ""),
            ("FetchingServers", "servers refused (403)", "Waiting", "why"),
            ("FetchingServers", "servers unreachable", "Waiting", ""),
            ("StoringServers", "servers stored", "Waiting", ""),
            ("Waiting", "waited", "Inspecting", ""),
            ("Waiting", "tunnel lost", "Inspecting", ""),
        ];
        for (state, name, wanted, line) in rows {
            let mut node = Node::in_state(state);
            let next = node.take(outcome(name));
            let line_is_right =
                if line.is_empty() { said(&next).is_empty() } else { said(&next).contains(line) };
            assert!(
                node.state() == wanted && line_is_right,
                "{state}, {name}: {}, {}",
                node.state(),
                said(&next)
            );
            if state == "FetchingServers" && !line.is_empty() {
                assert!(said(&next).starts_with(SERVERS), "{}", said(&next));
            }
        }
        for (state, _) in PATH {
            let mut node = Node::in_state(state);
            let line = said(&node.take(outcome("failed")));
            let of_list = format!("{SERVERS}the disk is full");
            let wanted = if state.ends_with("Servers") { of_list.as_str() } else { FAILED };
            assert_eq!(line, wanted, "{state}");
            // Every other outcome is of another state's step.
            let of_state = |wanted: &str| rows.iter().any(|(of, name, ..)| (*of, *name) == (state, wanted));
            for (_, name, ..) in rows.iter().filter(|(_, name, ..)| !of_state(name)) {
                let mut node = Node::in_state(state);
                let line = said(&node.take(outcome(name)));
                assert!(line.contains("a step has the outcome of another one"), "{state}, {name}: {line}");
                assert!(["Waiting", "FetchingServers"].contains(&node.state()), "{state}, {name}");
            }
        }
    }

    #[test]
    fn an_authority_is_trusted_on_first_use_without_a_hash_and_that_is_logged_once() {
        let mut node = Node::new();
        let next = node.take_all(&["nothing found", "token without hash", "another authority"]);
        assert!(
            said(&next)
                .starts_with("warn: joining: the token has no CA hash; trusting the CA of k3s server s")
        );
        let Step::FetchCluster(credentials) = next.step else { panic!("{}", node.state()) };
        assert_eq!(credentials.authority, pem("other"));
        assert_eq!(credentials.authorization.as_deref(), Some("Basic secret"));
        node.take_all(&["failed", "waited"]);
        assert_eq!(said(&node.take_all(&["nothing found", "token without hash", "authority"])), "");
    }

    #[test]
    fn a_known_node_without_a_token_shows_its_certificate_to_servers_of_the_kept_authority() {
        for authority in ["authority", "another authority", "no authority"] {
            let mut node = Node::in_state("ReadingToken");
            let Step::FetchCluster(credentials) = node.take_all(&["no token, known node", authority]).step
            else {
                panic!("{}", node.state())
            };
            assert_eq!((&credentials.authority, &credentials.authorization), (&pem("kept"), &None));
            assert_eq!(credentials.certificate, Some(pem("node")));
            // What it lists is no more than a way to that authority.
            let Outcome::Authority { pem, .. } = outcome(authority) else { unreachable!() };
            assert_eq!(credentials.intermediates, pem);
        }
    }

    #[test]
    fn a_node_that_has_nothing_retries_with_back_off_and_logs_each_reason_once() {
        let mut node = Node::new();
        for n in 0..12_u32 {
            let next = node.take(outcome("failed"));
            assert_eq!(said(&next).is_empty(), n > 0, "{n}");
            let Step::Wait(pause) = next.step else { panic!("{}", node.state()) };
            let least = (KUBE_RETRY_MIN * (1 << n)).min(KUBE_RETRY_MAX);
            assert!((least..=2 * least).contains(&pause), "{n}: {pause:?}");
            node.take(outcome("waited"));
        }
        let other = node.take_all(&["nothing found", "no token"]);
        assert_eq!(said(&other), "warn: joining failed: --token-file: gone; retrying");
        node.take(outcome("waited"));
        // A success ends it.
        let all: Vec<&str> = PATH.iter().map(|(_, next)| *next).collect();
        node.take_all(&all);
        let next = node.take(outcome("failed"));
        assert_eq!(said(&next), "warn: joining failed: the disk is full; retrying");
        assert!(matches!(next.step, Step::Wait(pause) if pause <= 2 * KUBE_RETRY_MIN));
    }

    #[test]
    fn a_joined_node_greets_its_server_at_the_start_and_keeps_its_certificates() {
        let greet = ["valid certificates", "token with hash", "authority"];
        let mut node = Node::new();
        node.take_all(&greet);
        let Step::Store(given) = node.take(outcome("cluster")).step else { panic!("{}", node.state()) };
        assert!(given.certificates.is_none());
        let next = node.take(outcome("stored"));
        assert_eq!(said(&next), "");
        assert!(matches!(next.step, Step::Publish { is_renewed: false, .. }));
        assert_eq!(node.wait_after(&["published", "servers", "servers stored"]), CSR_RETRY_MIN);
        // From then on it waits for their renewal, and looks at them every so often.
        node.pass(CSR_RETRY_MIN);
        let pause = node.wait_after(&["waited", "valid certificates"]);
        assert_eq!(pause + CSR_RETRY_MIN, K3S_LIST_PERIOD);

        // Its server is away: it has what it needs, and is in no hurry.
        let mut node = Node::new();
        assert_eq!(
            node.wait_after(&["valid certificates", "token with hash", "failed"]),
            CERTIFICATE_CHECK_PERIOD
        );
        assert_eq!(node.wait_after(&["waited", "failed"]), CERTIFICATE_CHECK_PERIOD);

        // The server has other authorities: the certificates are of another cluster.
        let mut node = Node::new();
        node.take_all(&greet);
        node.take(outcome("another cluster"));
        assert_eq!(node.state(), "ReadingPassword");

        // Without the settings or the authorities it asks again, though its certificates hold.
        let mut node = Node::in_state("Waiting");
        node.take(outcome("waited"));
        node.take(inspected(Some(validity()), None));
        node.take_all(&["token with hash", "authority", "cluster"]);
        assert_eq!(node.state(), "ReadingPassword");
    }

    #[test]
    fn certificates_are_renewed_before_they_end_and_new_ones_not_before_half_of_their_life() {
        let mut node = Node::in_state("Waiting");
        let renew = ["waited", "valid certificates"];
        node.pass(CSR_RETRY_MIN);
        node.wait_after(&renew);
        // The clock is set to behind the end.
        node.now.wall = Wall(validity().until.0 + SECOND);
        let rest = node.joining.as_ref().unwrap().renewed_after.since(node.now.mono);
        assert_eq!(rest + CSR_RETRY_MIN, csr::least_age(validity()));
        assert_eq!(node.wait_after(&renew) + CSR_RETRY_MIN, K3S_LIST_PERIOD, "it is new");
        node.pass(rest);
        node.take_all(&renew);
        assert_eq!(node.state(), "ReadingToken");
        let given = node.take_all(&["token with hash", "authority", "cluster", "password", "certificates"]);
        assert!(matches!(given.step, Step::Store(given) if given.certificates.is_some()));
        assert!(matches!(node.take(outcome("stored")).step, Step::Publish { is_renewed: true, .. }));
        assert!(node.joining.as_ref().unwrap().renewed_after > node.now.mono);

        // Late in their life, by a clock that is right.
        let mut node = Node::in_state("Waiting");
        node.pass(Duration::from_secs(95_000));
        node.take_all(&renew);
        assert_eq!(node.state(), "ReadingToken");
    }

    #[test]
    fn the_list_of_servers_is_fetched_seldom_while_nobody_knows_it_and_soon_after_a_tunnel_was_lost() {
        let mut node = Node::in_state("FetchingServers");
        let mut waits = Vec::new();
        for _ in 0..12 {
            let pause = node.wait_after(&["servers unreachable"]).min(CSR_RETRY_MIN);
            let due = node.joining.as_ref().unwrap().servers.at.since(node.now.mono);
            assert_eq!(pause, due.min(CSR_RETRY_MIN));
            waits.push(due);
            node.pass(due);
            node.take_all(&["waited", "valid certificates"]);
        }
        assert_eq!(waits[..3], [KUBE_RETRY_MIN, 2 * KUBE_RETRY_MIN, 4 * KUBE_RETRY_MIN]);
        assert_eq!(waits.last(), Some(&K3S_LIST_PERIOD));
        // It is known: what is wrong with a part of it is logged once.
        for line in [
            "warn: joining: the servers at /v1-k3s/apiservers: entries skipped that are not HOST:PORT: 1",
            "",
        ] {
            node.pass(KUBE_RETRY_MIN);
            let next = node.take_all(&["some servers", "servers stored"]);
            assert!(said(&next).starts_with(line) && said(&next).is_empty() == line.is_empty());
            let Step::Wait(pause) = next.step else { panic!("{}", node.state()) };
            assert_eq!(pause + KUBE_RETRY_MIN, K3S_LIST_PERIOD, "since it was asked for");
            node.pass(pause);
            node.take_all(&["waited", "valid certificates"]);
            assert_eq!(node.state(), "FetchingServers");
        }
        node.take_all(&["servers", "servers stored", "tunnel lost"]);
        assert_eq!(node.wait_after(&["valid certificates"]), K3S_LOST_WAIT);
    }

    #[test]
    fn a_server_is_greeted_again_after_a_tunnel_was_lost() {
        let mut node = Node::in_state("Waiting");
        node.take_all(&["tunnel lost", "valid certificates"]);
        node.pass(K3S_LOST_WAIT / 2);
        // Another one was lost meanwhile.
        node.take_all(&["tunnel lost", "valid certificates"]);
        assert_eq!(node.state(), "Waiting");
        node.pass(K3S_LOST_WAIT / 2);
        node.take_all(&["waited", "valid certificates"]);
        assert_eq!(node.state(), "ReadingToken");
        // It is not there yet.
        node.take(outcome("failed"));
        assert_eq!(node.wait_after(&["servers unreachable"]), K3S_LOST_WAIT.min(KUBE_RETRY_MIN));
        node.pass(K3S_LOST_WAIT);
        let greet = ["waited", "valid certificates", "token with hash", "authority", "cluster", "stored"];
        let next = node.take_all(&greet);
        assert!(matches!(next.step, Step::Publish { is_renewed: false }));
        // Heard, it is not greeted any more.
        node.take_all(&["published", "servers", "servers stored"]);
        assert_eq!(node.state(), "Waiting");
        node.pass(2 * K3S_LOST_WAIT);
        node.take_all(&["waited", "valid certificates"]);
        assert_eq!(node.state(), "Waiting");

        // It has another authority.
        let mut node = Node::in_state("Waiting");
        node.take_all(&["tunnel lost", "valid certificates"]);
        node.pass(K3S_LOST_WAIT);
        node.take_all(&[
            "waited",
            "valid certificates",
            "token without hash, known node",
            "another authority",
        ]);
        node.take_all(&["another cluster"]);
        assert_eq!(node.state(), "ReadingPassword");
    }

    #[test]
    fn only_what_is_usable_and_for_this_node_counts() {
        let signed_for = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            let signed = params.self_signed(&key).unwrap();
            let own =
                [x509::pem("CERTIFICATE", signed.der()), x509::pem("PRIVATE KEY", key.serialized_der())];
            own.concat().into_bytes()
        };
        let own = signed_for("system:node:gw");
        let marked = |mark: &str| Some([mark.as_bytes(), &own].concat());
        let whole = || Found {
            certificate: Some(validity()),
            client: Some(own.clone()),
            serving: marked("# gw 10.0.0.2\n"),
            client_ca: Some(pem("client")),
            server_ca: Some(pem("server")),
            has_settings: true,
        };
        let damaged = || Some(b"damaged".to_vec());
        // What is wrong | the files | certificates hold | authorities are there.
        for (what, found, holds, authorities) in [
            ("nothing", whole(), true, true),
            ("no kubeconfig", Found { certificate: None, ..whole() }, false, true),
            ("no certificate", Found { client: None, ..whole() }, false, true),
            ("damaged certificate", Found { client: damaged(), ..whole() }, false, true),
            (
                "another node's certificate",
                Found { client: Some(signed_for("system:node:old")), ..whole() },
                false,
                true,
            ),
            ("nobody's certificate", Found { client: Some(signed_for("gw")), ..whole() }, false, true),
            ("no serving certificate", Found { serving: None, ..whole() }, false, true),
            ("unmarked", Found { serving: Some(own.clone()), ..whole() }, false, true),
            ("damaged", Found { serving: Some(b"# gw 10.0.0.2\ndamaged".to_vec()), ..whole() }, false, true),
            ("renamed node", Found { serving: marked("# old 10.0.0.2\n"), ..whole() }, false, true),
            ("other address", Found { serving: marked("# gw 10.0.0.3\n"), ..whole() }, false, true),
            ("no client authority", Found { client_ca: None, ..whole() }, true, false),
            ("damaged server authority", Found { server_ca: damaged(), ..whole() }, true, false),
        ] {
            let inspection = Inspection::new(found, "gw", "# gw 10.0.0.2\n", true);
            let shown = (inspection.certificate.is_some(), inspection.authorities.is_some());
            assert_eq!(shown, (holds, authorities), "{what}");
            assert_eq!(inspection.is_complete(), authorities, "{what}");
        }
        assert!(Inspection::new(whole(), "gw", "# gw \n", false).certificate.is_some(), "no address yet");
        assert!(!Inspection::new(Found { has_settings: false, ..whole() }, "gw", "", true).is_complete());
        let wrong = |client: &[u8], server: &[u8]| {
            Cluster::new(Settings::default(), client.to_vec(), server.to_vec()).err().unwrap()
        };
        assert_eq!(wrong(b"", &pem("ca")), "/v1-k3s/client-ca.crt holds no certificate in PEM");
        assert_eq!(wrong(&pem("ca"), b""), "/v1-k3s/server-ca.crt holds no certificate in PEM");
    }
}
