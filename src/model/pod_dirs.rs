//! Names in a pod's directory, in the kubelet's layout. PURE.

/// In `volumes`: the directory of NFS volumes (`util.EscapeQualifiedName` of the plugin's name).
pub const NFS: &str = "kubernetes.io~nfs";
/// Bind mounts of volume subpaths: VOLUME/CONTAINER/INDEX (`subpath.go`).
pub const SUBPATHS: &str = "volume-subpaths";
