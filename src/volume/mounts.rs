//! A container's volume mounts (kubelet `makeMounts`). PURE.
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Volume, VolumeMount};

use super::subpath::{Propagation, SubPath};
use super::{nfs_path, own_path};
use crate::model::DesiredPod;
use crate::model::SortedMap;
use crate::model::object::{ClaimedVolume, VolumeSource};
use crate::proto::runtime::v1::{ImageSpec, Mount, MountPropagation};
use crate::render::{Environment, expand};

/// The mounts of one container, and the subPaths to bind before them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mounts {
    /// In spec order.
    pub mounts: Vec<Mount>,
    /// One per mount with a subPath.
    pub sub_paths: Vec<SubPath>,
}

/// The runtime's image references of a container's image volumes, by the volume's name.
pub type VolumeImages = SortedMap<Box<str>, ImageSpec>;

/// An image volume (`spec.volumes[].image`) that a container mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageVolume<'a> {
    /// The volume's name.
    pub name: &'a str,
    /// The image's name in the manifest.
    pub reference: &'a str,
    /// `pullPolicy`.
    pub pull_policy: Option<&'a str>,
    /// True when a mount of it has a subPath.
    pub in_part: bool,
}

/// The image volumes that these mounts refer to: each once, in the order of the mounts.
pub fn image_volumes<'a>(pod: &'a DesiredPod, wanted: &[VolumeMount]) -> Vec<ImageVolume<'a>> {
    let mut found: Vec<ImageVolume<'a>> = Vec::new();
    for mount in wanted {
        let Some((name, image)) = volume_of(pod, mount).and_then(|of| Some((&of.name, of.image.as_ref()?)))
        else {
            continue;
        };
        let in_part = is_filled(mount.sub_path.as_ref()) || is_filled(mount.sub_path_expr.as_ref());
        if let Some(known) = found.iter_mut().find(|known| known.name == name) {
            known.in_part |= in_part;
            continue;
        }
        found.push(ImageVolume {
            name,
            reference: image.reference.as_deref().unwrap_or_default(),
            pull_policy: image.pull_policy.as_deref(),
            in_part,
        });
    }
    found
}

pub(super) fn volume_of<'a>(pod: &'a DesiredPod, mount: &VolumeMount) -> Option<&'a Volume> {
    pod.spec().volumes.iter().flatten().find(|volume| volume.name == mount.name)
}

/// A relative mount path is relative to the root, as in the kubelet.
pub(super) fn container_path(mount: &VolumeMount) -> String {
    let slash = if mount.mount_path.starts_with('/') { "" } else { "/" };
    format!("{slash}{}", mount.mount_path)
}

/// By the mount, or by the volume: object and image volumes are read-only whatever the mount says (`GetAttributes`), others where
/// their source or claim says so.
pub(super) fn is_read_only(pod: &DesiredPod, volume: &Volume, mount: &VolumeMount) -> bool {
    let of_volume = match (pod.claimed(volume), &volume.nfs) {
        (Some(claimed), _) => claimed.is_ok_and(|claimed| claimed.read_only),
        (None, Some(of)) => of.read_only.unwrap_or(false),
        (None, None) => volume.host_path.is_none() && volume.empty_dir.is_none(),
    };
    mount.read_only.unwrap_or(false) || of_volume
}

fn is_filled(text: Option<&String>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

/// The mounts of the container `container`; `variables` expand `subPathExpr`, `images` are those of its image volumes.
///
/// # Errors
/// A mount refers to a volume that the pod does not have (rejected at the source; the core's types admit it), or to a path
/// outside it.
pub fn container_mounts(
    pod: &DesiredPod,
    container: &str,
    wanted: &[VolumeMount],
    images: &VolumeImages,
    variables: &Environment,
    pod_dir: &str,
) -> Result<Mounts, String> {
    let mut found = Mounts::default();
    for (index, mount) in wanted.iter().enumerate() {
        let missing = || format!("cannot find volume {:?} to mount into container {container:?}", mount.name);
        let volume = volume_of(pod, mount).ok_or_else(missing)?;
        let part = sub_path(mount, variables)?;
        let mut source = Mount::default();
        let claimed = pod.claimed(volume);
        if volume.image.is_some() {
            // The runtime mounts an image's files, and resolves the subPath itself.
            source.image = Some(images.get(&*mount.name).ok_or_else(missing)?.clone());
            source.image_sub_path = part;
        } else {
            let volume_path = match (&volume.host_path, claimed) {
                (Some(of_node), _) => of_node.path.clone(),
                (None, Some(claimed)) => match claimed.map_err(|_| missing())?.volume.as_ref() {
                    ClaimedVolume { source: VolumeSource::Path { path, .. }, .. } => path.to_string(),
                    ClaimedVolume { source: VolumeSource::Nfs(_), name, .. } => nfs_path(pod_dir, name),
                },
                (None, None) => own_path(pod_dir, volume),
            };
            if part.is_empty() {
                source.host_path = volume_path;
            } else {
                source.host_path = format!("{pod_dir}/volume-subpaths/{}/{container}/{index}", volume.name);
                found.sub_paths.push(SubPath {
                    mount: mount.name.clone(),
                    container: container.to_owned(),
                    volume: PathBuf::from(volume_path),
                    part,
                    propagation: match mount.mount_propagation.as_deref() {
                        Some("HostToContainer") => Propagation::FromHost,
                        Some("Bidirectional") => Propagation::Both,
                        _ => Propagation::None,
                    },
                    target: PathBuf::from(&source.host_path),
                });
            }
        }
        let propagation = match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
            Some("Bidirectional") => MountPropagation::PropagationBidirectional,
            _ => MountPropagation::PropagationPrivate,
        };
        found.mounts.push(Mount {
            container_path: container_path(mount),
            readonly: is_read_only(pod, volume, mount),
            // smolet's own files get the container's SELinux label.
            selinux_relabel: volume.host_path.is_none()
                && volume.image.is_none()
                && volume.nfs.is_none()
                && claimed.is_none(),
            propagation: propagation as i32,
            ..source
        });
    }
    Ok(found)
}

