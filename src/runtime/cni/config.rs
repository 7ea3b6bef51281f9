//! CNI configurations and results: parsing, the request to each plugin, the addresses of a result. PURE.
//!
//! Versions 0.3.0 to 1.1.0 of the specification. A single plugin's configuration counts as a list of one.

use std::fmt;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::cni::CNI_VERSION;
use crate::limits::CNI_PLUGINS_MAX;

/// Versions of the specification, oldest first.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A version of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::runtime) struct Version(usize);

impl Version {
    /// From this one on plugins know CHECK, and get the result with DEL.
    pub(super) const V0_4: Self = Self(2);
    /// From this one on plugins know GC.
    pub(super) const V1_1: Self = Self(4);

    fn parse(text: &str) -> Option<Self> {
        VERSIONS.iter().position(|version| *version == text).map(Self)
    }

    pub(super) fn as_str(self) -> &'static str {
        VERSIONS[self.0]
    }
}

/// A network: a list of plugins.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::runtime) struct Network {
    pub(super) name: String,
    pub(super) version: Version,
    plugins: Vec<Map<String, Value>>,
    pub(super) disables_check: bool,
    pub(super) disables_gc: bool,
}

/// Why a CNI configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::runtime) struct ConfigurationError(String);

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigurationError {}

fn refused<T>(why: impl Into<String>) -> Result<T, ConfigurationError> {
    Err(ConfigurationError(why.into()))
}

impl Network {
    /// Parses the text of a `.conflist`, `.conf` or `.json` file.
    ///
    /// # Errors
    /// What is wrong, and how to mend it.
    pub(in crate::runtime) fn parse(text: &str) -> Result<Self, ConfigurationError> {
        let read: Value = match serde_json::from_str(text) {
            Ok(read) => read,
            Err(error) => return refused(format!("is no JSON: {error}")),
        };
        let Some(list) = read.as_object() else { return refused("is no JSON object") };
        let name = list.get("name").and_then(Value::as_str).unwrap_or_default();
        let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(fits) {
            return refused(format!("name {name:?} is not valid; letters, digits, - _ and . are"));
        }
        let version = version_of(list)?;
        let plugins = match list.get("plugins") {
            Some(Value::Array(plugins)) => plugins.clone(),
            Some(_) => return refused("plugins is no list"),
            None => vec![read.clone()],
        };
        if plugins.is_empty() || plugins.len() > CNI_PLUGINS_MAX {
            return refused(format!(
                "plugins has {} entries; 1 to {CNI_PLUGINS_MAX} are possible",
                plugins.len()
            ));
        }
        let mut checked = Vec::with_capacity(plugins.len());
        for (index, plugin) in plugins.into_iter().enumerate() {
            let Value::Object(plugin) = plugin else {
                return refused(format!("plugins[{index}] is no object"));
            };
            let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
            if !is_program_name(kind) {
                return refused(format!("plugins[{index}].type {kind:?} is not the name of a plugin"));
            }
            checked.push(plugin);
        }
        let is_set = |field| list.get(field).is_some_and(|value| *value == json!(true) || value == "true");
        Ok(Self {
            name: name.to_owned(),
            version,
            plugins: checked,
            disables_check: is_set("disableCheck"),
            disables_gc: is_set("disableGC"),
        })
    }

    /// Number of its plugins.
    pub(super) fn len(&self) -> usize {
        self.plugins.len()
    }

    /// The program of that plugin.
    pub(super) fn kind(&self, index: usize) -> &str {
        self.plugins[index].get("type").and_then(Value::as_str).unwrap_or_default()
    }

    /// The bridge that the plugin attaches pods to, if it is the `bridge` plugin.
    pub(super) fn bridge(&self, index: usize) -> Option<&str> {
        let named = self.plugins[index].get("bridge").and_then(Value::as_str).filter(|name| !name.is_empty());
        (self.kind(index) == "bridge").then(|| named.unwrap_or("cni0"))
    }

    /// The programs of all plugins, IPAM plugins included.
    pub(in crate::runtime) fn programs(&self) -> Vec<&str> {
        let ipam = |plugin: &'_ Map<String, Value>| plugin.get("ipam").is_some();
        let mut programs = Vec::new();
        for (index, plugin) in self.plugins.iter().enumerate() {
            programs.push(self.kind(index));
            if ipam(plugin) {
                programs.extend(plugin["ipam"].get("type").and_then(Value::as_str));
            }
        }
        programs
    }

