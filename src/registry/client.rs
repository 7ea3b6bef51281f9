//! Requests to registries: connections, TLS, proxies, authorization, redirects, and errors of the distribution specification.
//!
//! A client lives as long as a pull. It keeps the authorization and a few idle connections of the hosts that it talks to.

use std::cell::RefCell;
use std::rc::Rc;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tls")]
use futures_rustls::rustls::client::ClientConfig;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, RANGE,
    USER_AGENT, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Uri};

use super::challenge::{self, Challenge};
use super::endpoint::{Endpoint, TlsOptions};
use super::http::{Answer, Connection, within};
use super::{Environment, RegistryError, RegistryResult, token};
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::limits::{
    REGISTRY_ANSWER_TIME, REGISTRY_CONNECT_TIME, REGISTRY_ENDPOINTS_MAX, REGISTRY_ERROR_BYTES_MAX,
    REGISTRY_IDLE_CONNECTIONS_MAX, REGISTRY_MESSAGE_BYTES_MAX, REGISTRY_REDIRECTS_MAX,
    REGISTRY_RETRY_AFTER_MAX, REGISTRY_TOKEN_ANSWER_BYTES_MAX,
};
use crate::model::Mono;
use crate::net::http::HttpGet;
use crate::net::{Address, Lookups};
use crate::stream::{Stream, stream};
use crate::text::start_of;

pub use super::token::Credentials;

/// A client for the hosts of one pull.
pub struct Client {
    clock: SharedClock,
    lookups: Lookups,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "only TLS needs files"))]
    blocking: Rc<Blocking>,
    environment: Environment,
    /// Those of the pull, for hosts without their own that they are for.
    credentials: Option<Credentials>,
    /// One for each host; at most [`REGISTRY_ENDPOINTS_MAX`]. Full: the oldest is forgotten, and asked for again.
    grants: RefCell<Vec<(String, Grant)>>,
    /// Hosts that could not be connected to, or did not answer; at most [`REGISTRY_ENDPOINTS_MAX`]. Full: a further one keeps its place.
    silent: RefCell<Vec<String>>,
    /// At most [`REGISTRY_IDLE_CONNECTIONS_MAX`]. Full: a further one is closed.
    idle: RefCell<Vec<(Site, Connection)>>,
    /// One for each set of options; at most [`REGISTRY_ENDPOINTS_MAX`].
    #[cfg(feature = "tls")]
    tls: RefCell<Vec<(TlsOptions, Arc<ClientConfig>)>>,
}

/// The value of `Authorization`, and until when it is used.
#[derive(Clone)]
struct Grant {
    header: HeaderValue,
    until: Option<Mono>,
}

/// Where a connection leads.
#[derive(Clone, PartialEq, Eq)]
struct Site {
    tls: bool,
    address: Address,
    options: TlsOptions,
}

/// A request for a part of a repository.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) endpoint: &'a Endpoint,
    pub(super) repository: &'a str,
    /// `manifests/latest`, `blobs/sha256:…`.
    pub(super) part: &'a str,
    pub(super) accept: &'static str,
    /// From this byte on.
    pub(super) from: u64,
}

/// One request, without redirects.
struct Sent<'a> {
    method: Method,
    url: &'a HttpGet,
    options: &'a TlsOptions,
    headers: HeaderMap,
    form: Option<String>,
}

impl Client {
    /// A client with the credentials of a pull.
    pub fn new(
        clock: SharedClock,
        lookups: Lookups,
        blocking: Rc<Blocking>,
        environment: Environment,
        credentials: Option<Credentials>,
    ) -> Self {
        Self {
            clock,
            lookups,
            blocking,
            environment,
            credentials,
            grants: RefCell::default(),
            silent: RefCell::default(),
            idle: RefCell::default(),
            #[cfg(feature = "tls")]
            tls: RefCell::default(),
        }
    }

