//! The one connection to the API server: made when a request needs it, replaced when it is gone or stands still.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::HeaderValue;
use hyper::http::uri::Authority;
use smol::channel::{Receiver, Sender};
use smol::lock::Mutex;

use super::access::{Access, Loaded};
use super::{KubeError, RetryWait, tls};
use crate::clock::SharedClock;
use crate::http2::{RequestBody, Spawner};
use crate::limits::{
    KUBE_CONNECT_TIME, KUBE_HEADER_BYTES_MAX, KUBE_STREAMS_MAX, KUBE_WINDOW_CONNECTION_BYTES,
    KUBE_WINDOW_STREAM_BYTES,
};
use crate::model::Mono;
use crate::probe::handler::Address;
use crate::probe::run::Lookups;

/// A connection as a request holds it.
#[derive(Clone)]
pub(super) struct Connected {
    pub(super) requests: SendRequest<RequestBody>,
    pub(super) authority: Authority,
    /// What paths begin with.
    pub(super) prefix: Rc<str>,
    pub(super) token: Option<HeaderValue>,
    /// Which connection it is, from 1.
    pub(super) number: u64,
}

/// The connection, or the wait for the next try.
pub(super) struct Link {
    access: Access,
    clock: SharedClock,
    spawner: Spawner,
    lookups: Lookups,
    state: Mutex<State>,
    /// Connections made so far.
    made: Cell<u64>,
    /// Those up to this number are given up.
    given_up: Cell<u64>,
}

struct State {
    up: Option<Up>,
    wait: RetryWait,
    /// No try before this instant, because of this; requests fail at once until then.
    blocked: Option<(Mono, KubeError)>,
}

struct Up {
    connected: Connected,
    /// Dropping it ends the connection with all that is on it.
    _open: Sender<Infallible>,
}

impl Link {
    pub(super) fn new(access: Access, clock: SharedClock, spawner: Spawner, seed: u64) -> Self {
        let state = State { up: None, wait: RetryWait::new(seed), blocked: None };
        Self {
            access,
            clock,
            spawner,
            lookups: Lookups::default(),
            state: Mutex::new(state),
            made: Cell::new(0),
            given_up: Cell::new(0),
        }
    }

    /// What connections are made with.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// How many connections there were.
    pub(super) fn made(&self) -> u64 {
        self.made.get()
    }

    /// The connection, made now when there is none.
    ///
    /// # Errors
    /// Why there is none; at once while the wait after a failure lasts.
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
        let late = async {
            self.clock.sleep(KUBE_CONNECT_TIME).await;
            Err(KubeError::Unreachable(format!("nothing came back within {} s", KUBE_CONNECT_TIME.as_secs())))
        };
        let number = self.made.get() + 1;
        match smol::future::or(Box::pin(self.connect(number)), late).await {
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

    /// Ends the connection of that number, if it is still the one: nothing came on it for too long.
    pub(super) fn give_up(&self, number: u64) {
        self.given_up.set(self.given_up.get().max(number));
        // Whoever holds the lock makes a connection, and that is another one.
        if let Some(mut state) = self.state.try_lock() {
            state.up.take_if(|up| up.connected.number <= number);
        }
    }

    /// Ends the connection there is, and makes the next one without a wait.
    pub(super) fn afresh(&self) {
        self.give_up(self.made());
        // Whoever holds the lock is making a connection; when it fails, it is tried again before long.
        if let Some(mut state) = self.state.try_lock() {
            state.blocked = None;
        }
    }

    async fn connect(&self, number: u64) -> Result<Up, KubeError> {
        let with = self.access.load().await?;
        let address = Address { host: with.server.host.clone(), port: with.server.port };
        let at = |why: String| KubeError::Unreachable(format!("API server {address}: {why}"));
        let socket = self.lookups.connect(&address).await.map_err(at)?;
        // A request is small and waits for its answer: nothing is gained by holding it back.
        let _ = socket.get_ref().set_nodelay(true);
        let socket =
            tls::connect(&with, socket, tls::Protocol::Http2).await.map_err(|error| match error {
                KubeError::Unreachable(why) => at(why),
                error => error,
            })?;
        let (requests, connection) = Builder::new(self.spawner.clone())
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
            token: token(&with)?,
            number,
        };
        Ok(Up { connected, _open: open })
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
        // Nothing is ever sent: this ends when the sender goes.
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
