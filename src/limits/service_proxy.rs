//! Bounds of the service proxy.

use std::time::Duration;

use super::{KIB, MIB};

/// Ports of all Services. Full: a further Service is left out, named once in the log, and listed again when others have
/// gone.
pub const SERVICE_PORTS_MAX: usize = 10_000;
/// Ports of one Service, and of one slice. More: the Service is left out and named; of the slice the others are not read.
pub const SERVICE_PORTS_EACH_MAX: usize = 1024;
/// Endpoints in the slices of all Services, counted with each of their ports. Full: a further slice is left out, its Service named
/// once in the log, and listed again when others have gone; the endpoints of the Service's other slices are used.
pub const ENDPOINTS_MAX: usize = 100_000;
/// Memory of the records of Services and slices: of 10,000 Services with a slice of ten endpoints each, or of 100,000 IPv6
/// endpoints in full slices and 5,000 Services. Full: as for [`SERVICE_PORTS_MAX`] and [`ENDPOINTS_MAX`].
pub const SERVICES_BYTES_MAX: usize = 8 * MIB;
/// Services that are named in the log because they were left out. More: they are left out without a name.
pub const SERVICES_LEFT_OUT_NAMED_MAX: usize = 64;
/// Different sets of zones in the hints of one slice: what a byte counts. More: the endpoint counts as one without hints for zones,
/// so that the Service's traffic goes to all of them.
pub const SLICE_ZONE_SETS_MAX: usize = u8::MAX as usize;
/// How long a client stays with its backend where a Service with `sessionAffinity: ClientIP` does not say it, in seconds
/// (`DefaultClientIPServiceAffinitySeconds`).
pub const AFFINITY_SECONDS_DEFAULT: u32 = 3 * 60 * 60;
/// Clients of one family that stay with their backend: elements of a set that the kernel's rules fill. It is the kernel's own bound, which
/// a set of an earlier agent has. Full: a further client is served by any backend at each connection, until another one's time has ended.
pub const AFFINITIES_MAX: u32 = 65_535;
/// Clients whose backend is gone that are forgotten in one transaction. One whose time ends meanwhile makes the kernel refuse all of it:
/// then each half is tried.
pub const AFFINITIES_DELETED_MAX: usize = 4096;
/// Backends of one family that are gone, and whose clients are still to be forgotten. Full: the clients' of further ones are forgotten
/// when their time ends.
pub const AFFINITY_BACKENDS_GONE_MAX: usize = 16_384;
/// Endpoints of a service whose clients stay with theirs (`sessionAffinity: ClientIP`), each of which is a rule. More: the further ones serve
/// nobody on this node.
pub const AFFINITY_ENDPOINTS_MAX: usize = 1000;
/// Networks in a Service's `loadBalancerSourceRanges`. One with more is left out, and named in the log. The addresses of its load
/// balancer that are added to them are the same number at most.
pub const SOURCE_RANGES_MAX: usize = 2048;
/// Ranges of the cluster's pods (`--cluster-cidr`), one of each family. More: refused.
pub const CLUSTER_CIDRS_MAX: usize = 2;
/// Wait before Services or network policies are asked for again, while a k3s server has given no credentials for it.
pub const COMPONENT_CREDENTIALS_WAIT: Duration = Duration::from_secs(2);
/// Time after which it is looked whether the kernel still has the rules, and those that it refused are written again at the latest.
pub const SERVICES_CHECK_PERIOD: Duration = Duration::from_mins(1);
/// Time after which all rules are written again, whatever is there (kube-proxy's full sync).
pub const SERVICES_WHOLE_PERIOD: Duration = Duration::from_hours(1);
/// Connections to the ports of `healthCheckNodePort` at once, of all Services. Full: further ones wait in the kernel's queue.
pub const SERVICE_HEALTH_CONNECTIONS_MAX: usize = 32;
/// How long one of them lasts. Longer: closed.
pub const SERVICE_HEALTH_TIME: Duration = Duration::from_secs(5);
/// Wait before such a port that somebody else has is tried again.
pub const SERVICE_HEALTH_RETRY: Duration = Duration::from_mins(1);
/// What an allocator keeps beside each piece of memory.
pub const ALLOCATION_BYTES: usize = 16;

// A record of an IPv6 endpoint has 18 bytes; a slice has a hundred endpoints.
const _: () = assert!(ENDPOINTS_MAX * 18 + ENDPOINTS_MAX / 100 * KIB < SERVICES_BYTES_MAX / 2);