    /// The clock of its deadlines.
    pub(super) fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// Checks that the host speaks the protocol, and accepts the credentials (`GET /v2/`).
    ///
    /// # Errors
    /// It does not.
    pub async fn ping(&self, endpoint: &Endpoint) -> RegistryResult<()> {
        let call = Call {
            method: Method::GET,
            endpoint,
            repository: "",
            part: "",
            accept: "application/json",
            from: 0,
        };
        let answer = self.send(&call).await?;
        if let Ok((_, connection)) = self.small(answer, REGISTRY_ERROR_BYTES_MAX).await {
            self.keep(endpoint, connection);
        }
        Ok(())
    }

    /// Sends a request, with authorization when the host asks for it, and follows redirects. The response has a status of
    /// success, or is 416.
    ///
    /// # Errors
    /// Everything else; the message names the request, and what the registry says.
    pub(super) async fn send(&self, call: &Call<'_>) -> RegistryResult<Answer> {
        let mut is_renewed = false;
        loop {
            let grant = self.grant(call.endpoint);
            let followed = self.follow(call, grant.as_ref()).await;
            self.note_answer(call.endpoint, !matches!(followed, Err(RegistryError::Unreachable(_))));
            let (answer, url, is_at_endpoint) = followed?;
            match answer.status {
                200..300 | 416 => return Ok(answer),
                401 if is_at_endpoint && !is_renewed => {
                    is_renewed = true;
                    let challenges = challenges(&answer.headers);
                    self.forget(call.endpoint);
                    let shown = shown(&call.method, &url);
                    let grant = match self.authorize(call, &challenges).await {
                        Ok(Some(grant)) => grant,
                        Ok(None) => {
                            return Err(denied(
                                &shown,
                                &self.refusal(answer).await,
                                self.has_credentials(call.endpoint),
                            ));
                        }
                        Err(error) => return Err(error.while_doing("failed to authorize")),
                    };
                    self.remember(call.endpoint, grant);
                    if let Ok((_, connection)) = self.small(answer, REGISTRY_ERROR_BYTES_MAX).await {
                        self.keep(call.endpoint, connection);
                    }
                }
                status => {
                    let has_credentials = self.has_credentials(call.endpoint);
                    return Err(self
                        .failure(status, &shown(&call.method, &url), answer, has_credentials)
                        .await);
                }
            }
        }
    }

    /// All of a small response, and the connection for the next request.
    pub(super) async fn small(
        &self,
        answer: Answer,
        bytes_max: usize,
    ) -> Result<(Vec<u8>, Connection), String> {
        within(&self.clock, REGISTRY_ANSWER_TIME, answer.whole(bytes_max)).await
    }

    /// Keeps a connection for the next request to its host, which the endpoint has redirected to if it is not its own.
    pub(super) fn keep(&self, endpoint: &Endpoint, connection: Connection) {
        let (tls, address) = connection.site().clone();
        let mut idle = self.idle.borrow_mut();
        if idle.len() < REGISTRY_IDLE_CONNECTIONS_MAX {
            idle.push((Site { tls, address, options: endpoint.tls_options.clone() }, connection));
        }
    }

