//! smolet: the kubelet's generic runtime manager as a compact node agent.
//!
//! Data runs round one ring, one way:
//!
//! ```text
//!     sources ──► admit ──► desired ──► worker ──► plan ──► act ──► CRI (containerd, CRI-O)
//!     (files,                              ▲                             │
//!      API server)                         │                             ▼
//!     outputs ◄── status ◄─────────────── store ◄────────────────────  pleg (events, relist)
//! ```
//!
//! One loop ([`node`]) owns all state. It takes one event at a time, changes the state with pure functions and
//! starts tasks for what takes time. A task gets a snapshot and sends back an outcome; none borrows the loop's
//! state across an await. At most one task per pod is in flight.
//!
//! The pods are one value (`node::pods`). Every other concern is a part of the loop with a state of its own, which reads the pods
//! and asks for effects (`node::effects`); only the loop applies them.
//!
//! Words: a *pod* is desired (asked for by a source) and observed (reported by the runtime). A *sync* compares the
//! two, *plans* and *acts*. A *sandbox* has an *attempt*, a *container* a *restart count*. A *relist* asks the
//! runtime for everything; an *event* of the runtime's says where to look before the next one.
//!
//! A file that says PURE in its first lines has no async, clock, random numbers, environment, logging or I/O: the decisions
//! are there. Modules stand in layers, and import from their own layer and from those below; no cycle ties two together:
//!
//! ```text
//!     cli
//!     node                                                       the loop
//!     source  server  node_api  k3s  hook  doctor  facts         sources and servers
//!     sync  admit  allocation  probe  cluster  config  metrics   decisions about pods and the node
//!     cri  image  kube  logs  pleg  printers                     the runtime and the API server
//!     render  status  store  volume  eviction  gc  grpc  net     rendering, status, the machine's parts
//!     model  desired  events  turns  rate  clock                 the vocabulary
//!     limits  decode  sorted  filesystem  stream  tls  text      ground
//! ```
//!
//! `tests/repository/tidy.rs` holds the source to both, and has all modules of each layer.
//!
//! Other than the design had it, the messages of `proto/` are kept in `src/proto/` and not compiled in `build.rs`: their compiler
//! was built for each profile and each target anew, on the machine of everybody who builds smolet (`make proto`).

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
pub mod counters;
pub mod cri;
pub mod decode;
pub mod desired;
pub mod doctor;
pub mod events;
pub mod eviction;
pub mod executor;
pub mod facts;
pub mod filesystem;
pub mod gc;
pub mod grpc;
pub mod hook;
mod http2;
pub mod image;
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
pub mod mounts;
pub mod net;
pub mod node;
#[cfg(feature = "tls")]
pub mod node_api;
pub mod paths;
pub mod pleg;
pub mod podcmd;
pub mod poison;
pub mod printers;
pub mod probe;
mod process;
pub mod proto;
pub mod rate;
pub mod render;
pub mod resolv_conf;
pub mod server;
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
pub mod turns;
pub mod userns;
pub mod volume;
#[cfg(feature = "tls")]
pub mod x509;

/// How many random cases a test walks, of `all`: a twentieth where the tests run under an emulator, as on all targets but one.
#[cfg(test)]
fn cases(all: u64) -> u64 {
    if cfg!(target_arch = "x86_64") { all } else { all / 20 }
}
