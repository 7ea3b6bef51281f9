//! The one connection to the API server: opened when a request needs it, replaced when it is closed or stalled.
//!
//! When a cluster has several servers, it moves to another one when the one in use is unreachable, no longer answers or is not
//! ready, and stays there. Only when each has failed is there a wait.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::HeaderValue;
use hyper::http::uri::Authority;
use smol::channel::{Receiver, Sender};
use smol::lock::Mutex;

use super::access::{Access, Loaded};
use super::{KubeError, RetryWait, Rotation, ServerUrl, tls};
use crate::clock::SharedClock;
use crate::counters::Counter;
use crate::http2::{RequestBody, Spawner};
use crate::limits::{
    HTTP2_HEADER_TABLE_BYTES, K3S_UNREADY_WAIT, KUBE_CALL_TIME, KUBE_CONNECT_TIME, KUBE_HEADER_BYTES_MAX,
    KUBE_KEEPALIVE, KUBE_STREAMS_MAX, KUBE_WINDOW_CONNECTION_BYTES, KUBE_WINDOW_STREAM_BYTES,
};
use crate::model::Mono;
use crate::net::{Address, Lookups, notice_silence};

/// A connection in use by a request.
#[derive(Clone)]
pub(super) struct Connected {
    pub(super) requests: SendRequest<RequestBody>,
    pub(super) authority: Authority,
    /// Path prefix.
    pub(super) prefix: Rc<str>,
    pub(super) token: Option<HeaderValue>,
    /// Number of the connection, from 1.
    pub(super) number: u64,
}

/// The connection, or the back-off before the next attempt.
pub(super) struct Link {
    access: Access,
    clock: SharedClock,
    spawner: Spawner,
    lookups: Lookups,
    state: Mutex<State>,
    /// Connections opened so far.
    made: Cell<u64>,
    /// Connections up to this number are abandoned.
    given_up: Cell<u64>,
    /// Number of moves to another server.
    moves: Counter,
}

struct State {
    up: Option<Established>,
    wait: RetryWait,
    /// No attempt before this instant, because of this error; requests fail at once until then.
    blocked: Option<(Mono, KubeError)>,
    turn: Rotation,
    /// The kubeconfig's server.
    first: Option<ServerUrl>,
    /// The last server that was reached.
    used: Option<ServerUrl>,
    /// Why `used` was left, as a sentence that names it; empty while it is in use.
    left: String,
    /// When a server that was not ready was left last.
    unready: Option<Mono>,
}

struct Established {
    connected: Connected,
    server: ServerUrl,
    /// Dropping it closes the connection with all its streams.
    _open: Sender<Infallible>,
}

impl Link {
    pub(super) fn new(access: Access, clock: SharedClock, spawner: Spawner, seed: u64) -> Self {
        let state = State {
            up: None,
            wait: RetryWait::new(seed),
            blocked: None,
            turn: Rotation::default(),
            first: None,
            used: None,
            left: String::new(),
            unready: None,
        };
        Self {
            access,
            clock,
            spawner,
            lookups: Lookups::default(),
            state: Mutex::new(state),
            made: Cell::new(0),
            given_up: Cell::new(0),
            moves: Counter::default(),
        }
    }

    /// Address and credentials of connections.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Number of connections opened.
    pub(super) fn made(&self) -> u64 {
        self.made.get()
    }

    /// Number of moves to another server.
    pub(super) fn moves(&self) -> u64 {
        self.moves.get()
    }

