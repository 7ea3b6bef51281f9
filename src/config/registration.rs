//! Settings of the Node object: labels, taints, addresses and provider ID, and reserved resources (`ValidateKubeletServerFlags`,
//! `ValidateKubeletConfiguration`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;

use super::kubelet::GoDuration;
use super::{ConfigError, FileSettings, Flags, fields};
use crate::decode::Node;
use crate::limits::{
    LEASE_SECONDS, NODE_EXTERNAL_ADDRESSES_MAX, NODE_LABELS_MAX, NODE_REPORT_PERIOD,
    NODE_STATUS_UPDATE_PERIOD, NODE_TAINTS_MAX,
};
use crate::model::names;
use crate::model::quantity::Quantity;
use crate::netlink::link_address::is_link_local;

/// Settings of a node's registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// Labels that are added when the Node is created (`--node-labels`).
    pub labels: BTreeMap<Box<str>, Box<str>>,
    /// Taints that are added when the Node is created (`registerWithTaints`).
    pub taints: Vec<NodeTaint>,
    /// `spec.providerID`; empty: none.
    pub provider_id: String,
    /// The node's addresses, the primary one first; an unspecified one means that of the default route of its family. Empty:
    /// those of [`Config::node_interface`](super::Config::node_interface) or of the default routes (`--node-ip`).
    pub addresses: Vec<IpAddr>,
    /// Addresses by which the node is reached from outside its network, the primary one first; of a node of k3s
    /// (`--node-external-ip`).
    pub external_addresses: Vec<IpAddr>,
    /// The cloud controller sets the addresses (`--cloud-provider=external`).
    pub external_cloud: bool,
    /// Resources that pods do not get.
    pub reserved: Reserved,
    /// How often status and lease are updated.
    pub periods: Periods,
}

/// How often the node's status and lease are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// Period in which the status is checked for a change (`nodeStatusUpdateFrequency`).
    pub look: Duration,
    /// Period in which an unchanged status is reported (`nodeStatusReportFrequency`).
    pub report: Duration,
    /// Duration of the lease in seconds (`nodeLeaseDurationSeconds`); it is renewed four times in that.
    pub lease_seconds: u16,
}

impl Periods {
    /// Period of the lease's renewal (`nodeLeaseRenewIntervalFraction`).
    pub const fn renewal(self) -> Duration {
        Duration::from_millis(self.lease_seconds as u64 * 250)
    }
}

