//! The volume of a persistent volume claim for a pod of this node, or the kubelet's message why there is none (`getPVCExtractPV`,
//! `getPVSpec`). PURE.
//!
//! Parsed by hand: deserializing the whole types would add their code to the binary.

use crate::decode::{Node, Path, typed};
use crate::limits::CLAIM_PATH_BYTES_MAX;
use crate::model::NfsExport;
use crate::model::object::{ClaimedVolume, VolumeSource};

/// A bound claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The claim's UID.
    pub uid: Box<str>,
    /// The volume's name.
    pub volume: Box<str>,
}

fn text<'a>(object: &'a Node, path: &[&str]) -> &'a str {
    let found = path.iter().try_fold(object, |at, field| at.field(field));
    found.and_then(Node::text).unwrap_or_default()
}

/// The volume that the claim is bound to.
///
/// # Errors
/// Why a pod cannot use it yet.
pub fn bound(claim: &Node) -> Result<Bound, String> {
    if !text(claim, &["metadata", "deletionTimestamp"]).is_empty() {
        return Err("PVC is being deleted".to_owned());
    }
    let volume = text(claim, &["spec", "volumeName"]);
    if text(claim, &["status", "phase"]) != "Bound" || volume.is_empty() {
        return Err("PVC is not bound".to_owned());
    }
    Ok(Bound { uid: text(claim, &["metadata", "uid"]).into(), volume: volume.into() })
}

/// The volume of that claim.
///
/// # Errors
/// Why it is not the claim's, or not a type that this version mounts.
pub fn volume(volume: &Node, claim: &Bound) -> Result<ClaimedVolume, String> {
    let name = &claim.volume;
    let Some(reference) = volume.field("spec").and_then(|spec| spec.field("claimRef")) else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    let uid = text(reference, &["uid"]);
    if uid != &*claim.uid {
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {uid} does not point to claim.UID {}",
            claim.uid
        ));
    }
    if text(volume, &["spec", "volumeMode"]) == "Block" {
        return Err(format!("volume {name} has volumeMode Block, but is specified in volumeMounts"));
    }
    let of = |kind: &str| volume.field("spec").and_then(|spec| spec.field(kind));
    let source = match (of("hostPath"), of("local"), of("nfs")) {
        (Some(host), ..) => path(name, text(host, &["path"]), text(host, &["type"]))?,
        // A local volume must be an existing directory; a device would have to be formatted.
        (None, Some(local), _) => path(name, text(local, &["path"]), "Directory")?,
        (None, None, Some(nfs)) => VolumeSource::Nfs(export(volume, name, nfs)?),
        (None, None, None) => {
            return Err(format!(
                "failed to get Plugin from volumeSpec for volume {name:?} err=no volume plugin matched"
            ));
        }
    };
    let nodes = of("nodeAffinity").and_then(|affinity| affinity.field("required"));
    let nodes = match nodes.map(|nodes| typed::read_known(nodes, Path::default())) {
        None => None,
        Some(Ok(nodes)) => Some(nodes),
        // The server has validated it: what cannot be parsed is of a later version.
        Some(Err(_)) => return Err(format!("volume {name} has a nodeAffinity that cannot be read")),
    };
    Ok(ClaimedVolume { name: name.clone(), source, nodes })
}

fn path(name: &str, path: &str, kind: &str) -> Result<VolumeSource, String> {
    let parts = || path.split('/').any(|part| part == "..");
    if !path.starts_with('/') || parts() || path.len() > CLAIM_PATH_BYTES_MAX {
        return Err(format!(
            "volume {name} has a path that is none of a node: it must be absolute, without .."
        ));
    }
    Ok(VolumeSource::Path { path: path.into(), kind: kind.into() })
}

/// The volume's `readOnly` is ignored, as in the kubelet (`getVolumeSource`), in favour of the claim's.
fn export(volume: &Node, name: &str, nfs: &Node) -> Result<NfsExport, String> {
    // The name becomes a directory in the pod's directory.
    if name.contains('/') || matches!(name, "." | "..") {
        return Err(format!("volume {name:?} has a name that no directory can have"));
    }
    // `MountOptionFromSpec`: the annotation takes precedence over the field.
    let metadata = volume.field("metadata").and_then(|metadata| metadata.field("annotations"));
    let annotation = metadata.and_then(|annotations| annotations.field(OPTIONS)).and_then(Node::text);
    let field = volume.field("spec").and_then(|spec| spec.field("mountOptions"));
    let of_field = field.map(Node::items).unwrap_or_default().iter().filter_map(Node::text);
    let options: Vec<&str> = match annotation {
        Some(options) => options.split(',').collect(),
        None => of_field.collect(),
    };
    NfsExport::new(text(nfs, &["server"]), text(nfs, &["path"]), options.into_iter())
        .map_err(|refused| format!("volume {name}: {refused}"))
}

