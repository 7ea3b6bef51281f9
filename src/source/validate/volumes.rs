//! `spec.volumes` (`ValidateVolumes`). PURE.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{KeyToPath, Volume};

use super::{Check, names};
use crate::render::quantity::Quantity;

/// All volumes.
pub(super) fn volumes(check: &mut Check, volumes: &[Volume]) {
    let mut seen = BTreeSet::new();
    check.each("volumes", volumes, |check, volume| {
        check.at("name", |check| {
            if volume.name.is_empty() {
                return check.required("the volume's name");
            }
            check.text(&volume.name, names::label);
            if !seen.insert(volume.name.as_str()) {
                check.invalid_text(&volume.name, "must be unique: another volume has this name");
            }
        });
        source(check, volume);
    });
}

/// The sources that are supported, or soon are; the others are refused by `unsupported`.
fn source(check: &mut Check, volume: &Volume) {
    let kinds: Vec<&str> = super::unsupported::volume_kinds(volume).collect();
    if kinds.len() > 1 {
        check.wrong(&format!("must be of one kind, not of {} ({})", kinds.len(), kinds.join(", ")));
    }
    if let Some(size) = volume.empty_dir.as_ref().and_then(|dir| dir.size_limit.as_ref()) {
        check.at("emptyDir", |check| {
            check.at("sizeLimit", |check| match Quantity::parse(&size.0) {
                Ok(size) if size >= Quantity::ZERO => {}
                Ok(_) | Err(_) => {
                    check.invalid_text(&size.0, "must be a quantity of 0 or more, such as 64Mi");
                }
            });
        });
    }
    if let Some(host) = &volume.host_path {
        check.at("hostPath", |check| {
            check.at("path", |check| {
                if host.path.is_empty() {
                    check.required("the path on this node");
                } else {
                    check.text(&host.path, names::no_backsteps);
                }
            });
            check.at("type", |check| {
                let types = [
                    "",
                    "DirectoryOrCreate",
                    "Directory",
                    "FileOrCreate",
                    "File",
                    "Socket",
                    "CharDevice",
                    "BlockDevice",
                ];
                check.one_of(host.type_.as_deref().unwrap_or_default(), &types);
            });
        });
    }
    for (kind, mode, items) in [
        ("secret", volume.secret.as_ref().map(|s| (s.default_mode, &s.items))),
        ("configMap", volume.config_map.as_ref().map(|s| (s.default_mode, &s.items))),
    ]
    .into_iter()
    .filter_map(|(kind, source)| source.map(|(mode, items)| (kind, mode, items)))
    {
        check.at(kind, |check| {
            check.at("defaultMode", |check| file_mode(check, mode));
            check.each("items", items.as_deref().unwrap_or_default(), key_to_path);
        });
    }
}

/// `validateKeyToPath`.
fn key_to_path(check: &mut Check, item: &KeyToPath) {
    if item.key.is_empty() {
        check.at("key", |check| check.required(""));
    }
    check.at("path", |check| {
        if item.path.is_empty() {
            return check.required("");
        }
        check.text(&item.path, names::descending);
        if item.path.starts_with("..") && !item.path.starts_with("../") {
            check.invalid_text(&item.path, "must not start with '..'");
        }
    });
    check.at("mode", |check| file_mode(check, item.mode));
}

fn file_mode(check: &mut Check, mode: Option<i32>) {
    if let Some(mode) = mode
        && !(0..=0o777).contains(&mode)
    {
        check.invalid(mode, "must be between 0 and 0777 (octal; JSON wants it in decimal, up to 511)");
    }
}