impl Default for Periods {
    fn default() -> Self {
        Self { look: NODE_STATUS_UPDATE_PERIOD, report: NODE_REPORT_PERIOD, lease_seconds: LEASE_SECONDS }
    }
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTaint {
    /// A qualified name.
    pub key: String,
    /// A label value.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// The sum of `kubeReserved` and `systemReserved`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Thousandths of a CPU.
    pub milli_cpu: u64,
    /// Bytes.
    pub memory: u64,
    /// Bytes of the file system of the pods' directories.
    pub ephemeral_storage: u64,
}

/// Flags take precedence over the file.
pub(super) fn join(flags: &Flags, file: &FileSettings) -> Result<Registration, ConfigError> {
    let mut reserved = Reserved::default();
    for field in ["kubeReserved", "systemReserved"] {
        reserved.add(field, file.map(field).unwrap_or_default())?;
    }
    let mut of_flag = FileSettings::default();
    if let (Some(text), Some(field)) = (&flags.register_with_taints, fields::of_flag("register-with-taints"))
    {
        of_flag.take_flag(field, text)?;
    }
    let of = if flags.register_with_taints.is_some() { &of_flag } else { file };
    let taints: Vec<NodeTaint> = of.list("registerWithTaints")?;
    for taint in &taints {
        check_taint(taint)?;
    }
    if taints.len() > NODE_TAINTS_MAX {
        return Err(ConfigError(format!("registerWithTaints: at most {NODE_TAINTS_MAX} taints")));
    }
    Ok(Registration {
        labels: labels(flags.node_labels.as_deref().unwrap_or_default())?,
        taints,
        provider_id: flags.provider_id.as_deref().or(file.text("providerID")).unwrap_or_default().to_owned(),
        addresses: node_addresses(flags)?,
        external_addresses: external_addresses(flags)?,
        external_cloud: is_external(flags.cloud_provider.as_deref())?,
        reserved,
        periods: periods(file)?,
    })
}

/// The kubelet has no other cloud providers any more (`IsExternal`).
fn is_external(provider: Option<&str>) -> Result<bool, ConfigError> {
    match provider {
        None | Some("") => Ok(false),
        Some("external") => Ok(true),
        Some(other) => Err(ConfigError(format!("--cloud-provider={other}: must be external, or left out"))),
    }
}

/// Without a report period an unchanged status is reported at each check (`SetDefaults_KubeletConfiguration`).
fn periods(file: &FileSettings) -> Result<Periods, ConfigError> {
    let default = Periods::default();
    let look = GoDuration::or(file.time("nodeStatusUpdateFrequency"), default.look);
    let unsaid = if look == default.look { default.report } else { look };
    let report = GoDuration::or(file.time("nodeStatusReportFrequency"), unsaid);
    for (field, period) in [("nodeStatusUpdateFrequency", look), ("nodeStatusReportFrequency", report)] {
        if !(Duration::from_secs(1)..=Duration::from_hours(1)).contains(&period) {
            let seconds = period.as_secs_f64();
            return Err(ConfigError(format!("{field}: {seconds} s: must be between 1 s and 3600 s")));
        }
    }
    let lease_seconds = match file.int("nodeLeaseDurationSeconds") {
        None | Some(0) => default.lease_seconds,
        Some(given) => {
            let within = u16::try_from(given).ok().filter(|seconds| (4..=3600).contains(seconds));
            within.ok_or_else(|| {
                ConfigError(format!("nodeLeaseDurationSeconds: {given}: must be between 4 and 3600"))
            })?
        }
    };
    Ok(Periods { look, report, lease_seconds })
}

impl Reserved {
    fn add(&mut self, field: &str, given: BTreeMap<String, String>) -> Result<(), ConfigError> {
        for (name, text) in given {
            let wrong = |why: &str| Err(ConfigError(format!("{field}.{name}: {text:?}: {why}")));
            let (to, value): (_, fn(Quantity) -> i64) = match name.as_str() {
                "cpu" => (&mut self.milli_cpu, Quantity::milli_value),
                "memory" => (&mut self.memory, Quantity::value),
                "ephemeral-storage" => (&mut self.ephemeral_storage, Quantity::value),
                _ => return wrong("only cpu, memory and ephemeral-storage are reserved"),
            };
            let amount = Quantity::parse(&text).ok().and_then(|quantity| u64::try_from(value(quantity)).ok());
            match amount {
                Some(amount) => *to = to.saturating_add(amount),
                None => return wrong("must be a quantity such as 200m or 64Mi, or 0"),
            }
        }
        Ok(())
    }
}

/// The items of a comma-separated list; an empty string has none.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// `key=value,…` (`--node-labels`).
fn labels(text: &str) -> Result<BTreeMap<Box<str>, Box<str>>, ConfigError> {
    let mut labels = BTreeMap::new();
    for part in parts(text) {
        let wrong = |why: &str| ConfigError(format!("--node-labels: {part:?}: {why}"));
        let (key, value) = part.split_once('=').ok_or_else(|| wrong("must be KEY=VALUE"))?;
        if let Some(rule) = names::qualified(key).or_else(|| names::label_value(value)) {
            return Err(wrong(rule));
        }
        if !may_be_set(key) {
            return Err(wrong(
                "labels of kubernetes.io and k8s.io that a node may give itself begin with kubelet.kubernetes.io or \
                 node.kubernetes.io, or name its host, zone, region, instance type, system or architecture",
            ));
        }
        labels.insert(key.into(), value.into());
    }
    if labels.len() > NODE_LABELS_MAX {
        return Err(ConfigError(format!("--node-labels: at most {NODE_LABELS_MAX} labels")));
    }
    Ok(labels)
}

/// Whether a node may set such a label on itself (`IsKubernetesLabel`, `IsKubeletLabel`).
fn may_be_set(key: &str) -> bool {
    let Some((namespace, _)) = key.split_once('/') else { return true };
    let is_in =
        |of: &str| namespace == of || namespace.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'));
    let is_kubernetes = is_in("kubernetes.io") || is_in("k8s.io");
    let known = [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
    ];
    !is_kubernetes || is_in("kubelet.kubernetes.io") || is_in("node.kubernetes.io") || known.contains(&key)
}

/// `key[=value]:effect,…` (`--register-with-taints`).
pub(super) fn taints(text: &str) -> Result<Node, String> {
    let taint = |part: &str| {
        let (name, effect) =
            part.rsplit_once(':').ok_or_else(|| format!("{part:?}: must be KEY=VALUE:EFFECT"))?;
        let (key, value) = name.split_once('=').unwrap_or((name, ""));
        let fields = [("key", key), ("value", value), ("effect", effect)];
        Ok(Node::Map(fields.map(|(name, text)| (name.into(), Node::Text(text.into()))).into()))
    };
    parts(text).map(taint).collect::<Result<_, _>>().map(Node::List)
}

fn check_taint(taint: &NodeTaint) -> Result<(), ConfigError> {
    let NodeTaint { key, value, effect } = taint;
    let wrong = |why: &str| Err(ConfigError(format!("registerWithTaints: {key}={value}:{effect}: {why}")));
    if let Some(rule) = names::qualified(key).or_else(|| names::label_value(value)) {
        return wrong(rule);
    }
    if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect.as_str()) {
        return wrong("the effect must be NoSchedule, PreferNoSchedule or NoExecute");
    }
    Ok(())
}

