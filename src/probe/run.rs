//! Carries out what a probe or a lifecycle hook does: one call or connection each, no process of the agent's own.
//!
//! Every part may be dropped at any await: an exec's call is then reset, and a connection closed.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::rc::Rc;
use std::time::Duration;

use super::handler::{Address, Handler};
use super::{grpc, http};
use crate::blocking::unblock_apart;
use crate::clock::SharedClock;
use crate::cri::{ExecOutput, Runtime, RuntimeError};
use crate::events::cut;
use crate::limits::{ADDRESSES_TRIED_MAX, LOOKUPS, PROBE_OUTPUT_BYTES_MAX, PROBE_TRIES_MAX};
use crate::model::{ContainerId, PodUid};
use crate::stream::Socket;
use crate::turns::{Party, Turns};

/// What a probe says (`probe.Result`), with the words for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is well.
    Success,
    /// It is well, and something is to be known.
    Warning(String),
    /// It is not.
    Failure(String),
}

/// What handlers are carried out with.
pub struct Tools<R> {
    /// Runs commands in containers.
    pub runtime: Rc<R>,
    /// For timeouts.
    pub clock: SharedClock,
    /// Finds hosts by their names.
    pub lookups: Lookups,
}

impl<R> Tools<R> {
    /// The same, for a pod: it takes its own turns at looking names up.
    #[must_use]
    pub fn of_pod(&self, pod: &PodUid) -> Self {
        Self { runtime: self.runtime.clone(), clock: self.clock.clone(), lookups: self.lookups.of_pod(pod) }
    }
}

/// Looks names of hosts up on threads of their own, divided by pod (`limits::LOOKUPS`). Clones share the turns.
#[derive(Clone, Debug)]
pub struct Lookups {
    turns: Turns,
    party: Party,
}

impl Default for Lookups {
    fn default() -> Self {
        Self { turns: Turns::new(LOOKUPS), party: Party::default() }
    }
}

impl Lookups {
    fn of_pod(&self, pod: &PodUid) -> Self {
        Self { turns: self.turns.clone(), party: pod.into() }
    }

    async fn addresses(&self, of: &Address) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = of.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, of.port)]);
        }
        let turn = self.turns.take(self.party).await.map_err(|why| io::Error::other(why.to_string()))?;
        let name = (of.host.clone(), of.port);
        let look = move || {
            // Kept by the thread: a lookup that nobody waits for any more goes on.
            let _turn = turn;
            name.to_socket_addrs().map(|found| found.take(ADDRESSES_TRIED_MAX).collect())
        };
        unblock_apart(look).await?
    }

    /// Connects to the first of the host's addresses that takes it. Go's error in words.
    ///
    /// Differs from the kubelet's `ProbeDialer`, which closes with a lingering second to spare itself sockets in TIME-WAIT: a
    /// close that lingers may hold up the one thread there is, for two hundred bytes of the kernel's.
    ///
    /// # Errors
    /// A sentence: there is no such host, or nobody takes the connection.
    pub async fn connect(&self, to: &Address) -> Result<Socket<TcpStream>, String> {
        let found =
            self.addresses(to).await.map_err(|error| format!("dial tcp: lookup {}: {error}", to.host))?;
        let mut refused = format!("dial tcp: lookup {}: no address", to.host);
        for address in found {
            match Socket::<TcpStream>::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => refused = format!("dial tcp {address}: connect: {}", error.kind()),
            }
        }
        Err(refused)
    }
}

/// Runs a probe (`runProbeWithRetries`); `timeout` is that of each try, and is not zero.
///
/// # Errors
/// A sentence: it could not be run, which says nothing of the container.
pub async fn probe<R: Runtime>(
    tools: &Tools<R>,
    container: &ContainerId,
    handler: &Handler,
    timeout: Duration,
) -> Result<Answer, String> {
    let late = |words: String| async move {
        tools.clock.sleep(timeout).await;
        Ok(Answer::Failure(words))
    };
    match handler {
        Handler::Exec(command) => exec(tools, container, command, timeout).await,
        Handler::HttpGet(get) => {
            let words = format!(
                "Get \"{get}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            );
            let asked = async {
                let reply = http::get(&tools.lookups, get).await;
                Ok(reply.map_or_else(Answer::Failure, http::Reply::answer))
            };
            smol::future::or(asked, late(words)).await
        }
        Handler::TcpSocket(address) => {
            let connected = async {
                let connected = tools.lookups.connect(address).await;
                Ok(connected.map_or_else(Answer::Failure, |_| Answer::Success))
            };
            smol::future::or(connected, late(format!("dial tcp {address}: i/o timeout"))).await
        }
        Handler::Grpc { address, service } => {
            let checked = async { Ok(grpc::check(&tools.lookups, address, service, timeout).await) };
            smol::future::or(checked, late(grpc::late(timeout))).await
        }
    }
}

/// `execProber.Probe`: the runtime holds the time limit.
async fn exec<R: Runtime>(
    tools: &Tools<R>,
    container: &ContainerId,
    command: &[String],
    timeout: Duration,
) -> Result<Answer, String> {
    let mut last = String::new();
    for _ in 0..PROBE_TRIES_MAX {
        match tools.runtime.exec_sync(container, command, timeout).await {
            Ok(ExecOutput { exit_code: 0, .. }) => return Ok(Answer::Success),
            Ok(ExecOutput { stdout, stderr, .. }) => return Ok(Answer::Failure(said(&stdout, &stderr))),
            Err(RuntimeError::DeadlineExceeded(why)) => {
                return Ok(Answer::Failure(format!("command timed out: {why}")));
            }
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

/// As much of both outputs, one behind the other, as is kept.
pub(crate) fn said(stdout: &[u8], stderr: &[u8]) -> String {
    let mut both = Vec::with_capacity(PROBE_OUTPUT_BYTES_MAX);
    both.extend(stdout.iter().chain(stderr).take(PROBE_OUTPUT_BYTES_MAX));
    cut(&String::from_utf8_lossy(&both), PROBE_OUTPUT_BYTES_MAX).to_owned()
}

#[cfg(test)]
mod tests {
    use smol::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn names_that_are_not_found_hold_up_their_own_pod() {
        let lookups = Lookups::default();
        let (stuck, other) = (lookups.of_pod(&PodUid::from("stuck")), lookups.of_pod(&PodUid::from("other")));
        let local = Address { host: "localhost".to_owned(), port: 80 };
        block_on(async {
            // What its threads hold whose resolver does not answer.
            let mut held = Vec::new();
            while let Some(turn) = poll_once(stuck.turns.take(stuck.party)).await {
                held.push(turn);
            }
            assert!((1..LOOKUPS.most()).contains(&held.len()), "{}", held.len());
            assert!(poll_once(stuck.addresses(&local)).await.is_none(), "it has no turn left");
            let found = other.addresses(&local).await.expect("this machine is found");
            assert!(found.iter().all(|address| address.ip().is_loopback()), "{found:?}");
            held.pop();
            assert!(stuck.addresses(&local).await.is_ok());
        });
    }
}
