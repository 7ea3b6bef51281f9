//! Joining a k3s server: the credentials that it issues to a node with its token, and the tunnel by which it reaches the node's
//! API.
//!
//! ```text
//!     token ─► /cacerts, compared with the token's hash ─► certificate authorities
//!                     │
//!     supervisor ─────┴─► certificates, settings ─► STATE/k3s ─► the API client and the node's own API
//!     tunnels: a WebSocket to each server, which the node opens; through it the server connects to the node's port 10250, and
//!     to its pods
//! ```
//!
//! `joining` decides, as a table of states, and `join_task` carries it out. `joining`, `component`, `token`, `authority`,
//! `refusal`, `settings`, `servers`, `takeover`, `frame` and `message` are PURE; `supervisor`, `files`, `component_clients`, `tunnel`, `tunnels`,
//! `load_balancer` and `join_task` do the I/O.
//!
//! Differs from `k3s agent`: a node asks a server for the list of servers, and does so again when its service proxy sees other endpoints
//! of `default/kubernetes`: the agent watches those itself, with a certificate that may write any Node. Its clients do not go through the load balancer,
//! each moves from one server to the next by itself; flannel, Services and network policies are modules of their own, in the place of
//! flannel, kube-proxy and kube-router.

mod authority;
mod component;
mod component_clients;
mod files;
pub mod frame;
mod join_task;
mod joining;
mod load_balancer;
pub mod message;
mod refusal;
mod servers;
mod settings;
mod supervisor;
pub(crate) mod takeover;
mod token;
mod tunnel;
mod tunnels;

pub(crate) use authority::pinned;
pub(crate) use component::Component;
pub(crate) use component_clients::ComponentClients;
pub(crate) use files::{Files, check_credentials, node_id};
pub(crate) use join_task::{JoinTask, Kernel};
pub(crate) use load_balancer::LoadBalancer;
pub(crate) use refusal::Refused;
pub(crate) use servers::List;
pub(crate) use settings::{Does, Settings, Unset};
pub(crate) use supervisor::{Ask, Supervisor};
pub(crate) use token::Token;
pub(crate) use tunnel::{Common, Reach};
pub(crate) use tunnels::{Servers, Tunnels};

use ring::rand::{SecureRandom as _, SystemRandom};

/// Cryptographically secure random bytes.
///
/// # Errors
/// The kernel's generator fails.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| "the machine gives no random numbers".to_owned())?;
    Ok(bytes)
}