    /// What that plugin reads on standard input. `runtime` has a value for each capability; the plugin gets those that its
    /// configuration announces.
    pub(super) fn request(
        &self,
        index: usize,
        runtime: &Map<String, Value>,
        previous: Option<&Value>,
        valid: Option<&Value>,
    ) -> Vec<u8> {
        let mut plugin = self.plugins[index].clone();
        let capabilities = plugin.remove("capabilities");
        let announces = |capability: &str| {
            capabilities.as_ref().and_then(|all| all.get(capability)).and_then(Value::as_bool) == Some(true)
        };
        let given: Map<String, Value> = runtime
            .iter()
            .filter(|(name, _)| announces(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        plugin.insert("name".into(), Value::String(self.name.clone()));
        plugin.insert("cniVersion".into(), Value::String(self.version.as_str().to_owned()));
        plugin.remove("runtimeConfig");
        if !given.is_empty() {
            plugin.insert("runtimeConfig".into(), Value::Object(given));
        }
        if let Some(previous) = previous {
            plugin.insert("prevResult".into(), previous.clone());
        }
        if let Some(valid) = valid {
            plugin.insert("cni.dev/valid-attachments".into(), valid.clone());
        }
        Value::Object(plugin).to_string().into_bytes()
    }
}

/// The newest known version among `cniVersion` and `cniVersions`.
fn version_of(list: &Map<String, Value>) -> Result<Version, ConfigurationError> {
    let one = list.get("cniVersion").and_then(Value::as_str);
    let more = list.get("cniVersions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let newest =
        one.into_iter().chain(more.iter().filter_map(Value::as_str)).filter_map(Version::parse).max();
    match (newest, one) {
        (Some(newest), _) => Ok(newest),
        (None, Some(one)) => {
            refused(format!("cniVersion {one:?} is not served; 0.3.0, 0.3.1, 0.4.0, 1.0.0 and 1.1.0 are"))
        }
        (None, None) => refused("cniVersion is missing; add \"cniVersion\": \"1.0.0\""),
    }
}

fn is_program_name(kind: &str) -> bool {
    !matches!(kind, "" | "." | "..") && !kind.contains(['/', '\0'])
}

/// The pod's addresses in a result, in their order.
pub(in crate::runtime) fn addresses(result: &Value) -> Vec<Box<str>> {
    let ips = result.get("ips").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let interfaces = result.get("interfaces").and_then(Value::as_array);
    let is_of_pod = |ip: &Value| {
        // Without an index, or of an interface that is in a sandbox.
        let index = ip.get("interface").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
        let interface = index.and_then(|index| interfaces?.get(index));
        interface.is_none_or(|of| of.get("sandbox").and_then(Value::as_str).is_some_and(|at| !at.is_empty()))
    };
    let address = |ip: &Value| {
        let text = ip.get("address").and_then(Value::as_str)?;
        let address = text.split('/').next().unwrap_or_default();
        address.parse::<IpAddr>().ok().map(|_| Box::from(address))
    };
    ips.iter().filter(|ip| is_of_pod(ip)).filter_map(address).collect()
}

/// A plugin's error on standard output.
pub(super) fn error_of(stdout: &[u8]) -> Option<String> {
    let error: Value = serde_json::from_slice(stdout).ok()?;
    let text = |field| error.get(field).and_then(Value::as_str).unwrap_or_default();
    match (text("msg"), text("details")) {
        ("", "") => None,
        (message, "") => Some(message.to_owned()),
        ("", details) => Some(details.to_owned()),
        (message, details) => Some(format!("{message}; {details}")),
    }
}

/// What a pod asks of the runtime's own network. A plugin that has nothing to do for a pod is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) struct Asked {
    /// Ports of the node.
    pub(in crate::runtime) ports: bool,
    /// Limits of its bandwidth.
    pub(in crate::runtime) bandwidth: bool,
}

impl Asked {
    /// By the values of a pod's capabilities.
    pub(in crate::runtime) fn by(capabilities: &Map<String, Value>) -> Self {
        Self {
            ports: capabilities.contains_key("portMappings"),
            bandwidth: capabilities.contains_key("bandwidth"),
        }
    }
}

/// The network that is used while the node has no CNI configuration: a bridge, host-local addresses, ports of the node.
pub(in crate::runtime) fn own_network(bridge: &str, subnets: &[&str], leases: &str, asked: Asked) -> String {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
    let mut routes = Vec::new();
    if subnets.iter().any(|subnet| !subnet.contains(':')) {
        routes.push(json!({ "dst": "0.0.0.0/0" }));
    }
    if subnets.iter().any(|subnet| subnet.contains(':')) {
        routes.push(json!({ "dst": "::/0" }));
    }
    let mut plugins = vec![json!({
        "type": "bridge",
        "bridge": bridge,
        "isGateway": true,
        "ipMasq": true,
        "hairpinMode": true,
        "ipam": { "type": "host-local", "dataDir": leases, "ranges": ranges, "routes": routes },
    })];
    if asked.ports {
        plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    }
    if asked.bandwidth {
        plugins.push(json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }));
    }
    json!({ "cniVersion": CNI_VERSION, "name": bridge, "plugins": plugins }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_checked() {
        let list = r#"{"cniVersion": "1.0.0", "cniVersions": ["0.4.0", "1.1.0", "7"], "name": "n",
            "disableCheck": true,
            "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}]}"#;
        let network = Network::parse(list).unwrap();
        assert_eq!((network.version, network.len(), network.kind(1)), (Version::V1_1, 2, "portmap"));
        assert_eq!(network.programs(), ["bridge", "host-local", "portmap"]);
        assert!(network.disables_check && !network.disables_gc);
        let one = Network::parse(r#"{"cniVersion": "0.3.1", "name": "n", "type": "ptp"}"#).unwrap();
        assert_eq!((one.len(), one.kind(0)), (1, "ptp"));
        for (text, error) in [
            ("x", "is no JSON: expected value at line 1 column 1"),
            ("[]", "is no JSON object"),
            (r#"{"cniVersion": "1.0.0", "name": "../n", "plugins": []}"#, "name \"../n\" is not valid"),
            (r#"{"name": "n", "plugins": [{"type": "a"}]}"#, "cniVersion is missing"),
            (r#"{"name": "n", "cniVersion": "0.2.0"}"#, "cniVersion \"0.2.0\" is not served"),
            (r#"{"name": "n", "cniVersion": "1.0.0", "plugins": {}}"#, "plugins is no list"),
            (r#"{"name": "n", "cniVersion": "1.0.0", "plugins": []}"#, "plugins has 0 entries"),
            (r#"{"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "../x"}]}"#, "plugins[0].type"),
            (r#"{"name": "n", "cniVersion": "1.0.0"}"#, "plugins[0].type \"\""),
        ] {
            let found = Network::parse(text).unwrap_err().to_string();
            assert!(found.starts_with(error), "{text}: {found}");
        }
    }

    #[test]
    fn plugins_get_the_capabilities_that_they_announce() {
        let text = own_network(
            "smolet0",
            &["10.88.0.0/16", "fd00::/64"],
            "/leases",
            Asked { ports: true, bandwidth: true },
        );
        let network = Network::parse(&text).unwrap();
        let runtime = json!({ "portMappings": [{ "hostPort": 80 }], "bandwidth": { "ingressRate": 1 } });
        let runtime = runtime.as_object().unwrap();
        let previous = json!({ "ips": [] });
        let request = |index| -> Value {
            serde_json::from_slice(&network.request(index, runtime, Some(&previous), None)).unwrap()
        };
        assert_eq!(request(0)["runtimeConfig"], Value::Null);
        assert_eq!(request(0)["ipam"]["routes"], json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]));
        assert_eq!(request(1)["runtimeConfig"], json!({ "portMappings": [{ "hostPort": 80 }] }));
        assert_eq!(request(2)["runtimeConfig"], json!({ "bandwidth": { "ingressRate": 1 } }));
        for index in 0..3 {
            let request = request(index);
            assert_eq!((&request["name"], &request["prevResult"]), (&json!("smolet0"), &previous));
            assert_eq!((&request["cniVersion"], &request["capabilities"]), (&json!("0.4.0"), &Value::Null));
        }
    }

    #[test]
    fn addresses_of_the_pod_are_those_of_its_interfaces() {
        let result = json!({
            "interfaces": [{ "name": "br0" }, { "name": "eth0", "sandbox": "/run/netns/a" }],
            "ips": [
                { "address": "10.0.0.1/24", "interface": 0 },
                { "address": "10.0.0.2/24", "interface": 1 },
                { "address": "fd00::2/64" },
                { "address": "nonsense" },
                {},
            ],
        });
        assert_eq!(addresses(&result), ["10.0.0.2".into(), Box::from("fd00::2")]);
        assert!(addresses(&json!({})).is_empty());
        let error = br#"{"code": 11, "msg": "no addresses", "details": "range full"}"#;
        assert_eq!(error_of(error).as_deref(), Some("no addresses; range full"));
        assert_eq!(error_of(b"panic"), None);
    }
}
