//! smolet: the kubelet's generic runtime manager as a compact node agent.
//!
//! Data flow is a ring in one direction:
//!
//! ```text
//!     sources ──► admit ──► desired ──► worker ──► plan ──► act ──► CRI (containerd, CRI-O)
//!     (files,                              ▲                             │
//!      API server)                         │                             ▼
//!     outputs ◄── status ◄─────────────── store ◄────────────────────  pleg (events, relist)
//! ```
//!
//! One loop ([`node`]) owns all state. It processes one event at a time, changes the state with pure functions and starts tasks
//! for long operations. A task gets a snapshot and returns an outcome; none borrows the loop's state across an await. At most
//! one task per pod is in flight.
//!
//! The pods are one value (`node::pods`). Every other concern is a part of the loop with its own state, which reads the pods
//! and pushes effects (`node::effects`); only the loop applies them.
//!
//! Terms: a *pod* is desired (in a source) and observed (in the runtime). A *sync* compares the two, *plans* and *acts*. A
//! *sandbox* has an *attempt*, a *container* a *restart count*. A *relist* lists everything in the runtime; a runtime *event*
//! triggers the read of a pod before the next one.
//!
//! A file with PURE in its first lines has no async, clock, random numbers, environment, logging or I/O: decisions are in such
//! files. Modules are in layers, and import from their own layer and from those below, without cycles:
//!
//! ```text
//!     cli
//!     node                                                       the loop
//!     source  server  node_api  k3s  flannel  hook  doctor       sources and servers
//!     sync  admit  allocation  probe  cluster  config  metrics   decisions about pods and the node
//!     cri  image  kube  logs  pleg  printers                     the runtime and the API server
//!     render  status  store  volume  eviction  gc  grpc  net     rendering, status, the machine's parts
//!     model  desired  events  fair_semaphore  rate  clock        the vocabulary
//!     limits  decode  sorted  filesystem  stream  tls  text      ground
//! ```
//!
//! `tests/repository/tidy.rs` checks both, and lists the modules of each layer.
//!
//! Differs from the design: the messages of `proto/` are generated into `src/proto/` (`make proto`) and not in `build.rs`,
//! because every build of smolet would have to build the generator first.

pub mod addresses;
pub mod admit;
pub mod allocation;
pub mod blocking;
#[cfg(feature = "tls")]
mod certificates;
pub mod cgroup;
pub mod cli;
pub mod clock;
#[cfg(feature = "tls")]
pub mod cluster;
pub mod cni;
pub mod config;
#[cfg(feature = "tls")]
pub mod conntrack;
pub mod counters;
pub mod cri;
pub mod cri_server;
pub mod decode;
pub mod desired;
pub mod doctor;
pub mod events;
pub mod eviction;
pub mod executor;
pub mod facts;
pub mod fair_semaphore;
pub mod filesystem;
#[cfg(feature = "tls")]
mod flannel;
pub mod gc;
pub mod grpc;
pub mod hook;
mod http2;
pub mod image;
pub mod image_store;
#[cfg(feature = "tls")]
mod iptables;
#[cfg(feature = "tls")]
pub mod k3s;
pub mod kernel_tunables;
#[cfg(feature = "tls")]
pub mod kube;
pub mod limits;
pub mod logs;
pub mod metrics;
pub mod model;
pub mod monitor;
pub mod mounts;
pub mod net;
pub mod netlink;
#[cfg(feature = "tls")]
pub mod network_policy;
#[cfg(feature = "tls")]
pub mod nftables;
pub mod node;
#[cfg(feature = "tls")]
pub mod node_api;
pub mod oci;
pub mod paths;
pub mod pleg;
pub mod podcmd;
pub mod poison;
pub mod printers;
pub mod probe;
mod process;
mod program;
pub mod proto;
pub mod rate;
pub mod registry;
pub mod render;
pub mod resolv_conf;
pub mod runtime;
pub mod server;
#[cfg(feature = "tls")]
pub mod service_proxy;
pub mod shutdown;
pub mod sorted;
pub mod source;
pub mod status;
pub mod store;
mod stream;
pub mod streaming;
pub mod sync;
pub mod systemd;
pub mod text;
#[cfg(feature = "tls")]
pub mod tls;
pub mod tree;
pub mod userns;
pub mod volume;
#[cfg(feature = "tls")]
pub mod x509;

/// Number of random cases of a test, of `all`: a twentieth under an emulator, as on all targets but one.
#[cfg(test)]
fn cases(all: u64) -> u64 {
    if cfg!(target_arch = "x86_64") { all } else { all / 20 }
}
