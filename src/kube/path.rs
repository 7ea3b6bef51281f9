//! Paths of API objects. PURE.

use std::fmt::Write as _;

/// A resource in the form that paths have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// `/api/v1`, `/apis/coordination.k8s.io/v1`.
    pub group: &'static str,
    /// `pods`.
    pub plural: &'static str,
}

impl Resource {
    /// v1 Node.
    pub const NODES: Self = Self::core("nodes");
    /// v1 Pod.
    pub const PODS: Self = Self::core("pods");
    /// v1 Namespace.
    pub const NAMESPACES: Self = Self::core("namespaces");
    /// networking.k8s.io/v1 `NetworkPolicy`.
    pub const NETWORK_POLICIES: Self =
        Self { group: "/apis/networking.k8s.io/v1", plural: "networkpolicies" };
    /// v1 ConfigMap.
    pub const CONFIG_MAPS: Self = Self::core("configmaps");
    /// v1 Secret.
    pub const SECRETS: Self = Self::core("secrets");
    /// v1 Event.
    pub const EVENTS: Self = Self::core("events");
    /// v1 Service.
    pub const SERVICES: Self = Self::core("services");
    /// discovery.k8s.io/v1 `EndpointSlice`.
    pub const ENDPOINT_SLICES: Self = Self { group: "/apis/discovery.k8s.io/v1", plural: "endpointslices" };
    /// v1 `ServiceAccount`.
    pub const SERVICE_ACCOUNTS: Self = Self::core("serviceaccounts");
    /// v1 `PersistentVolumeClaim`.
    pub const CLAIMS: Self = Self::core("persistentvolumeclaims");
    /// v1 `PersistentVolume`.
    pub const VOLUMES: Self = Self::core("persistentvolumes");
    /// node.k8s.io/v1 `RuntimeClass`.
    pub const RUNTIME_CLASSES: Self = Self { group: "/apis/node.k8s.io/v1", plural: "runtimeclasses" };
    /// coordination.k8s.io/v1 Lease.
    pub const LEASES: Self = Self { group: "/apis/coordination.k8s.io/v1", plural: "leases" };
    /// certificates.k8s.io/v1 `CertificateSigningRequest`.
    pub const SIGNING_REQUESTS: Self =
        Self { group: "/apis/certificates.k8s.io/v1", plural: "certificatesigningrequests" };
    /// authentication.k8s.io/v1 `TokenReview`.
    pub const TOKEN_REVIEWS: Self = Self { group: "/apis/authentication.k8s.io/v1", plural: "tokenreviews" };
    /// authorization.k8s.io/v1 `SubjectAccessReview`.
    pub const ACCESS_REVIEWS: Self =
        Self { group: "/apis/authorization.k8s.io/v1", plural: "subjectaccessreviews" };

    const fn core(plural: &'static str) -> Self {
        Self { group: "/api/v1", plural }
    }

    /// The path of a namespace's collection, or of all namespaces when it is empty.
    pub fn path(self, namespace: &str) -> String {
        let mut path = self.group.to_owned();
        if !namespace.is_empty() {
            path.push_str("/namespaces/");
            escape(&mut path, namespace);
        }
        path.push('/');
        path.push_str(self.plural);
        path
    }
}

/// The path of one object; `namespace` is empty for a cluster-scoped object.
pub fn object_path(resource: Resource, namespace: &str, name: &str) -> String {
    let mut path = resource.path(namespace);
    path.push('/');
    escape(&mut path, name);
    path
}

/// The path of a subresource: `status`, `token`.
pub fn subresource_path(resource: Resource, namespace: &str, name: &str, part: &str) -> String {
    let mut path = object_path(resource, namespace, name);
    path.push('/');
    path.push_str(part);
    path
}

/// Adds `text` as one part of a path, or as one value of a query.
pub(super) fn escape(path: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            path.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(path, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api_and_names_cannot_leave_them() {
        for (path, wanted) in [
            (Resource::PODS.path(""), "/api/v1/pods"),
            (Resource::PODS.path("default"), "/api/v1/namespaces/default/pods"),
            (object_path(Resource::NODES, "", "gw-1"), "/api/v1/nodes/gw-1"),
            (
                object_path(Resource::LEASES, "kube-node-lease", "gw-1"),
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/gw-1",
            ),
            (
                subresource_path(Resource::PODS, "default", "web", "status"),
                "/api/v1/namespaces/default/pods/web/status",
            ),
            (
                object_path(Resource::PODS, "../x", "a/b?c=é"),
                "/api/v1/namespaces/..%2Fx/pods/a%2Fb%3Fc%3D%C3%A9",
            ),
        ] {
            assert_eq!(path, wanted);
        }
    }
}
