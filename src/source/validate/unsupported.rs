//! What this version does not do yet: refused with a sentence that names the field, never ignored. PURE.
//!
//! A row leaves the tables when its feature arrives; `fields` then answers for the field what its own line says.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume, VolumeProjection};

use super::Check;

/// A field of a `T` that is refused: its path below the `T`, why (read behind "is not supported by this version"),
/// and whether a `T` has it. The path is one of the API's, or a key behind one that is a map.
struct Row<T>(&'static str, &'static str, fn(&T) -> bool);

fn any<T>(list: Option<&Vec<T>>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}

fn filled(text: Option<&String>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

/// Fields of `metadata`.
const METADATA: &[Row<Pod>] = &[
    Row("generateName", "a static pod needs its own name", |pod| filled(pod.metadata.generate_name.as_ref())),
    Row("ownerReferences", "static pods have no owners", |pod| any(pod.metadata.owner_references.as_ref())),
    Row("finalizers", "they need an API server", |pod| any(pod.metadata.finalizers.as_ref())),
    Row("deletionTimestamp", "to stop the pod, remove its manifest", |pod| {
        pod.metadata.deletion_timestamp.is_some()
    }),
    Row("annotations[kubernetes.io/config.mirror]", "it marks the copy of a pod in an API server", |pod| {
        annotation(pod, |key, _| key == "kubernetes.io/config.mirror")
    }),
];

/// Fields of `spec`.
const SPEC: &[Row<PodSpec>] = &[
    Row("ephemeralContainers", "smolet debug adds them to a running pod", |spec| {
        any(spec.ephemeral_containers.as_ref())
    }),
    Row("serviceAccountName", "service accounts need an API server", |spec| {
        filled(spec.service_account_name.as_ref())
    }),
    Row("serviceAccount", "service accounts need an API server", |spec| {
        filled(spec.service_account.as_ref())
    }),
    Row("resourceClaims", "dynamic resources need an API server", |spec| any(spec.resource_claims.as_ref())),
    Row("overhead", "it is set from a runtime class", |spec| spec.overhead.is_some()),
    Row("schedulingGates", "there is no scheduler", |spec| any(spec.scheduling_gates.as_ref())),
    Row("schedulingGroup", "there is no scheduler", |spec| spec.scheduling_group.is_some()),
    Row("readinessGates", "their conditions need an API server", |spec| any(spec.readiness_gates.as_ref())),
    Row("resources.claims", "dynamic resources need an API server", |spec| {
        spec.resources.as_ref().is_some_and(|resources| any(resources.claims.as_ref()))
    }),
];

/// Fields of a container in either list.
const CONTAINER: &[Row<Container>] = &[
    Row("volumeDevices", "block devices are not mapped", |container| any(container.volume_devices.as_ref())),
    Row("resources.claims", "dynamic resources need an API server", |container| {
        container.resources.as_ref().is_some_and(|resources| any(resources.claims.as_ref()))
    }),
    Row("resources.limits[DOMAIN/NAME]", "device plugins are not served", |container| {
        let resources = container.resources.as_ref();
        let lists = resources.map(|r| [r.limits.as_ref(), r.requests.as_ref()]);
        lists.iter().flatten().flatten().any(|list| list.keys().any(|name| name.contains('/')))
    }),
];

/// Sources of a projected volume.
const PROJECTION: &[Row<VolumeProjection>] = &[
    Row("serviceAccountToken", "service accounts need an API server", |source| {
        source.service_account_token.is_some()
    }),
    Row("clusterTrustBundle", "trust bundles need an API server", |source| {
        source.cluster_trust_bundle.is_some()
    }),
    Row("podCertificate", "certificates for pods need an API server", |source| {
        source.pod_certificate.is_some()
    }),
];

/// The refused fields that a source of a projected volume has.
pub(super) fn projections(source: &VolumeProjection) -> impl Iterator<Item = &'static str> {
    PROJECTION.iter().filter(|Row(_, _, has)| has(source)).map(|Row(field, ..)| *field)
}