    /// The response, its URL, and whether that is still on the endpoint's host.
    async fn follow(
        &self,
        call: &Call<'_>,
        grant: Option<&Grant>,
    ) -> RegistryResult<(Answer, HttpGet, bool)> {
        let endpoint = call.endpoint;
        let mut url = if call.part.is_empty() {
            endpoint.url("/")
        } else {
            endpoint.url_of(call.repository, call.part)
        };
        let mut is_at_endpoint = true;
        for _ in 0..=REGISTRY_REDIRECTS_MAX {
            let mut headers = HeaderMap::new();
            if is_at_endpoint {
                headers.extend(endpoint.headers.clone());
                if let Some(grant) = grant {
                    headers.insert(AUTHORIZATION, grant.header.clone());
                }
            }
            headers.insert(ACCEPT, HeaderValue::from_static(call.accept));
            if call.from > 0
                && let Ok(range) = HeaderValue::try_from(format!("bytes={}-", call.from))
            {
                headers.insert(RANGE, range);
            }
            let sent = Sent {
                method: call.method.clone(),
                url: &url,
                options: &endpoint.tls_options,
                headers,
                form: None,
            };
            let answer = self.exchange(sent).await?;
            if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
                return Ok((answer, url, is_at_endpoint));
            }
            let location = answer.headers.get(LOCATION).and_then(|to| to.to_str().ok());
            let next =
                location.and_then(|location| url.resolved(location)).filter(|to| !to.address.host.is_empty());
            let Some(next) = next else {
                let shown = shown(&call.method, &url);
                return Err(RegistryError::Content(format!("{shown}: a redirect without a usable location")));
            };
            if url.tls && !next.tls && !call.part.starts_with("blobs/") {
                // A blob is verified by its digest; what a tag refers to is not.
                let shown = shown(&call.method, &url);
                return Err(RegistryError::Content(format!(
                    "{shown}: a redirect from HTTPS to HTTP is refused"
                )));
            }
            // Once on another host, a redirect back brings no credentials either: its URL is that host's.
            is_at_endpoint &= next.tls == url.tls && next.address == url.address;
            url = next;
        }
        let shown = shown(&call.method, &endpoint.url_of(call.repository, call.part));
        Err(RegistryError::Content(format!("{shown}: stopped after {REGISTRY_REDIRECTS_MAX} redirects")))
    }

    /// One request on an idle connection or a new one.
    async fn exchange(&self, sent: Sent<'_>) -> RegistryResult<Answer> {
        let shown = shown(&sent.method, sent.url);
        let config = |why: String| RegistryError::Config(format!("{shown}: {why}"));
        let proxy = self.environment.proxies.of(sent.url.tls, &sent.url.address).map_err(config)?;
        let is_absolute = proxy.is_some() && !sent.url.tls;
        let mut request =
            request(&sent, is_absolute).ok_or_else(|| config("cannot be asked for".to_owned()))?;
        if is_absolute
            && let Some(authorization) = proxy.as_ref().and_then(|proxy| proxy.authorization.as_ref())
            && let Ok(mut value) = HeaderValue::try_from(authorization)
        {
            value.set_sensitive(true);
            request.headers_mut().insert(HeaderName::from_static("proxy-authorization"), value);
        }
        let site =
            Site { tls: sent.url.tls, address: sent.url.address.clone(), options: sent.options.clone() };
        if let Some(connection) = self.reused(&site).await {
            let again = request.clone();
            // The server may close it at this very moment: then a new one is opened.
            if let Ok(answer) = within(&self.clock, REGISTRY_ANSWER_TIME, connection.send(again)).await {
                return Ok(answer);
            }
        }
        let failed =
            |why: String| RegistryError::Unreachable(format!("failed to do request: {shown}: {why}"));
        let connection = self.connect(&site, proxy.as_ref(), &shown).await?;
        within(&self.clock, REGISTRY_ANSWER_TIME, connection.send(request)).await.map_err(failed)
    }

    async fn reused(&self, site: &Site) -> Option<Connection> {
        loop {
            let found = {
                let mut idle = self.idle.borrow_mut();
                let at = idle.iter().position(|(at, _)| at == site)?;
                idle.swap_remove(at)
            };
            let (_, mut connection) = found;
            if connection.is_usable().await {
                return Some(connection);
            }
        }
    }

    async fn connect(
        &self,
        site: &Site,
        proxy: Option<&super::proxy::Proxy>,
        shown: &str,
    ) -> RegistryResult<Connection> {
        let failed =
            |why: String| RegistryError::Unreachable(format!("failed to do request: {shown}: {why}"));
        #[cfg(feature = "tls")]
        let tls = if site.tls {
            let config = self.tls_config(&site.options).await;
            Some(config.map_err(|why| RegistryError::Config(format!("{shown}: {why}")))?)
        } else {
            None
        };
        #[cfg(not(feature = "tls"))]
        if site.tls {
            return Err(RegistryError::Config(format!(
                "{shown}: this build has no TLS; use a build with it, or name the host as http://… in its hosts.toml"
            )));
        }
        let opened = async {
            let to = proxy.map_or(&site.address, |proxy| &proxy.address);
            #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "only TLS needs a tunnel"))]
            let mut socket = self.lookups.connect(to).await?;
            // Requests are small and wait for their responses.
            let _ = socket.get_ref().set_nodelay(true);
            #[cfg(feature = "tls")]
            let socket: Stream = match tls {
                Some(config) => {
                    if let Some(proxy) = proxy {
                        super::tunnel::tunnel(&mut socket, proxy, &site.address).await?;
                    }
                    super::tls::connect(config, &site.address.host, socket).await?
                }
                None => stream(socket),
            };
            #[cfg(not(feature = "tls"))]
            let socket: Stream = stream(socket);
            Connection::open(socket, (site.tls, site.address.clone())).await
        };
        within(&self.clock, REGISTRY_CONNECT_TIME, opened).await.map_err(failed)
    }

    #[cfg(feature = "tls")]
    async fn tls_config(&self, options: &TlsOptions) -> Result<Arc<ClientConfig>, String> {
        let found = self.tls.borrow().iter().find(|(of, _)| of == options).map(|(_, config)| config.clone());
        if let Some(found) = found {
            return Ok(found);
        }
        let (given, environment) = (options.clone(), self.environment.clone());
        let path = super::tls::first_file(options, &self.environment);
        let read = self.blocking.run_outside(&path, move || super::tls::config(&given, &environment));
        let config = Arc::new(read.await.map_err(|stuck| stuck.to_string())??);
        let mut kept = self.tls.borrow_mut();
        if kept.len() < REGISTRY_ENDPOINTS_MAX {
            kept.push((options.clone(), config.clone()));
        }
        Ok(config)
    }

    // ---- authorization -----------------------------------------------------------------------------------

    fn credentials_of<'a>(&'a self, endpoint: &'a Endpoint) -> Option<&'a Credentials> {
        // A mirror may be somebody else's, and may be asked by HTTP.
        let of_pull = self.credentials.as_ref().filter(|credentials| credentials.is_for(endpoint));
        endpoint.credentials.as_ref().or(of_pull)
    }

    fn has_credentials(&self, endpoint: &Endpoint) -> bool {
        self.credentials_of(endpoint).is_some()
    }

    /// The authorization that is valid now.
    fn grant(&self, endpoint: &Endpoint) -> Option<Grant> {
        let now = self.clock.now().mono;
        let host = endpoint.url("").to_string();
        let grants = self.grants.borrow();
        let found = grants.iter().find(|(of, _)| *of == host).map(|(_, grant)| grant);
        found.filter(|grant| grant.until.is_none_or(|until| until > now)).cloned()
    }

    fn forget(&self, endpoint: &Endpoint) {
        let host = endpoint.url("").to_string();
        self.grants.borrow_mut().retain(|(of, _)| *of != host);
    }

    fn remember(&self, endpoint: &Endpoint, grant: Grant) {
        self.forget(endpoint);
        let mut grants = self.grants.borrow_mut();
        if grants.len() >= REGISTRY_ENDPOINTS_MAX {
            grants.remove(0);
        }
        grants.push((endpoint.url("").to_string(), grant));
    }

    /// What the challenges ask for; `None` when there are no credentials for it.
    async fn authorize(&self, call: &Call<'_>, challenges: &[Challenge]) -> RegistryResult<Option<Grant>> {
        let credentials = self.credentials_of(call.endpoint);
        let forever = |header| Some(Grant { header, until: None });
        for challenge in challenges {
            match challenge {
                Challenge::Bearer { realm, service, scope } => {
                    if let Some(header) = credentials.and_then(Credentials::bearer) {
                        return Ok(forever(header));
                    }
                    let own = format!("repository:{}:pull", call.endpoint.repository(call.repository));
                    let scope = if scope.is_empty() && !call.repository.is_empty() { &own } else { scope };
                    return self
                        .fetch_token(call.endpoint, credentials, (realm, service, scope))
                        .await
                        .map(Some);
                }
                Challenge::Basic => {
                    if let Some(header) = credentials.and_then(Credentials::basic) {
                        return Ok(forever(header));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Asks a token service (`FetchToken`, `FetchTokenWithOAuth`).
    async fn fetch_token(
        &self,
        endpoint: &Endpoint,
        credentials: Option<&Credentials>,
        (realm, service, scope): (&str, &str, &str),
    ) -> RegistryResult<Grant> {
        let url = HttpGet::of_url(realm, HeaderMap::new()).ok_or_else(|| {
            let shown = crate::text::quoted(start_of(realm, 128));
            RegistryError::Content(format!("host {}: its token service {shown} is no URL", endpoint.host()))
        })?;
        if endpoint.tls && !url.tls && credentials.is_some() {
            let host = &url.address.host;
            return Err(RegistryError::Denied(format!(
                "the token service {host} is not reached by HTTPS: no credentials are sent to it"
            )));
        }
        let form = credentials.and_then(|credentials| credentials.refresh_form(service, scope));
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let asked = HttpGet { path: token::query(&url.path, service, scope), ..url.clone() };
        let (method, url) = if form.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
            (Method::POST, url)
        } else {
            if let Some(basic) = credentials.and_then(Credentials::basic) {
                headers.insert(AUTHORIZATION, basic);
            }
            (Method::GET, asked)
        };
        let kind = match (&form, credentials) {
            (Some(_), _) => "failed to fetch oauth token",
            (None, Some(_)) => "failed to fetch token",
            (None, None) => "failed to fetch anonymous token",
        };
        let what = shown(&method, &url);
        let sent = Sent { method, url: &url, options: &endpoint.tls_options, headers, form };
        let answer = self.exchange(sent).await.map_err(|error| error.while_doing(kind))?;
        if !(200..300).contains(&answer.status) {
            let status = answer.status;
            let error = self.failure(status, &what, answer, credentials.is_some()).await;
            return Err(match error {
                // A token service does not know of images.
                RegistryError::NotFound(why) => RegistryError::Denied(why),
                error => error,
            }
            .while_doing(kind));
        }
        let bytes = self.small(answer, REGISTRY_TOKEN_ANSWER_BYTES_MAX).await;
        let (bytes, _) = bytes.map_err(|why| RegistryError::unavailable(format!("{kind}: {what}: {why}")))?;
        let token =
            token::parse(&bytes).map_err(|why| RegistryError::Denied(format!("{kind}: {what}: {why}")))?;
        Ok(Grant { header: token.header, until: Some(self.clock.now().mono + token.used_for) })
    }

    // ---- errors ------------------------------------------------------------------------------------------

    /// What the registry says of its refusal; nothing when that does not come.
    async fn refusal(&self, answer: Answer) -> String {
        let bytes = async { Ok(answer.beginning(REGISTRY_ERROR_BYTES_MAX).await) };
        let bytes = within(&self.clock, REGISTRY_ANSWER_TIME, bytes).await;
        bytes.map(|bytes| message_of(&bytes)).unwrap_or_default()
    }

    // ---- hosts that do not answer -----------------------------------------------------------------------

    /// The hosts in their order; those that did not answer come last.
    pub(super) fn answering_first<'a>(
        &self,
        endpoints: impl Iterator<Item = &'a Endpoint>,
    ) -> impl Iterator<Item = &'a Endpoint> {
        let silent = self.silent.borrow();
        let (last, first): (Vec<_>, Vec<_>) =
            endpoints.partition(|endpoint| silent.contains(&endpoint.url("").to_string()));
        first.into_iter().chain(last)
    }

    /// Notes whether the host answers.
    fn note_answer(&self, endpoint: &Endpoint, answers: bool) {
        let host = endpoint.url("").to_string();
        let mut silent = self.silent.borrow_mut();
        silent.retain(|of| *of != host);
        if !answers && silent.len() < REGISTRY_ENDPOINTS_MAX {
            silent.push(host);
        }
    }

    async fn failure(&self, status: u16, what: &str, answer: Answer, has_credentials: bool) -> RegistryError {
        let after =
            answer.header("retry-after").and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let said = self.refusal(answer).await;
        let phrase = hyper::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        let phrase = phrase.unwrap_or("unknown status");
        let why = if said.is_empty() {
            format!("unexpected status from {what}: {status} {phrase}")
        } else {
            format!("unexpected status from {what}: {status} {phrase}: {said}")
        };
        match status {
            401 | 403 => denied(what, &said, has_credentials),
            404 | 410 => RegistryError::NotFound(if said.is_empty() {
                "not found".to_owned()
            } else {
                format!("{said}: not found")
            }),
            408 | 429 | 500.. => match after {
                Some(wait) if wait > REGISTRY_RETRY_AFTER_MAX => {
                    let why = format!("{why}; the registry asks to wait for {} s", wait.as_secs());
                    RegistryError::Unavailable { why, after }
                }
                after => RegistryError::Unavailable { why, after },
            },
            _ => RegistryError::Content(why),
        }
    }
}

fn denied(what: &str, said: &str, has_credentials: bool) -> RegistryError {
    let mend = if has_credentials {
        "check the credentials in the image pull secret, or those of the node"
    } else {
        "give credentials in an image pull secret, or in the node's config.json"
    };
    let said = if said.is_empty() { String::new() } else { format!("server message: {said}: ") };
    RegistryError::Denied(format!(
        "pull access denied, repository does not exist or may require authorization: {said}{what}; {mend}"
    ))
}

/// The request without what may be secret: the query of a redirect's URL is a signature.
fn shown(method: &Method, url: &HttpGet) -> String {
    let usual = if url.tls { 443 } else { 80 };
    let host = if url.address.port == usual && !url.address.host.contains(':') {
        url.address.host.clone()
    } else {
        url.address.to_string()
    };
    let path = url.path.split('?').next().unwrap_or_default();
    let scheme = if url.tls { "https" } else { "http" };
    let name = method.as_str();
    let name = format!("{}{}", &name[..1], name[1..].to_ascii_lowercase());
    format!("{name} \"{scheme}://{host}{}\"", start_of(path, 512))
}

fn challenges(headers: &HeaderMap) -> Vec<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(challenge::parse).collect()
}

