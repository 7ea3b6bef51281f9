//! Names in a pod's directory that several modules need: the kubelet's layout. PURE.

/// Below `volumes`: the directory of NFS volumes, which lie on servers (`util.EscapeQualifiedName` of the plugin's name).
pub const NFS: &str = "kubernetes.io~nfs";
/// Where parts of volumes are bound: VOLUME/CONTAINER/INDEX (`subpath.go`).
pub const SUBPATHS: &str = "volume-subpaths";