/// Any number of each family, each once (`--node-external-ip`).
fn external_addresses(flags: &Flags) -> Result<Vec<IpAddr>, ConfigError> {
    let text = flags.node_external_ip.join(",");
    let mut given = Vec::new();
    for address in addresses("--node-external-ip", &text, "must be IP addresses with commas between them")? {
        if !given.contains(&address) {
            given.push(address);
        }
    }
    if given.len() > NODE_EXTERNAL_ADDRESSES_MAX {
        return Err(ConfigError(format!(
            "--node-external-ip: at most {NODE_EXTERNAL_ADDRESSES_MAX} addresses"
        )));
    }
    if !given.is_empty() && flags.server.is_none() {
        let why = "needs --server: a k3s server's cloud controller makes Node addresses of them";
        return Err(ConfigError(format!("--node-external-ip: {why}")));
    }
    Ok(given)
}

/// One address, or one of each family (`--node-ip`); else the address that names the interface of flannel (`--flannel-iface`).
fn node_addresses(flags: &Flags) -> Result<Vec<IpAddr>, ConfigError> {
    let form = "must be an IP address, or one of IPv4 and one of IPv6 with a comma between them";
    let text = flags.node_ip.as_deref().unwrap_or_default();
    let given = addresses("--node-ip", text, form)?;
    let names_address = |of: &&str| given.is_empty() && of.parse::<IpAddr>().is_ok();
    if let Some(address) = flags.flannel_iface.as_deref().filter(names_address) {
        return addresses("--flannel-iface", address, form);
    }
    let of_v4 = given.iter().filter(|address| address.is_ipv4()).count();
    if of_v4 > 1 || given.len() - of_v4 > 1 {
        return Err(ConfigError(format!("--node-ip: {text:?}: at most one address of each family")));
    }
    Ok(given)
}

