//! `spec.volumes` (`ValidateVolumes`). PURE.

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, EmptyDirVolumeSource, HostPathVolumeSource, ImageVolumeSource, KeyToPath,
    NFSVolumeSource, ProjectedVolumeSource, Volume,
};

use super::container::pull_policy;
use super::{Check, env};
use crate::model::SortedSet;
use crate::model::names;
use crate::model::nfs;
use crate::model::quantity::Quantity;

/// All volumes.
pub(super) fn volumes(check: &mut Check<'_>, volumes: &[Volume]) {
    let mut seen = SortedSet::new();
    check.each("volumes", volumes, |check, volume| {
        check.at("name", |check| {
            if volume.name.is_empty() {
                return check.required("the volume's name");
            }
            check.text(&volume.name, names::label);
            if !seen.insert(volume.name.as_str()) {
                check.duplicate(&volume.name, "another volume has this name");
            }
        });
        source(check, volume);
    });
}

/// The sources that are supported; the others are refused by `unsupported`.
fn source(check: &mut Check<'_>, volume: &Volume) {
    let kinds: Vec<&str> = super::unsupported::volume_kinds(volume).collect();
    if kinds.len() > 1 {
        check.wrong(&format!("must be of one kind, not of {} ({})", kinds.len(), kinds.join(", ")));
    }
    if let Some(of) = &volume.empty_dir {
        check.at("emptyDir", |check| empty_dir(check, of));
    }
    if let Some(of) = &volume.host_path {
        check.at("hostPath", |check| host_path(check, of));
    }
    if let Some(of) = &volume.nfs {
        check.at("nfs", |check| nfs(check, of));
    }
    if let Some(of) = &volume.secret {
        check.at("secret", |check| {
            object(check, "secretName", of.secret_name.as_deref(), of.items.as_deref());
            check.at("defaultMode", |check| file_mode(check, of.default_mode));
        });
    }
    if let Some(of) = &volume.config_map {
        check.at("configMap", |check| {
            object(check, "name", Some(&of.name), of.items.as_deref());
            check.at("defaultMode", |check| file_mode(check, of.default_mode));
        });
    }
    if let Some(of) = &volume.downward_api {
        check.at("downwardAPI", |check| {
            check.at("defaultMode", |check| file_mode(check, of.default_mode));
            check.each("items", of.items.as_deref().unwrap_or_default(), downward_file);
        });
    }
    if let Some(of) = &volume.projected {
        check.at("projected", |check| projected(check, of));
    }
    if let Some(of) = &volume.image {
        check.at("image", |check| image(check, of));
    }
    paths(check, volume);
}

/// `validateEmptyDirVolumeSource`.
fn empty_dir(check: &mut Check<'_>, of: &EmptyDirVolumeSource) {
    if let Some(medium) = of.medium.as_deref() {
        let page = medium.strip_prefix("HugePages-").map(Quantity::parse);
        let is_page_size = matches!(page, Some(Ok(size)) if size > Quantity::ZERO);
        if !matches!(medium, "" | "Memory" | "HugePages") && !is_page_size {
            let message = "must be empty, Memory, HugePages or HugePages-SIZE, such as HugePages-2Mi";
            check.at("medium", |check| check.invalid_text(medium, message));
        }
    }
    if let Some(size) = &of.size_limit {
        check.at("sizeLimit", |check| match Quantity::parse(&size.0) {
            Ok(size) if size >= Quantity::ZERO => {}
            Ok(_) | Err(_) => check.invalid_text(&size.0, "must be a quantity of 0 or more, such as 64Mi"),
        });
    }
}

