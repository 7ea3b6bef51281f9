//! Environment variables (`ValidateEnv`, `ValidateEnvFrom`). PURE.

use k8s_openapi::api::core::v1::{
    Container, EnvVar, FileKeySelector, ObjectFieldSelector, ResourceFieldSelector, Volume,
};

use super::Check;
use crate::model::names;
use crate::model::quantity::Quantity;
use crate::text::to_lower;

/// `env` and `envFrom` of a container.
pub(super) fn env(check: &mut Check<'_>, container: &Container, volumes: &[Volume]) {
    check.each("env", container.env.as_deref().unwrap_or_default(), |check, variable| {
        check.at("name", |check| {
            if variable.name.is_empty() {
                check.required("the variable's name");
            } else {
                check.text(&variable.name, names::env_name);
            }
        });
        value_from(check, variable, volumes);
    });
    check.each("envFrom", container.env_from.as_deref().unwrap_or_default(), |check, source| {
        if let Some(prefix) = source.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            check.at("prefix", |check| check.text(prefix, names::env_name));
        }
        match (&source.config_map_ref, &source.secret_ref) {
            (Some(_), Some(_)) => check.wrong("must name one source, not both configMapRef and secretRef"),
            (None, None) => check.wrong("must name a source: configMapRef or secretRef"),
            (Some(source), None) => object_name(check, "configMapRef", &source.name),
            (None, Some(source)) => object_name(check, "secretRef", &source.name),
        }
    });
}

pub(super) fn object_name(check: &mut Check<'_>, field: &str, name: &str) {
    check.at(field, |check| {
        check.at("name", |check| {
            if name.is_empty() {
                check.required("");
            } else {
                check.text(name, names::subdomain);
            }
        });
    });
}

/// `validateEnvVarValueFrom`.
fn value_from(check: &mut Check<'_>, variable: &EnvVar, volumes: &[Volume]) {
    let Some(from) = &variable.value_from else { return };
    check.at("valueFrom", |check| {
        let sources = [
            from.field_ref.is_some(),
            from.resource_field_ref.is_some(),
            from.config_map_key_ref.is_some(),
            from.secret_key_ref.is_some(),
            from.file_key_ref.is_some(),
        ];
        let count = sources.into_iter().filter(|given| *given).count();
        if count == 0 {
            check.wrong(
                "must name a source: fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef or fileKeyRef",
            );
        } else if !variable.value.as_deref().unwrap_or_default().is_empty() {
            check.forbidden("may not be given beside value");
        } else if count > 1 {
            check.wrong("must name one source only");
        }
        if let Some(selector) = &from.field_ref {
            check.at("fieldRef", |check| field_ref(check, selector, &FIELDS));
        }
        if let Some(selector) = &from.resource_field_ref {
            check.at("resourceFieldRef", |check| resource_field_ref(check, selector));
        }
        for (field, name, key) in [
            ("configMapKeyRef", from.config_map_key_ref.as_ref().map(|s| (&s.name, &s.key))),
            ("secretKeyRef", from.secret_key_ref.as_ref().map(|s| (&s.name, &s.key))),
        ]
        .into_iter()
        .filter_map(|(field, selector)| selector.map(|(name, key)| (field, name, key)))
        {
            object_name(check, field, name);
            if key.is_empty() {
                check.at(field, |check| check.at("key", |check| check.required("")));
            }
        }
        if let Some(selector) = &from.file_key_ref {
            check.at("fileKeyRef", |check| file_key_ref(check, selector, volumes));
        }
    });
}

/// `validateFileKeySelector` and `validateFileKeyRefVolumes`.
fn file_key_ref(check: &mut Check<'_>, selector: &FileKeySelector, volumes: &[Volume]) {
    check.at("volumeName", |check| {
        let name = selector.volume_name.as_str();
        match volumes.iter().find(|volume| volume.name == name) {
            None if name.is_empty() => check.required("the volume's name"),
            None => check.invalid_text(name, "names no volume in spec.volumes"),
            Some(volume) if volume.empty_dir.is_none() => {
                check.invalid_text(name, "must be an emptyDir");
            }
            Some(_) => {}
        }
    });
    check.at("path", |check| match selector.path.as_str() {
        "" => check.required("the file below the volume"),
        path => check.text(path, names::no_backsteps),
    });
    check.at("key", |check| match selector.key.as_str() {
        "" => check.required("the variable's name in the file"),
        key => check.text(key, names::env_name),
    });
}

const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// The fields that files of a volume can have.
pub(super) const FILE_FIELDS: [&str; 5] =
    ["metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"];

/// `validateObjectFieldSelector`; `fields` are those without a subscript.
pub(super) fn field_ref(check: &mut Check<'_>, selector: &ObjectFieldSelector, fields: &[&str]) {
    check
        .at("apiVersion", |check| check.one_of(selector.api_version.as_deref().unwrap_or_default(), &["v1"]));
    check.at("fieldPath", |check| {
        let path = selector.field_path.as_str();
        if path.is_empty() {
            return check.required("such as metadata.name");
        }
        let subscript = path.strip_suffix("']").and_then(|head| head.split_once("['"));
        match subscript {
            Some(("metadata.labels", key)) => check.text(key, names::qualified),
            Some(("metadata.annotations", key)) => {
                if let Some(message) = names::qualified(&to_lower(key)) {
                    check.invalid_text(key, message);
                }
            }
            Some(_) => {
                check.invalid_text(path, "has a subscript, which only metadata.labels and .annotations take");
            }
            // The old name of spec.nodeName.
            None if path == "spec.host" && fields == FIELDS => {}
            None => check.one_of(path, fields),
        }
    });
}

const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];

/// `validateContainerResourceFieldSelector` and its divisor.
pub(super) fn resource_field_ref(check: &mut Check<'_>, selector: &ResourceFieldSelector) {
    let resource = selector.resource.as_str();
    check.at("resource", |check| {
        let hugepages =
            resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
        if resource.is_empty() {
            check.required("such as limits.memory");
        } else if !hugepages {
            check.one_of(resource, &RESOURCES);
        }
    });
    let Some(divisor) = &selector.divisor else { return };
    check.at("divisor", |check| {
        let Ok(quantity) = Quantity::parse(&divisor.0) else {
            return check.invalid_text(&divisor.0, "must be a quantity, such as 1Mi");
        };
        let cpu = matches!(resource, "limits.cpu" | "requests.cpu");
        let allowed: &[&str] = if cpu {
            &["1m", "1"]
        } else {
            &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"]
        };
        let fits = |text: &&str| Quantity::parse(text).is_ok_and(|one| one == quantity);
        if !quantity.is_zero() && !allowed.iter().any(fits) {
            check.one_of(&divisor.0, allowed);
        }
    });
}