/// The message of an error of the distribution specification: `CODE: message` of each, or nothing.
fn message_of(bytes: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Refusal {
        #[serde(default)]
        errors: Vec<Entry>,
        /// Of token services.
        #[serde(default)]
        details: String,
    }
    #[derive(serde::Deserialize)]
    struct Entry {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(Refusal { errors, details }) = serde_json::from_slice(bytes) else { return String::new() };
    let mut said = String::new();
    for Entry { code, message } in errors {
        if !said.is_empty() {
            said.push_str(", ");
        }
        said.push_str(&code.to_ascii_lowercase());
        said.push_str(": ");
        said.push_str(&message);
    }
    let said = if said.is_empty() { details } else { said };
    let said: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    start_of(&said, REGISTRY_MESSAGE_BYTES_MAX).to_owned()
}

/// `None`: a part of it cannot be sent.
fn request(sent: &Sent<'_>, is_absolute: bool) -> Option<Request<Full<Bytes>>> {
    let url = sent.url;
    let usual = if url.tls { 443 } else { 80 };
    let host = if url.address.port == usual && !url.address.host.contains(':') {
        url.address.host.clone()
    } else {
        url.address.to_string()
    };
    let body = sent.form.as_ref().map_or_else(Bytes::new, |form| Bytes::from(form.clone().into_bytes()));
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = sent.method.clone();
    let uri = if is_absolute { format!("http://{host}{}", url.path) } else { url.path.clone() };
    *request.uri_mut() = Uri::try_from(uri).ok()?;
    *request.headers_mut() = sent.headers.clone();
    request.headers_mut().insert(HOST, HeaderValue::try_from(host).ok()?);
    let agent = HeaderValue::from_static(concat!("smolet/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, agent);
    Some(request)
}
