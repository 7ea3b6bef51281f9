//! Renders CRI sandbox and container configurations from pods. PURE: the inputs are the pod and facts that the caller
//! gathered; nothing here reads a file, a clock or the environment.
//!
//! [`sandbox_config`] follows `generatePodSandboxConfig`, [`container_config`] follows
//! `Kubelet.GenerateRunContainerOptions` and `generateContainerConfig`.

pub mod admission;
pub mod cgroup_name;
pub mod cgroup_settings;
mod container;
mod dns;
mod downward;
mod env;
mod env_file;
mod error;
pub(crate) mod expand;
mod hostname;
pub mod labels;
pub mod log_memory;
mod node;
pub mod paths;
pub mod qos;
pub mod resources;
mod sandbox;
mod security;
mod services;
pub mod slice;

pub use container::{ContainerInput, as_container, container_config, mounts_hosts_file, stop_signal};
pub use dns::{dns_warnings, pod_dns};
pub use downward::{file_field, file_resource, sorted_pod_ips};
pub use env::{EnvSources, Environment, ManifestObjects, environment};
pub use error::RenderError;
pub use expand::expand;
pub use hostname::hosts_file;
pub use node::{CgroupDriver, CgroupVersion, NodeSettings, ResolvConf, SwapBehavior};
pub use sandbox::sandbox_config;
pub use security::UserNamespace;

#[cfg(test)]
mod tests {
    use super::*;

    /// Untrusted text of any kind does not make rendering panic.
    #[test]
    fn hostile_text_is_survived() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let alphabet: Vec<char> = "$()'\"=:/@.-_+#[]{}, \n\t019aeEiKmMGnTPZé\u{2028}\0".chars().collect();
        for _ in 0..crate::cases(20_000) {
            let length = random.usize(..24);
            let text: String = (0..length).map(|_| alphabet[random.usize(..alphabet.len())]).collect();
            let _ =
                crate::model::quantity::Quantity::parse(&text).map(|q| (q.value(), q.milli_value(), q + q));
            let _ = ResolvConf::parse(&text);
            let _ = crate::image::name::for_runtime(&text);
            let mut bytes = text.clone().into_bytes();
            if let Some(byte) = bytes.get_mut(length / 2) {
                *byte = random.u8(..);
            }
            assert!(expand(&bytes, |_| None).len() <= 3 * bytes.len());
            let _ = env_file::env_file_value(&text, "a");
            let pod = serde_json::json!({
                "metadata": {"name": text, "namespace": text, "uid": text, "annotations": {text.clone(): text}},
                "spec": {"enableServiceLinks": true, "hostname": text, "subdomain": text, "dnsPolicy": text,
                    "containers": [{"name": text, "image": text, "command": [text], "env": [
                        {"name": text, "value": text},
                        {"name": "f", "valueFrom": {"fieldRef": {"fieldPath": text}}}],
                        "resources": {"limits": {"memory": text, "hugepages-": text, text.clone(): text}}}]}
            });
            let pod = crate::model::DesiredPod::new(serde_json::from_value(pod).unwrap());
            let node = NodeSettings::new("n", "/r");
            let _ = sandbox_config(&node, &pod, 0, None);
            let _ = admission::refusal(&node, &pod, None);
            let _ = hosts_file(&node, &pod, &[], "");
            let none = ManifestObjects::default();
            let input = ContainerInput {
                pod: &pod,
                kind: crate::model::ContainerKind::App,
                index: 0,
                restart_count: 0,
                image_ref: &text,
                image: None,
                pod_ips: &[text.as_str().into()],
                mounts: &[],
                termination_log: None,
                target: None,
                recursive_read_only: false,
                annotations: &[],
                user_namespace: None,
                env: &none,
            };
            if let Ok(config) = container_config(&node, &input) {
                let _ = labels::container_meta(&config.annotations);
            }
            let _ = paths::legacy_log_symlink(&pod.key, &"é".repeat(200), &text);
        }
    }
}