/// The addresses of a list, which is to have that form.
fn addresses(flag: &str, text: &str, form: &str) -> Result<Vec<IpAddr>, ConfigError> {
    let wrong = |why: &str| Err(ConfigError(format!("{flag}: {text:?}: {why}")));
    let mut addresses: Vec<IpAddr> = Vec::new();
    for part in parts(text) {
        let Ok(address) = part.parse::<IpAddr>() else { return wrong(form) };
        if address.is_loopback() || address.is_multicast() || is_link_local(address) {
            return wrong("a loopback, multicast or link-local address is no node's");
        }
        addresses.push(address);
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(flags: &Flags, text: &str) -> Result<Registration, String> {
        let text = format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{text}");
        let file = FileSettings::parse(text.as_bytes())?;
        join(flags, &file).map_err(|error| error.0)
    }

    #[test]
    fn labels_are_those_a_node_may_give_itself() {
        let labels = |text: &str| {
            joined(&Flags { node_labels: Some(text.to_owned()), ..Flags::default() }, "")
                .map(|all| all.labels)
        };
        let found =
            labels("a=b,example.com/x=,node.kubernetes.io/role=edge,topology.kubernetes.io/zone=z").unwrap();
        assert_eq!(found.len(), 4);
        assert_eq!(&*found["example.com/x"], "");
        for (text, said) in [
            ("a", "--node-labels: \"a\": must be KEY=VALUE"),
            ("-=b", "--node-labels: \"-=b\": "),
            ("a=b c", "--node-labels: \"a=b c\": "),
            ("node-role.kubernetes.io/edge=", "--node-labels: \"node-role.kubernetes.io/edge=\": labels of"),
            ("x.k8s.io/a=b", "--node-labels: \"x.k8s.io/a=b\": labels of"),
        ] {
            assert!(labels(text).unwrap_err().starts_with(said), "{text}");
        }
        assert!(labels("notkubernetes.io/a=b").is_ok(), "another domain");
    }

    #[test]
    fn a_flags_taints_take_the_place_of_the_files() {
        let file = "registerWithTaints: [{key: a, value: b, effect: NoExecute}]\n";
        let taint = |key: &str, value: &str, effect: &str| NodeTaint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
        };
        assert_eq!(joined(&Flags::default(), file).unwrap().taints, [taint("a", "b", "NoExecute")]);
        let flags = |text: &str| Flags { register_with_taints: Some(text.to_owned()), ..Flags::default() };
        let of_flag = joined(&flags("edge=:NoSchedule,x:PreferNoSchedule"), file).unwrap().taints;
        assert_eq!(of_flag, [taint("edge", "", "NoSchedule"), taint("x", "", "PreferNoSchedule")]);
        for text in ["a=b", "a=b:Never", "=b:NoSchedule"] {
            assert!(joined(&flags(text), "").is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_reserved_is_summed() {
        let text =
            "kubeReserved: {cpu: 200m, memory: 64Mi}\nsystemReserved: {cpu: \"1\", ephemeral-storage: 1Gi}\n";
        let reserved = Reserved { milli_cpu: 1200, memory: 64 << 20, ephemeral_storage: 1 << 30 };
        assert_eq!(joined(&Flags::default(), text).unwrap().reserved, reserved);
        let wrong = joined(&Flags::default(), "kubeReserved: {memory: \"-1\"}\n").unwrap_err();
        assert!(wrong.starts_with("kubeReserved.memory: \"-1\": must be a quantity"), "{wrong}");
        let pid = joined(&Flags::default(), "systemReserved: {pid: \"100\"}\n").unwrap_err();
        assert!(pid.contains("systemReserved.pid"), "{pid}");
    }

    #[test]
    fn a_node_is_told_of_as_often_as_the_file_says() {
        let periods = |text: &str| {
            let periods = joined(&Flags::default(), text).map(|all| all.periods)?;
            Ok((periods.look.as_secs(), periods.report.as_secs(), periods.renewal().as_millis()))
        };
        for (text, wanted) in [
            ("", Ok((10, 300, 10_000))),
            ("nodeStatusUpdateFrequency: 0s\nnodeStatusReportFrequency: 0s\n", Ok((10, 300, 10_000))),
            ("nodeStatusUpdateFrequency: 30s\n", Ok((30, 30, 10_000))),
            ("nodeStatusReportFrequency: 20m\nnodeLeaseDurationSeconds: 150\n", Ok((10, 1200, 37_500))),
            ("nodeStatusUpdateFrequency: 2h\n", Err("nodeStatusUpdateFrequency: 7200 s: must be between")),
            ("nodeLeaseDurationSeconds: -1\n", Err("nodeLeaseDurationSeconds: -1: must be between")),
        ] {
            match (periods(text), wanted) {
                (Err::<_, String>(said), Err(wanted)) => assert!(said.starts_with(wanted), "{said}"),
                (found, wanted) => assert_eq!(found, wanted.map_err(str::to_owned), "{text}"),
            }
        }
    }

    #[test]
    fn a_nodes_addresses_are_one_of_each_family() {
        let addresses = |text: &str| {
            joined(&Flags { node_ip: Some(text.to_owned()), ..Flags::default() }, "").map(|all| all.addresses)
        };
        assert_eq!(addresses("10.0.0.2,fd00::2").unwrap().len(), 2);
        assert_eq!(addresses("0.0.0.0").unwrap().len(), 1);
        let external = |text: &str| {
            let (server, node_external_ip) = (Some("https://h:6443".to_owned()), vec![text.to_owned()]);
            joined(&Flags { server, node_external_ip, ..Flags::default() }, "")
                .map(|all| all.external_addresses)
        };
        assert_eq!(external("192.0.2.1,192.0.2.2,2001:db8::1,192.0.2.1").unwrap().len(), 3);
        let many: Vec<String> = (0..=NODE_EXTERNAL_ADDRESSES_MAX).map(|of| format!("192.0.2.{of}")).collect();
        assert!(external(&many.join(",")).unwrap_err().contains("at most 16"));
        assert!(external("eth0").is_err());
        for text in ["10.0.0.2,10.0.0.3", "127.0.0.1", "::1", "169.254.1.1", "224.0.0.1", "eth0"] {
            assert!(addresses(text).is_err(), "{text}");
        }
        // The address of flannel's interface is the node's, unless others are given.
        for (node_ip, interface, wanted) in [
            (None, "10.0.0.3", Ok("10.0.0.3")),
            (None, "fd00::3", Ok("fd00::3")),
            (None, "eth1", Ok("")),
            (Some("10.0.0.2"), "10.0.0.3", Ok("10.0.0.2")),
            (Some(""), "10.0.0.3", Ok("10.0.0.3")),
            (None, "127.0.0.1", Err("--flannel-iface: \"127.0.0.1\": a loopback")),
        ] {
            let (node_ip, flannel_iface) = (node_ip.map(str::to_owned), Some(interface.to_owned()));
            let found = joined(&Flags { node_ip, flannel_iface, ..Flags::default() }, "");
            match (found, wanted) {
                (Ok(found), Ok(wanted)) => {
                    let shown: Vec<String> = found.addresses.iter().map(IpAddr::to_string).collect();
                    assert_eq!(shown.join(" "), wanted, "{interface}");
                }
                (Err(why), Err(wanted)) => assert!(why.starts_with(wanted), "{why}"),
                (found, wanted) => panic!("{interface}: {found:?} and not {wanted:?}"),
            }
        }
    }
}
