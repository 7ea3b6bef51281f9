//! Joining a k3s server: what it gives a node that has its token, and the tunnel by which it reaches the node's API.
//!
//! ```text
//!     token ─► /cacerts, compared with the token's hash ─► whom to trust
//!                     │
//!     supervisor ─────┴─► certificates, settings ─► STATE/k3s ─► the API client and the node's own API
//!     tunnel: a WebSocket that the node opens; through it the server connects to the node's port 10250, and to its pods
//! ```
//!
//! `token`, `authority`, `settings`, `frame` and `message` are PURE; `supervisor` and `tunnel` do the I/O.
//!
//! Other than `k3s agent` does: no load balancer over several servers (name one address for them all), nothing of flannel,
//! kube-proxy and the network policy controller, which run as pods.

mod authority;
mod frame;
mod message;
mod settings;
mod supervisor;
mod token;
mod tunnel;

pub(crate) use authority::pinned;
pub(crate) use settings::Settings;
pub(crate) use supervisor::{Ask, Refused, Supervisor};
pub(crate) use token::Token;
pub(crate) use tunnel::{Reach, Tunnel};

use ring::rand::{SecureRandom as _, SystemRandom};

/// Bytes that nobody can guess.
///
/// # Errors
/// The machine has none.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| "the machine gives no random numbers".to_owned())?;
    Ok(bytes)
}
