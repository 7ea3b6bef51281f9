//! Identities: a pod's UID and its key, a sandbox's and a container's id. PURE.

use std::borrow::Borrow;
use std::fmt;
use std::rc::Rc;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Rc<str>);

        impl $name {
            /// The id as in the runtime or the API.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The kubelet's functions admit an empty id.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self(Rc::from(id))
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                Self(Rc::from(id))
            }
        }

        // Same order and hash as the text, so maps can be searched with a `&str`.
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id! {
    /// `metadata.uid` of a pod; `io.kubernetes.pod.uid` on its CRI objects.
    PodUid
}
id! {
    /// A pod sandbox's id in the runtime, without a `containerd://` prefix.
    SandboxId
}
id! {
    /// A container's id in the runtime, without a `containerd://` prefix.
    ContainerId
}

/// Identifies a pod: its UID, with namespace and name for messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    /// The identity: a pod with the same name and another UID is another pod.
    pub uid: PodUid,
    /// `metadata.namespace`.
    pub namespace: Rc<str>,
    /// `metadata.name`; of a static pod with the node's name as its suffix.
    pub name: Rc<str>,
}

impl PodKey {
    /// A key from its three parts.
    pub fn new(namespace: &str, name: &str, uid: &str) -> Self {
        Self { uid: PodUid::from(uid), namespace: Rc::from(namespace), name: Rc::from(name) }
    }

    /// True when each part is a valid file name, as in all objects that Kubernetes admits. A runtime may report anything, and
    /// directories are created and removed by these names.
    pub fn is_path_safe(&self) -> bool {
        let safe = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['/', '\0']);
        safe(self.uid.as_str()) && safe(&self.namespace) && safe(&self.name)
    }

    /// Bytes of its three parts.
    pub fn bytes(&self) -> usize {
        self.uid.as_str().len() + self.namespace.len() + self.name.len()
    }

    /// `NAME_NAMESPACE(UID)`: the kubelet's `format.Pod`, used in its messages.
    pub fn kubelet_format(&self) -> String {
        format!("{}_{}({})", self.name, self.namespace, self.uid)
    }
}

/// `NAMESPACE/NAME`, as kubectl users write it.
impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_a_path_separator_is_not_path_safe() {
        assert!(PodKey::new("default", "web-gw.local", "1b4e28ba-2fa1").is_path_safe());
        for (namespace, name, uid) in [
            ("default", "web", ""),
            ("default", "web", ".."),
            ("default", "web", "."),
            ("default", "web", "../u"),
            ("../x", "web", "u"),
            ("default", "a/../b", "u"),
            ("default", "", "u"),
        ] {
            assert!(!PodKey::new(namespace, name, uid).is_path_safe(), "{namespace} {name} {uid}");
        }
    }
}