/// A kind of volume: its field, whether it is supported, and whether a volume is one.
type Kind = (&'static str, bool, fn(&Volume) -> bool);

/// Every kind of volume.
const VOLUME_KINDS: &[Kind] = &[
    ("emptyDir", true, |volume| volume.empty_dir.is_some()),
    ("hostPath", true, |volume| volume.host_path.is_some()),
    ("configMap", true, |volume| volume.config_map.is_some()),
    ("secret", true, |volume| volume.secret.is_some()),
    ("projected", true, |volume| volume.projected.is_some()),
    ("downwardAPI", true, |volume| volume.downward_api.is_some()),
    ("persistentVolumeClaim", false, |volume| volume.persistent_volume_claim.is_some()),
    ("ephemeral", false, |volume| volume.ephemeral.is_some()),
    ("csi", false, |volume| volume.csi.is_some()),
    ("image", true, |volume| volume.image.is_some()),
    ("nfs", true, |volume| volume.nfs.is_some()),
    ("iscsi", false, |volume| volume.iscsi.is_some()),
    ("fc", false, |volume| volume.fc.is_some()),
    ("flexVolume", false, |volume| volume.flex_volume.is_some()),
    ("gitRepo", false, |volume| volume.git_repo.is_some()),
    ("glusterfs", false, |volume| volume.glusterfs.is_some()),
    ("cephfs", false, |volume| volume.cephfs.is_some()),
    ("rbd", false, |volume| volume.rbd.is_some()),
    ("cinder", false, |volume| volume.cinder.is_some()),
    ("flocker", false, |volume| volume.flocker.is_some()),
    ("quobyte", false, |volume| volume.quobyte.is_some()),
    ("storageos", false, |volume| volume.storageos.is_some()),
    ("scaleIO", false, |volume| volume.scale_io.is_some()),
    ("portworxVolume", false, |volume| volume.portworx_volume.is_some()),
    ("photonPersistentDisk", false, |volume| volume.photon_persistent_disk.is_some()),
    ("vsphereVolume", false, |volume| volume.vsphere_volume.is_some()),
    ("awsElasticBlockStore", false, |volume| volume.aws_elastic_block_store.is_some()),
    ("azureDisk", false, |volume| volume.azure_disk.is_some()),
    ("azureFile", false, |volume| volume.azure_file.is_some()),
    ("gcePersistentDisk", false, |volume| volume.gce_persistent_disk.is_some()),
];

/// The field of every kind that `volume` is of; one for a valid volume.
pub(super) fn volume_kinds(volume: &Volume) -> impl Iterator<Item = &'static str> {
    VOLUME_KINDS.iter().filter(|(_, _, is)| is(volume)).map(|(field, ..)| *field)
}

/// Everything that is refused: the field, with `[*]` for the items of a list on its way, and why.
pub(super) fn table() -> Vec<(String, &'static str)> {
    fn rows<T>(below: &str, rows: &'static [Row<T>]) -> impl Iterator<Item = (String, &'static str)> {
        rows.iter().map(move |Row(field, why, _)| (format!("{below}.{field}"), *why))
    }
    let kinds = VOLUME_KINDS.iter().filter(|(_, supported, _)| !supported);
    rows("metadata", METADATA)
        .chain(rows("spec", SPEC))
        .chain(rows("spec.containers[*]", CONTAINER))
        .chain(rows("spec.volumes[*].projected.sources[*]", PROJECTION))
        .chain(kinds.map(|(field, ..)| (format!("spec.volumes[*].{field}"), KIND)))
        .collect()
}

const KIND: &str = "use emptyDir, hostPath, configMap, secret, downwardAPI, projected, nfs or image";

/// Refuses what the tables name in a pod of a manifest.
pub(super) fn pod(check: &mut Check<'_>, pod: &Pod) {
    check.at("metadata", |check| rows(check, METADATA, pod));
    let Some(spec) = &pod.spec else { return };
    check.at("spec", |check| {
        rows(check, SPEC, spec);
        let own = |check: &mut Check<'_>, container: &Container| rows(check, CONTAINER, container);
        check.each("containers", &spec.containers, own);
        check.each("initContainers", spec.init_containers.as_deref().unwrap_or_default(), own);
        check.each("volumes", spec.volumes.as_deref().unwrap_or_default(), |check, volume| {
            for (field, _, _) in VOLUME_KINDS.iter().filter(|(_, supported, is)| !supported && is(volume)) {
                refuse(check, field, KIND);
            }
            let sources = volume.projected.iter().flat_map(|of| of.sources.iter().flatten());
            for (index, source) in sources.enumerate() {
                let at = format!("projected.sources[{index}]");
                check.at_path(&at, |check| rows(check, PROJECTION, source));
            }
        });
    });
}

fn rows<T>(check: &mut Check<'_>, rows: &[Row<T>], part: &T) {
    for Row(field, why, has) in rows {
        if has(part) {
            refuse(check, field, why);
        }
    }
}

fn refuse(check: &mut Check<'_>, field: &str, why: &str) {
    check.at_path(field, |check| check.forbidden(&format!("is not supported by this version: {why}")));
}

fn annotation(pod: &Pod, is: impl Fn(&str, &str) -> bool) -> bool {
    pod.metadata.annotations.iter().flatten().any(|(key, value)| is(key, value))
}