/// `validateHostPathVolumeSource`.
fn host_path(check: &mut Check<'_>, of: &HostPathVolumeSource) {
    const TYPES: [&str; 8] =
        ["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];
    check.at("path", |check| match &*of.path {
        "" => check.required("the path on this node"),
        path => check.text(path, names::no_backsteps),
    });
    check.at("type", |check| check.one_of(of.type_.as_deref().unwrap_or_default(), &TYPES));
}

/// `validateNFSVolumeSource`, and what a mount of it may be.
fn nfs(check: &mut Check<'_>, of: &NFSVolumeSource) {
    check.at("path", |check| match &*of.path {
        "" => check.required("the directory that the server exports"),
        path => check.text(path, nfs::path),
    });
    check.at("server", |check| match &*of.server {
        "" => check.required("the server's name or address"),
        server => check.text(server, nfs::server),
    });
}

/// `validateImageVolumeSource`.
fn image(check: &mut Check<'_>, of: &ImageVolumeSource) {
    if of.reference.as_deref().unwrap_or_default().is_empty() {
        check.at("reference", |check| check.required("the image's name"));
    }
    check.at("pullPolicy", |check| pull_policy(check, of.pull_policy.as_deref()));
}

/// The name of the object and the items of its volume.
fn object(check: &mut Check<'_>, field: &str, name: Option<&str>, items: Option<&[KeyToPath]>) {
    check.at(field, |check| match name.unwrap_or_default() {
        "" => check.required("the object's name"),
        name => check.text(name, names::subdomain),
    });
    check.each("items", items.unwrap_or_default(), key_to_path);
}

/// `validateProjectedVolumeSource`.
fn projected(check: &mut Check<'_>, of: &ProjectedVolumeSource) {
    check.at("defaultMode", |check| file_mode(check, of.default_mode));
    check.each("sources", of.sources.as_deref().unwrap_or_default(), |check, source| {
        if let Some(of) = &source.secret {
            check.at("secret", |check| object(check, "name", Some(&of.name), of.items.as_deref()));
        }
        if let Some(of) = &source.config_map {
            check.at("configMap", |check| object(check, "name", Some(&of.name), of.items.as_deref()));
        }
        if let Some(of) = &source.downward_api {
            check.at("downwardAPI", |check| {
                check.each("items", of.items.as_deref().unwrap_or_default(), downward_file);
            });
        }
        let kinds = [source.secret.is_some(), source.config_map.is_some(), source.downward_api.is_some()];
        match kinds.into_iter().filter(|given| *given).count()
            + super::unsupported::projections(source).count()
        {
            0 => check.required("secret, configMap or downwardAPI"),
            1 => {}
            _ => check.wrong("must be of one kind only"),
        }
    });
}

/// `validateDownwardAPIVolumeFile`.
fn downward_file(check: &mut Check<'_>, file: &DownwardAPIVolumeFile) {
    file_path(check, &file.path);
    check.at("mode", |check| file_mode(check, file.mode));
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(_), Some(_)) => check.wrong("must have one of fieldRef and resourceFieldRef only"),
        (Some(field), None) => check.at("fieldRef", |check| env::field_ref(check, field, &env::FILE_FIELDS)),
        (None, Some(field)) => check.at("resourceFieldRef", |check| {
            if field.container_name.as_deref().unwrap_or_default().is_empty() {
                check.at("containerName", |check| check.required("a file is of no container by itself"));
            }
            env::resource_field_ref(check, field);
        }),
        (None, None) => check.required("one of fieldRef and resourceFieldRef"),
    }
}

/// No file stands at the place of another, or where another needs a directory. The kubelet finds the second only when it
/// writes the volume.
fn paths(check: &mut Check<'_>, volume: &Volume) {
    fn items(items: Option<&Vec<KeyToPath>>) -> impl Iterator<Item = &str> {
        items.into_iter().flatten().map(|item| item.path.as_str())
    }
    fn files(files: Option<&Vec<DownwardAPIVolumeFile>>) -> impl Iterator<Item = &str> {
        files.into_iter().flatten().map(|file| file.path.as_str())
    }
    let own = items(volume.config_map.as_ref().and_then(|of| of.items.as_ref()))
        .chain(items(volume.secret.as_ref().and_then(|of| of.items.as_ref())))
        .chain(files(volume.downward_api.as_ref().and_then(|of| of.items.as_ref())));
    let sources = volume.projected.iter().flat_map(|of| of.sources.iter().flatten());
    let projected = sources.flat_map(|source| {
        items(source.config_map.as_ref().and_then(|of| of.items.as_ref()))
            .chain(items(source.secret.as_ref().and_then(|of| of.items.as_ref())))
            .chain(files(source.downward_api.as_ref().and_then(|of| of.items.as_ref())))
    });
    let clean = |path: &str| {
        let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        parts.join("/")
    };
    let mut seen: Vec<String> = own.chain(projected).map(clean).collect();
    seen.sort();
    for pair in seen.windows(2).filter(|pair| !pair[0].is_empty() && pair[0] == pair[1]) {
        check.invalid_text(&pair[1], "must be the path of one file only");
    }
    for path in &seen {
        let parents = path.match_indices('/').map(|(end, _)| &path[..end]);
        if let Some(file) = parents.into_iter().find(|parent| seen.iter().any(|other| other == parent)) {
            check.invalid_text(path, &format!("stands below {file}, which is a file too"));
        }
    }
}

/// `validateKeyToPath`.
fn key_to_path(check: &mut Check<'_>, item: &KeyToPath) {
    if item.key.is_empty() {
        check.at("key", |check| check.required(""));
    }
    file_path(check, &item.path);
    check.at("mode", |check| file_mode(check, item.mode));
}

/// `ValidateLocalNonReservedPath`.
fn file_path(check: &mut Check<'_>, path: &str) {
    check.at("path", |check| {
        if path.is_empty() {
            return check.required("");
        }
        check.text(path, names::descending);
        match path.split('/').find(|part| !matches!(*part, "" | ".")) {
            None => check.invalid_text(path, "must name a file"),
            Some(first) if first.starts_with("..") && first != ".." => {
                check.invalid_text(path, "must not start with '..'");
            }
            Some(_) => {}
        }
    });
}

