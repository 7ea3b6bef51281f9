//! `spec` of a static pod (`ValidatePodSpec`), but for what has a file of its own. PURE.

use k8s_openapi::api::core::v1::{PodSpec, Toleration};

use super::{Check, container, node, resources, security, volumes};
use crate::model::names;

/// The whole spec.
pub(super) fn spec(check: &mut Check<'_>, spec: &PodSpec) {
    if let Some(seconds) = spec.termination_grace_period_seconds {
        // The API server turns a negative period into 1; here it is an error, like any other wrong number.
        check.at("terminationGracePeriodSeconds", |check| check.not_negative(seconds));
    }
    volumes::volumes(check, spec.volumes.as_deref().unwrap_or_default());
    container::containers(check, spec);
    resources::pod(check, spec);
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    check.at("restartPolicy", |check| {
        check.one_of(&text(&spec.restart_policy), &["Always", "OnFailure", "Never"]);
    });
    check.at("dnsPolicy", |check| {
        let policies = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
        check.one_of(&text(&spec.dns_policy), &policies);
    });
    node::node(check, spec);
    security::pod(check, spec);
    dns_config(check, spec);
    hostnames(check, spec);
    if let Some(seconds) = spec.active_deadline_seconds {
        check.at("activeDeadlineSeconds", |check| check.range(seconds, 1, i64::from(i32::MAX)));
    }
    check.each("tolerations", spec.tolerations.as_deref().unwrap_or_default(), toleration);
    check.each("hostAliases", spec.host_aliases.as_deref().unwrap_or_default(), |check, alias| {
        check.at("ip", |check| check.text(&alias.ip, names::ip));
        check.each("hostnames", alias.hostnames.as_deref().unwrap_or_default(), |check, name| {
            check.text(name, names::subdomain);
        });
    });
    if let Some(class) = spec.priority_class_name.as_deref().filter(|class| !class.is_empty()) {
        check.at("priorityClassName", |check| check.text(class, names::subdomain));
    }
    if let Some(class) = spec.runtime_class_name.as_deref().filter(|class| !class.is_empty()) {
        check.at("runtimeClassName", |check| check.text(class, names::subdomain));
    }
    if let Some(policy) = spec.preemption_policy.as_deref() {
        check.at("preemptionPolicy", |check| check.one_of(policy, &["PreemptLowerPriority", "Never"]));
    }
    if let Some(os) = &spec.os {
        check.at("os", |check| check.at("name", |check| check.one_of(&os.name, &["linux"])));
    }
}

/// `validatePodDNSConfig`.
fn dns_config(check: &mut Check<'_>, spec: &PodSpec) {
    let none = spec.dns_policy.as_deref() == Some("None");
    check.at("dnsConfig", |check| {
        let Some(config) = &spec.dns_config else {
            if none {
                check.required("dnsPolicy is None");
            }
            return;
        };
        let servers = config.nameservers.as_deref().unwrap_or_default();
        let searches = config.searches.as_deref().unwrap_or_default();
        check.at("nameservers", |check| {
            if none && servers.is_empty() {
                check.required("at least one, since dnsPolicy is None");
            }
            if servers.len() > 3 {
                check.invalid(servers.len(), "must be at most 3 servers");
            }
        });
        check.each("nameservers", servers, |check, server| check.text(server, names::ip));
        check.at("searches", |check| {
            if searches.len() > 32 {
                check.invalid(searches.len(), "must be at most 32 search paths");
            }
            let characters = searches.iter().map(|search| search.len() + 1).sum::<usize>().saturating_sub(1);
            if characters > 2048 {
                check.invalid(
                    characters,
                    "must be at most 2048 characters together, blanks between them included",
                );
            }
        });
        check.each("searches", searches, |check, search| {
            if search != "." {
                check.text(search.strip_suffix('.').unwrap_or(search), names::search_domain);
            }
        });
        check.each("options", config.options.as_deref().unwrap_or_default(), |check, option| {
            if option.name.as_deref().unwrap_or_default().is_empty() {
                check.at("name", |check| check.required(""));
            }
        });
    });
}

/// `spec.hostname`, `spec.subdomain`, and `validatePodHostName`.
fn hostnames(check: &mut Check<'_>, spec: &PodSpec) {
    for (field, value) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            check.at(field, |check| check.text(value, names::label));
        }
    }
    let Some(name) = spec.hostname_override.as_deref() else { return };
    check.at("hostnameOverride", |check| {
        if spec.set_hostname_as_fqdn == Some(true) {
            check.forbidden("may not be given when setHostnameAsFQDN is true");
        }
        if spec.host_network == Some(true) {
            check.forbidden("may not be given when hostNetwork is true");
        }
        if name.len() > 64 {
            check.invalid_text(name, "must be at most 64 characters");
        } else {
            check.text(name, names::subdomain);
        }
    });
}

/// `ValidateTolerations`.
fn toleration(check: &mut Check<'_>, toleration: &Toleration) {
    let key = toleration.key.as_deref().unwrap_or_default();
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !key.is_empty() {
        check.at("key", |check| check.text(key, names::qualified));
    }
    check.at("operator", |check| {
        check.one_of(operator, &["", "Equal", "Exists"]);
        if key.is_empty() && operator != "Exists" {
            check.invalid_text(operator, "must be Exists when key is empty");
        }
    });
    check.at("effect", |check| {
        check.one_of(effect, &["", "NoSchedule", "PreferNoSchedule", "NoExecute"]);
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            check.invalid_text(effect, "must be NoExecute when tolerationSeconds is given");
        }
    });
    check.at("value", |check| match operator {
        "" | "Equal" => check.text(value, names::label_value),
        "Exists" if !value.is_empty() => check.invalid_text(value, "must be empty when operator is Exists"),
        _ => {}
    });
}
