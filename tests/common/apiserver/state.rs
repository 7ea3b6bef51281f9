//! State shared by the server's thread and the test: the store, recorded requests, and injected faults.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;
use smolet::model::Mono;

use super::authorize::Lag;
use super::review::Access;
use super::store::Store;

/// Recorded requests. Full: the oldest is dropped.
const REQUESTS_MAX: usize = 20_000;
/// A larger body is not recorded, so that the total stays small.
const BODY_BYTES_MAX: usize = 32 * 1024;

#[derive(Default)]
pub struct State {
    pub store: Store,
    pub access: Access,
    requests: VecDeque<Request>,
    asked: u64,
    faults: Vec<Rule>,
    /// Delay of every request.
    pub delay: Duration,
    pub expired: Expired,
    pub authorizes_nodes: bool,
    pub lag: Lag,
    pub watches_begun: u64,
    pub watches_open: usize,
    /// Number of bookmarks and of ends of all watches that the test requested.
    pub bookmarks: u64,
    pub expiries: u64,
}

/// A recorded request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its number since the server's start, from 1.
    pub number: u64,
    /// The HTTP method.
    pub method: String,
    /// The Kubernetes verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: &'static str,
    /// Without the query.
    pub path: String,
    pub query: String,
    /// The user; empty: unknown.
    pub user: String,
    pub content_type: String,
    /// The body's JSON, if it was received and is small enough.
    pub body: Option<Arc<Value>>,
    pub body_bytes: usize,
    /// Instant at which its head was received, on the server's clock.
    pub at: Mono,
    /// The code of the response; `None`: not answered yet.
    pub code: Option<u16>,
}

/// The response to a client that requests a revision before the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expired {
    /// As the real server today: 200, and an ERROR event.
    #[default]
    AsEvent,
    /// As older servers and aggregated ones: 410.
    AsStatus,
}

/// A fault of a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It has no effect.
    Fail { code: u16, reason: String },
    /// It takes effect, and the connection is closed before the response.
    Lose,
}

struct Rule {
    left: u32,
    /// The HTTP method or the Kubernetes verb; empty: all.
    method: String,
    prefix: String,
    fault: Fault,
}

impl State {
    // ---- what was asked ------------------------------------------------------------------------------

    /// Records a request; returns its number.
    pub fn note(
        &mut self,
        method: &Method,
        verb: &'static str,
        (path, query): (&str, &str),
        user: String,
        content_type: &str,
        at: Mono,
    ) -> u64 {
        self.asked += 1;
        if self.requests.len() >= REQUESTS_MAX {
            self.requests.pop_front();
        }
        self.requests.push_back(Request {
            number: self.asked,
            method: method.to_string(),
            verb,
            path: path.to_owned(),
            query: query.to_owned(),
            user,
            content_type: content_type.to_owned(),
            body: None,
            body_bytes: 0,
            at,
            code: None,
        });
        self.asked
    }

    pub fn note_body(&mut self, number: u64, bytes: usize, body: &Value) {
        if let Some(request) = self.request(number) {
            request.body_bytes = bytes;
            request.body = (bytes > 0 && bytes <= BODY_BYTES_MAX).then(|| Arc::new(body.clone()));
        }
    }

    pub fn answered(&mut self, number: u64, code: u16) {
        if let Some(request) = self.request(number) {
            request.code = Some(code);
        }
    }

    /// `None`: dropped meanwhile.
    fn request(&mut self, number: u64) -> Option<&mut Request> {
        let first = self.requests.front()?.number;
        self.requests.get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.iter().cloned().collect()
    }

    /// Number of requests, the dropped ones included.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    pub fn forget_requests(&mut self) {
        self.requests.clear();
    }

    pub fn count(&self, method: &str, prefix: &str) -> usize {
        let fits = |request: &&Request| fits(method, &request.method, request.verb, prefix, &request.path);
        self.requests.iter().filter(fits).count()
    }

    // ---- faults --------------------------------------------------------------------------------------

    pub fn rule(&mut self, times: u32, method: &str, prefix: &str, fault: Fault) {
        self.faults.push(Rule { left: times, method: method.to_owned(), prefix: prefix.to_owned(), fault });
    }

    pub fn heal(&mut self) {
        self.faults.clear();
        self.delay = Duration::ZERO;
    }

    /// The fault of this request; the oldest matching rule applies, and its count decreases.
    pub fn fault(&mut self, method: &Method, verb: &str, path: &str) -> Option<Fault> {
        let fits = |rule: &Rule| fits(&rule.method, method.as_str(), verb, &rule.prefix, path);
        let index = self.faults.iter().position(fits)?;
        let rule = self.faults.get_mut(index)?;
        let fault = rule.fault.clone();
        rule.left = rule.left.saturating_sub(1);
        if rule.left == 0 {
            self.faults.remove(index);
        }
        Some(fault)
    }
}

fn fits(wanted: &str, method: &str, verb: &str, prefix: &str, path: &str) -> bool {
    let named = wanted.is_empty() || wanted.eq_ignore_ascii_case(method) || wanted.eq_ignore_ascii_case(verb);
    named && path.starts_with(prefix)
}

/// `PATCH /api/v1/namespaces/default/pods/web/status?… 200`.
impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)?;
        if !self.query.is_empty() {
            write!(f, "?{}", self.query)?;
        }
        match self.code {
            Some(code) => write!(f, " {code}"),
            None => f.write_str(" (no answer)"),
        }
    }
}