fn file_mode(check: &mut Check<'_>, mode: Option<i32>) {
    if let Some(mode) = mode
        && !(0..=0o777).contains(&mode)
    {
        check.invalid(mode, "must be between 0 and 0777 (octal; JSON wants it in decimal, up to 511)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn errors(kind: &str, source: &Value) -> Vec<String> {
        let volume = json!([{"name": "v", kind: source}]);
        let mut check = Check::default();
        volumes(&mut check, &serde_json::from_value::<Vec<Volume>>(volume).unwrap());
        check.errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn files_of_volumes_are_checked() {
        let field = |path: &str, field: &str| json!({"path": path, "fieldRef": {"apiVersion": "v1", "fieldPath": field}});
        let memory = |container: &str| json!({"path": "m", "resourceFieldRef": {"containerName": container, "resource": "limits.memory"}});
        let item = |path: &str| json!({"key": "k", "path": path});
        for (kind, source, wanted) in [
            ("emptyDir", json!({"medium": "Memory", "sizeLimit": "1Mi"}), ""),
            ("emptyDir", json!({"medium": "HugePages-2Mi"}), ""),
            (
                "emptyDir",
                json!({"medium": "HugePages-much"}),
                "volumes[0].emptyDir.medium: Invalid value: \"HugePages-much\": must be empty, M",
            ),
            (
                "emptyDir",
                json!({"medium": "Flash"}),
                "volumes[0].emptyDir.medium: Invalid value: \"Flash\": must be empty, Memory",
            ),
            ("secret", json!({}), "volumes[0].secret.secretName: Required value"),
            (
                "secret",
                json!({"secretName": "s", "defaultMode": 512}),
                "volumes[0].secret.defaultMode: Invalid value: 512: must be between",
            ),
            ("configMap", json!({"name": "M"}), "volumes[0].configMap.name: Invalid value: \"M\": must be"),
            ("configMap", json!({"name": "m", "items": [item("a"), item("b/c")]}), ""),
            (
                "configMap",
                json!({"name": "m", "items": [item("../a")]}),
                "volumes[0].configMap.items[0].path: Invalid value: \"../a\": must",
            ),
            (
                "configMap",
                json!({"name": "m", "items": [item("..a")]}),
                "volumes[0].configMap.items[0].path: Invalid value: \"..a\": must not start",
            ),
            (
                "configMap",
                json!({"name": "m", "items": [item("a"), item("./a")]}),
                "volumes[0]: Invalid value: \"a\": must be the path of one file",
            ),
            (
                "configMap",
                json!({"name": "m", "items": [item("a"), item("a/b")]}),
                "volumes[0]: Invalid value: \"a/b\": stands below a, which",
            ),
            (
                "configMap",
                json!({"name": "m", "items": [item("a"), item("a.conf"), item("a/b")]}),
                "volumes[0]: Invalid value: \"a/b\": stands below a, which",
            ),
            (
                "configMap",
                json!({"name": "m", "items": [item("./..data")]}),
                "volumes[0].configMap.items[0].path: Invalid value: \"./..data\": must not start",
            ),
            (
                "configMap",
                json!({"name": "m", "items": [item("./")]}),
                "volumes[0].configMap.items[0].path: Invalid value: \"./\": must name a file",
            ),
            ("downwardAPI", json!({"items": [field("n", "metadata.labels['a']"), memory("c")]}), ""),
            (
                "downwardAPI",
                json!({"items": [field("n", "status.podIP")]}),
                "volumes[0].downwardAPI.items[0].fieldRef.fieldPath: Unsupported value: \"status.podIP\": supported values: \"metadata.name\"",
            ),
            (
                "downwardAPI",
                json!({"items": [field("n", "spec.host")]}),
                "volumes[0].downwardAPI.items[0].fieldRef.fieldPath: Unsupported value: \"spec.h",
            ),
            (
                "downwardAPI",
                json!({"items": [memory("")]}),
                "volumes[0].downwardAPI.items[0].resourceFieldRef.containerName: Required value",
            ),
            (
                "downwardAPI",
                json!({"items": [{"path": "x"}]}),
                "volumes[0].downwardAPI.items[0]: Required value: one of fieldRef",
            ),
            (
                "projected",
                json!({"sources": [{}]}),
                "volumes[0].projected.sources[0]: Required value: secret, configMap",
            ),
            (
                "projected",
                json!({"sources": [{"secret": {"name": "s"}, "configMap": {"name": "m"}}]}),
                "volumes[0].projected.sources[0]: Invalid value: must be of one kind",
            ),
            (
                "projected",
                json!({"sources": [{"secret": {"name": "s", "items": [item("a")]}}, {"downwardAPI": {"items": [field("a", "metadata.name")]}}]}),
                "volumes[0]: Invalid value: \"a\": must be the path of one file",
            ),
            (
                "projected",
                json!({"defaultMode": -1, "sources": []}),
                "volumes[0].projected.defaultMode: Invalid value: -1: must be",
            ),
        ] {
            let got = errors(kind, &source);
            let fits =
                if wanted.is_empty() { got.is_empty() } else { got.len() == 1 && got[0].starts_with(wanted) };
            assert!(fits, "{kind} {source}: {got:?}, not {wanted:?}");
        }
    }
}
