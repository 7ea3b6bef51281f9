//! Services and their endpoints, as a node serves them: the place of kube-proxy.
//!
//! ```text
//!     v1 Service ──► service ──┐
//!                              ├──► cluster ──► the names of what changed ──► ports of a Service, with their backends
//!     EndpointSlice ─► slice ──┘                    topology: which backends this node may use, by readiness and policies
//!
//!     ports ──► encode ──► entries ──► rules ──► transactions of nf_tables ──► kernel
//!                                        skeleton: the fixed chains, sets and rules
//! ```
//!
//! All files here but `health` and `kernel` are PURE. They follow kube-proxy 1.36 (`pkg/proxy`): `service` is `serviceport.go` and
//! `ShouldSkipService`, `slice` and `cluster` are the change trackers and `endpointslicecache.go`, `topology` is
//! `CategorizeEndpoints`, `health` is `service_health.go`; `encode`, `rules` and `skeleton` are `nftables/proxier.go`. Differs from
//! kube-proxy: everything has a bound; the objects themselves are not kept, but records of some ten bytes an endpoint; endpoints are
//! elements of one map, so that a change of one is one element and not all that a chain has; nobody runs `nft`.

mod cluster;
mod encode;
mod entries;
mod health;
mod kernel;
mod model;
mod rules;
mod service;
mod skeleton;
mod slice;
mod topology;

pub(crate) use cluster::Cluster;
pub(crate) use health::{HealthCheck, HealthChecks};
pub use kernel::{FamilySync, Kernel};
pub use model::{Backend, ServiceName, ServicePort};
pub use rules::Settings;
pub use skeleton::TABLE;

#[cfg(test)]
mod tests;