/// The mount's subPath; empty for the whole volume.
fn sub_path(mount: &VolumeMount, variables: &Environment) -> Result<String, String> {
    let expression = mount.sub_path_expr.as_deref().filter(|text| !text.is_empty());
    let part = match expression {
        Some(text) => expanded(text, variables)?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    // Differs from the kubelet, which shows the expanded expression: that may contain a Secret's value.
    let shown = expression.unwrap_or(&part);
    if part.starts_with('/') {
        return Err(format!("error SubPath `{shown}` must not be an absolute path"));
    }
    if part.split('/').any(|part| part == "..") {
        return Err(format!("unable to provision SubPath `{shown}`: must not contain '..'"));
    }
    Ok(part)
}

/// `ExpandContainerVolumeMounts`: a variable that is missing or empty is an error.
fn expanded(text: &str, variables: &Environment) -> Result<String, String> {
    let missing = std::cell::RefCell::new(crate::model::SortedSet::new());
    let lookup = |name: &[u8]| {
        let name = std::str::from_utf8(name).ok()?;
        let value = variables.get(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.borrow_mut().insert(name.to_owned());
        }
        value.map(Vec::as_slice)
    };
    let part = expand(text.as_bytes(), lookup);
    let missing = missing.into_inner();
    if !missing.is_empty() {
        let names: Vec<String> = missing.into_iter().collect();
        return Err(format!("missing value for {}", names.join(", ")));
    }
    String::from_utf8(part).map_err(|_| format!("subPathExpr {text:?} becomes text that is not valid UTF-8"))
}

/// True when the mounts depend on the container's variables.
pub fn needs_variables(wanted: &[VolumeMount]) -> bool {
    wanted.iter().any(|mount| is_filled(mount.sub_path_expr.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod() -> DesiredPod {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [], "volumes": [
            {"name": "data", "emptyDir": {}}, {"name": "dev", "hostPath": {"path": "/dev/null"}},
            {"name": "conf", "configMap": {"name": "m"}}, {"name": "key", "secret": {"secretName": "s"}},
            {"name": "me", "downwardAPI": {}}, {"name": "all", "projected": {}},
            {"name": "model", "image": {"reference": "model:1", "pullPolicy": "Never"}}, {"name": "gone", "image": {}},
            {"name": "net", "nfs": {"server": "nas", "path": "/"}}, {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "nets", "nfs": {"server": "nas", "path": "/", "readOnly": true}}]}});
        let mut pod = DesiredPod::new(serde_json::from_value(pod).unwrap());
        let export = crate::model::NfsExport::new("nas", "/", std::iter::empty()).unwrap();
        let volume = ClaimedVolume { name: "pv".into(), source: VolumeSource::Nfs(export), nodes: None };
        let claimed = crate::model::desired::ClaimedSource { volume: volume.into(), read_only: true };
        pod.claims = vec![("claim".into(), Ok(claimed))];
        pod
    }

    fn parsed(wanted: &Value) -> Vec<VolumeMount> {
        serde_json::from_value(wanted.clone()).unwrap()
    }

    fn mounts(wanted: &Value) -> Result<Mounts, String> {
        let wanted = parsed(wanted);
        let model = ImageSpec { image: "sha256:7".to_owned(), ..ImageSpec::default() };
        let images = VolumeImages::from([("model".into(), model)]);
        let variables = [("A", "a/b"), ("EMPTY", "")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.into()));
        container_mounts(&pod(), "c", &wanted, &images, &variables.into(), "/r")
    }

    #[test]
    fn volumes_become_mounts() {
        let found = mounts(&json!([
            {"name": "data", "mountPath": "/data", "readOnly": true, "mountPropagation": "HostToContainer"},
            {"name": "dev", "mountPath": "dev/x", "mountPropagation": "Bidirectional"},
            {"name": "conf", "mountPath": "/c"}, {"name": "key", "mountPath": "/k"},
            {"name": "me", "mountPath": "/m"}, {"name": "all", "mountPath": "/a"},
            {"name": "data", "mountPath": "/d", "subPath": "x/./y"},
            {"name": "dev", "mountPath": "/e", "subPathExpr": "$(A)/$$(A)"},
            {"name": "net", "mountPath": "/n"}, {"name": "nets", "mountPath": "/s"}, {"name": "claim", "mountPath": "/p"},
            {"name": "claim", "mountPath": "/q", "subPath": "x"}]));
        let found = found.unwrap();
        let seen: Vec<String> = found
            .mounts
            .iter()
            .map(|m| {
                format!(
                    "{} {} {} {} {}",
                    m.container_path, m.host_path, m.readonly, m.propagation, m.selinux_relabel
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                "/data /r/volumes/kubernetes.io~empty-dir/data true 1 true",
                "/dev/x /dev/null false 2 false",
                "/c /r/volumes/kubernetes.io~configmap/conf true 0 true",
                "/k /r/volumes/kubernetes.io~secret/key true 0 true",
                "/m /r/volumes/kubernetes.io~downward-api/me true 0 true",
                "/a /r/volumes/kubernetes.io~projected/all true 0 true",
                "/d /r/volume-subpaths/data/c/6 false 0 true",
                "/e /r/volume-subpaths/dev/c/7 false 0 false",
                "/n /r/volumes/kubernetes.io~nfs/net false 0 false",
                "/s /r/volumes/kubernetes.io~nfs/nets true 0 false",
                "/p /r/volumes/kubernetes.io~nfs/pv true 0 false",
                "/q /r/volume-subpaths/claim/c/11 true 0 false",
            ]
        );
        let parts: Vec<String> = found
            .sub_paths
            .iter()
            .map(|part| format!("{} {} {}", part.volume.display(), part.part, part.target.display()))
            .collect();
        assert_eq!(
            parts,
            [
                "/r/volumes/kubernetes.io~empty-dir/data x/./y /r/volume-subpaths/data/c/6",
                "/dev/null a/b/$(A) /r/volume-subpaths/dev/c/7",
                "/r/volumes/kubernetes.io~nfs/pv x /r/volume-subpaths/claim/c/11"
            ]
        );
    }

    #[test]
    fn an_image_is_mounted_by_the_runtime() {
        let found = mounts(&json!([
            {"name": "model", "mountPath": "/m"},
            {"name": "model", "mountPath": "/p", "subPathExpr": "$(A)", "readOnly": true}]));
        let found = found.unwrap();
        assert_eq!(found.sub_paths, [], "nothing is bound for it");
        let image = Some(ImageSpec { image: "sha256:7".to_owned(), ..ImageSpec::default() });
        let mount = |path: &str, part: &str| Mount {
            container_path: path.to_owned(),
            readonly: true,
            image: image.clone(),
            image_sub_path: part.to_owned(),
            ..Mount::default()
        };
        assert_eq!(found.mounts, [mount("/m", ""), mount("/p", "a/b")]);
    }

    #[test]
    fn the_image_volumes_of_a_container_are_those_it_mounts() {
        let (pod, of) = (pod(), |wanted: Value| parsed(&wanted));
        let of_model = |in_part| ImageVolume {
            name: "model",
            reference: "model:1",
            pull_policy: Some("Never"),
            in_part,
        };
        let whole = json!({"name": "model", "mountPath": "/m", "subPath": ""});
        let part = |field: &str| json!({"name": "model", "mountPath": "/p", field: "x"});
        assert_eq!(image_volumes(&pod, &of(json!([{"name": "data", "mountPath": "/d"}]))), []);
        assert_eq!(image_volumes(&pod, &of(json!([whole]))), [of_model(false)]);
        for field in ["subPath", "subPathExpr"] {
            let both = of(json!([whole, {"name": "gone", "mountPath": "/g"}, part(field)]));
            let gone = ImageVolume { name: "gone", reference: "", pull_policy: None, in_part: false };
            assert_eq!(image_volumes(&pod, &both), [of_model(true), gone]);
        }
    }

    #[test]
    fn a_path_out_of_a_volume_or_an_unknown_volume_is_an_error() {
        for (mount, wanted) in [
            (json!({"name": "no"}), "cannot find volume \"no\" to mount into container \"c\""),
            (json!({"name": "gone"}), "cannot find volume \"gone\" to mount into container \"c\""),
            (
                json!({"name": "model", "subPath": "../x"}),
                "unable to provision SubPath `../x`: must not contain '..'",
            ),
            (json!({"name": "data", "subPathExpr": "$(EMPTY)-$(NO)-$(A)"}), "missing value for EMPTY, NO"),
            (
                json!({"name": "data", "subPathExpr": "/$(A)"}),
                "error SubPath `/$(A)` must not be an absolute path",
            ),
            (
                json!({"name": "data", "subPathExpr": "$(A)/../x"}),
                "unable to provision SubPath `$(A)/../x`: must not contain '..'",
            ),
        ] {
            let mut mount = mount;
            mount["mountPath"] = json!("/x");
            assert_eq!(mounts(&json!([mount])).unwrap_err(), wanted);
        }
    }
}