/// `MountOptionAnnotation`.
const OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tree(value: &Value) -> Node {
        crate::decode::json::read(value.to_string().as_bytes()).expect("JSON")
    }

    #[test]
    fn only_a_bound_claim_has_a_volume() {
        let claim = |change: &dyn Fn(&mut Value)| {
            let mut claim =
                json!({"metadata": {"uid": "u"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}});
            change(&mut claim);
            bound(&tree(&claim)).map(|bound| bound.volume.to_string())
        };
        assert_eq!(claim(&|_| {}), Ok("pv".to_owned()));
        assert_eq!(claim(&|of| of["status"]["phase"] = "Pending".into()), Err("PVC is not bound".to_owned()));
        assert_eq!(claim(&|of| of["spec"]["volumeName"] = "".into()), Err("PVC is not bound".to_owned()));
        let deleted = claim(&|of| of["metadata"]["deletionTimestamp"] = "x".into());
        assert_eq!(deleted, Err("PVC is being deleted".to_owned()));
    }

    #[test]
    fn a_volume_is_a_path_of_the_node_or_says_why_not() {
        let shown = |spec: Value| {
            let mut spec = spec;
            if spec.get("claimRef").is_none() {
                spec["claimRef"] = json!({"uid": "u"});
            }
            let claim = Bound { uid: "u".into(), volume: "pv".into() };
            match volume(&tree(&json!({"spec": spec})), &claim) {
                Ok(found) => {
                    let terms = found.nodes.map_or(0, |nodes| nodes.node_selector_terms.len());
                    match found.source {
                        VolumeSource::Path { path, kind } => format!("{path} {kind:?} {terms}"),
                        VolumeSource::Nfs(of) => format!("{} {} {terms}", of.source(), of.options.join(",")),
                    }
                }
                Err(why) => why,
            }
        };
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["gw"]}]}]}});
        for (spec, wanted) in [
            (
                json!({"hostPath": {"path": "/data", "type": "DirectoryOrCreate"}}),
                "/data \"DirectoryOrCreate\" 0",
            ),
            (json!({"hostPath": {"path": "/data"}}), "/data \"\" 0"),
            (json!({"local": {"path": "/disk"}, "nodeAffinity": affinity}), "/disk \"Directory\" 1"),
            (
                json!({"nfs": {"server": "fd00::7", "path": "/data", "readOnly": true}, "mountOptions": ["hard", "nfsvers=4.1"]}),
                "[fd00::7]:/data hard,nfsvers=4.1 0",
            ),
            (
                json!({"nfs": {"server": "nas", "path": "/data"}, "mountOptions": ["hard,ro"]}),
                "volume pv: mountOptions \"hard,ro\": must be one option: no ',', blank, quote, backslash, '..', or '-' at \
                 its beginning; give each of several its own item",
            ),
            (
                json!({"nfs": {"server": "-o", "path": "/data"}}),
                "volume pv: nfs.server \"-o\": must be a host's name or an address: letters, digits, '-', '_' and '.', or IPv6",
            ),
            (
                json!({"csi": {"driver": "x"}}),
                "failed to get Plugin from volumeSpec for volume \"pv\" err=no volume plugin matched",
            ),
            (
                json!({"local": {"path": "/disk"}, "volumeMode": "Block"}),
                "volume pv has volumeMode Block, but is specified in volumeMounts",
            ),
            (
                json!({"local": {"path": "/disk"}, "claimRef": {"uid": "other"}}),
                "found PV object pv but its pv.Spec.ClaimRef.UID other does not point to claim.UID u",
            ),
            (
                json!({"hostPath": {"path": "/a/../b"}}),
                "volume pv has a path that is none of a node: it must be absolute, without ..",
            ),
        ] {
            assert_eq!(shown(spec), wanted);
        }
        let spec = json!({"nfs": {"server": "nas", "path": "/"}, "mountOptions": ["hard"], "claimRef": {"uid": "u"}});
        let mut pv = json!({"metadata": {"annotations": {OPTIONS: "soft,,ro"}}, "spec": spec});
        let claim = |name: &str| Bound { uid: "u".into(), volume: name.into() };
        let found = volume(&tree(&pv), &claim("pv")).expect("a volume");
        let VolumeSource::Nfs(of) = found.source else { panic!("{found:?}") };
        assert_eq!(of.options.join(","), "soft,ro", "the annotation instead of the field");
        pv["spec"]["nfs"]["path"] = "/a/../b".into();
        let why = volume(&tree(&pv), &claim("pv")).expect_err("refused");
        assert!(why.starts_with("volume pv: nfs.path \"/a/../b\": must be an absolute path"), "{why}");
        assert!(volume(&tree(&pv), &claim("..")).expect_err("refused").contains("no directory can have"));
    }
}