    /// The connection, opened now when there is none: to the server in use, else to the next that is reachable.
    ///
    /// # Errors
    /// Why there is none; at once during the back-off after each server has failed.
    pub(super) async fn connected(&self) -> Result<Connected, KubeError> {
        let mut state = self.state.lock().await;
        let given_up = self.given_up.get();
        state.up.take_if(|up| up.connected.requests.is_closed() || up.connected.number <= given_up);
        if let Some(up) = &state.up {
            return Ok(up.connected.clone());
        }
        if let Some((until, why)) = &state.blocked
            && *until > self.clock.now().mono
        {
            return Err(why.clone());
        }
        let number = self.made.get() + 1;
        match self.reach(&mut state, number).await {
            Ok(up) => {
                self.made.set(number);
                state.wait.succeeded();
                state.blocked = None;
                Ok(state.up.insert(up).connected.clone())
            }
            Err(why) => {
                let until = self.clock.now().mono + state.wait.failed();
                state.blocked = Some((until, why.clone()));
                Err(why)
            }
        }
    }

    /// Connects to the next server, or to one after it. When the caller drops this future, the next caller continues after the
    /// servers that have failed.
    async fn reach(&self, state: &mut State, number: u64) -> Result<Established, KubeError> {
        let mut with = self.access.load().await?;
        let all = self.access.others().behind(&with.server);
        state.first = Some(with.server.clone());
        let mut whys = String::new();
        loop {
            with.server = state.turn.aim(&all).clone();
            let late = async {
                self.clock.sleep(KUBE_CONNECT_TIME).await;
                let (server, time) = (with.server.authority(), KUBE_CONNECT_TIME.as_secs());
                Err(KubeError::Unreachable(format!("API server {server}: nothing came back within {time} s")))
            };
            let why = match smol::future::or(Box::pin(self.connect(number, &with)), late).await {
                Ok(up) => {
                    state.turn.reached(&with.server);
                    let left = std::mem::take(&mut state.left);
                    let before = state.used.replace(with.server.clone());
                    if *before.as_ref().unwrap_or(&all[0]) != with.server {
                        self.moves.inc();
                        log::warn!("{left}; switching to API server {}", with.server.authority());
                    }
                    return Ok(up);
                }
                Err(why) => why,
            };
            let message = why.to_string();
            if state.left.is_empty() {
                state.left.clone_from(&message);
            }
            let all_failed = state.turn.failed(&with.server, all.len());
            if all_failed && whys.is_empty() {
                return Err(why);
            }
            if !whys.is_empty() {
                whys.push_str("; ");
            }
            whys.push_str(&message);
            if all_failed {
                return Err(KubeError::Unreachable(whys));
            }
        }
    }

    /// The server of that connection no longer answers: the next connection goes to another one, if there is one.
    pub(super) fn silent(&self, number: u64, why: &str) {
        if let Some(mut state) = self.state.try_lock() {
            state.pass(number, why);
        }
        self.give_up(number);
    }

    /// The server of that connection is not ready: the same, but seldom.
    pub(super) fn unready(&self, number: u64) {
        let now = self.clock.now().mono;
        if let Some(mut state) = self.state.try_lock()
            && self.all(&state).len() > 1
            && state.unready.is_none_or(|left| now.since(left) >= K3S_UNREADY_WAIT)
            && state.pass(number, "is not ready")
        {
            state.unready = Some(now);
            drop(state);
            self.give_up(number);
        }
    }

    /// The list of servers has changed: the connection is closed when its server is no longer in it.
    pub(super) fn servers_changed(&self) {
        let Some(mut state) = self.state.try_lock() else { return };
        let all = self.all(&state);
        let gone = state.up.as_ref().filter(|up| !all.contains(&up.server)).map(|up| up.connected.number);
        if let Some(number) = gone
            && state.pass(number, "is none of its cluster's any more")
        {
            drop(state);
            self.give_up(number);
        }
    }

    /// Closes the connection with that number, if it is the current one: nothing was received on it for too long.
    pub(super) fn give_up(&self, number: u64) {
        self.given_up.set(self.given_up.get().max(number));
        // The holder of the lock is opening a connection, which has another number.
        if let Some(mut state) = self.state.try_lock() {
            state.up.take_if(|up| up.connected.number <= number);
        }
    }

    /// Closes the current connection, and opens the next one without a wait.
    pub(super) fn reconnect(&self) {
        self.give_up(self.made());
        // The holder of the lock is opening a connection; if that fails, it is retried soon.
        if let Some(mut state) = self.state.try_lock() {
            state.blocked = None;
        }
    }

    /// The current servers.
    fn all(&self, state: &State) -> Vec<ServerUrl> {
        state.first.as_ref().map(|first| self.access.others().behind(first)).unwrap_or_default()
    }

    async fn connect(&self, number: u64, with: &Loaded) -> Result<Established, KubeError> {
        let address = Address { host: with.server.host.clone(), port: with.server.port };
        let at = |why: String| KubeError::Unreachable(format!("API server {address}: {why}"));
        let socket = self.lookups.connect(&address).await.map_err(at)?;
        // A request is small and waits for its response: delaying it gains nothing.
        let _ = socket.get_ref().set_nodelay(true);
        // A client that only watches never sends: it would wait for a server that has lost its power as long as a watch lasts.
        notice_silence(socket.get_ref(), KUBE_KEEPALIVE, KUBE_CALL_TIME);
        // Long-lived: hyper and the watches bound what is received.
        let connected =
            tls::connect(with, socket, tls::Protocol::Http2, None, self.access.authenticated()).await;
        let socket = connected.map_err(|error| match error {
            KubeError::Unreachable(why) | KubeError::Untrusted(why) => at(why),
            error => error,
        })?;
        let (requests, connection) = Builder::new(self.spawner.clone())
            .header_table_size(HTTP2_HEADER_TABLE_BYTES)
            .initial_stream_window_size(KUBE_WINDOW_STREAM_BYTES)
            .initial_connection_window_size(KUBE_WINDOW_CONNECTION_BYTES)
            .max_header_list_size(KUBE_HEADER_BYTES_MAX)
            .max_send_buf_size(KUBE_WINDOW_STREAM_BYTES as usize)
            .initial_max_send_streams(KUBE_STREAMS_MAX)
            .max_concurrent_streams(0)
            .handshake(socket)
            .await
            .map_err(|error| at(error.to_string()))?;
        let (open, closed) = smol::channel::bounded::<Infallible>(1);
        hyper::rt::Executor::execute(&self.spawner, until_closed(connection, closed));
        let connected = Connected {
            requests,
            authority: authority(&address)?,
            prefix: with.server.prefix.as_str().into(),
            token: token(with)?,
            number,
        };
        Ok(Established { connected, server: with.server.clone(), _open: open })
    }
}

impl State {
    /// Makes the next connection go to another server than that one, because of this. True when that one is the current
    /// connection.
    fn pass(&mut self, number: u64, why: &str) -> bool {
        let Some(up) = self.up.as_ref().filter(|up| up.connected.number == number) else { return false };
        if self.left.is_empty() {
            self.left = format!("API server {} {why}", up.server.authority());
        }
        self.turn.pass();
        true
    }
}

async fn until_closed(
    connection: impl Future<Output = Result<(), hyper::Error>>,
    closed: Receiver<Infallible>,
) {
    let ended = async {
        if let Err(error) = connection.await {
            log::debug!("the connection to the API server ended: {error}");
        }
    };
    let closed = async {
        // Nothing is ever sent: this ends when the sender is dropped.
        let _ = closed.recv().await;
    };
    smol::future::or(ended, closed).await;
}

fn authority(address: &Address) -> Result<Authority, KubeError> {
    Authority::try_from(address.to_string())
        .map_err(|_| KubeError::Config(format!("kubeconfig: server: {address} is no host and port")))
}

fn token(with: &Loaded) -> Result<Option<HeaderValue>, KubeError> {
    let Some(token) = &with.token else { return Ok(None) };
    let value = [b"Bearer ", token.trim_ascii()].concat();
    let mut value = HeaderValue::try_from(value).map_err(|_| {
        KubeError::Config("kubeconfig: user: the token holds what no header may hold".to_owned())
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}
