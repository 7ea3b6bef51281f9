//! Conflicts of host ports (`nodeports.Fits`, `HostPortInfo.CheckConflict`). PURE.

use k8s_openapi::api::core::v1::{ContainerPort, PodSpec};

use crate::model::SortedSet;
use crate::render::resources::is_sidecar;

/// All addresses of the node (`DefaultBindAllHostIP`). Only this text means all: `::` is an address like any other, as for the
/// kubelet.
const ANY: &str = "0.0.0.0";

/// The host ports of one pod: number, protocol and address. As many as its containers have; a set, because a pod may have
/// thousands.
pub(super) struct Wanted<'a>(SortedSet<(i32, &'a str, &'a str)>);

impl<'a> Wanted<'a> {
    pub(super) fn of(spec: &'a PodSpec) -> Self {
        Self(host_ports(spec).collect())
    }

    /// One of the other pod's ports conflicts: the same port on the same address, or either of them on all addresses.
    pub(super) fn conflict(&self, other: &PodSpec) -> bool {
        !self.0.is_empty()
            && host_ports(other).any(|(port, protocol, address)| {
                if address == ANY {
                    // The empty address sorts first.
                    let mut same = self.0.range((port, protocol, "")..);
                    same.next().is_some_and(|next| (next.0, next.1) == (port, protocol))
                } else {
                    [ANY, address].iter().any(|address| self.0.contains(&(port, protocol, *address)))
                }
            })
    }
}

/// The host ports of all containers that run for the pod's lifetime (`GetHostPorts`).
fn host_ports(spec: &PodSpec) -> impl Iterator<Item = (i32, &str, &str)> {
    let sidecars = spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
    let ports = sidecars.chain(&spec.containers).flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(|port: &ContainerPort| {
        let number = port.host_port.filter(|number| *number > 0)?;
        let protocol = port.protocol.as_deref().filter(|protocol| !protocol.is_empty());
        let address = port.host_ip.as_deref().filter(|address| !address.is_empty());
        Some((number, protocol.unwrap_or("TCP"), address.unwrap_or(ANY)))
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Container;

    use super::*;

    fn container(ports: &[(Option<i32>, Option<&str>, Option<&str>)]) -> Container {
        let port = |(port, protocol, address): &(Option<i32>, Option<&str>, Option<&str>)| ContainerPort {
            host_port: *port,
            protocol: protocol.map(str::to_owned),
            host_ip: address.map(str::to_owned),
            ..ContainerPort::default()
        };
        Container { ports: Some(ports.iter().map(port).collect()), ..Container::default() }
    }

    fn spec(containers: Vec<Container>) -> PodSpec {
        PodSpec { containers, ..PodSpec::default() }
    }

    /// Every pair of ports of a small space, against the rule in one sentence.
    #[test]
    fn two_ports_conflict_by_number_protocol_and_address() {
        let numbers = [None, Some(0), Some(-1), Some(80), Some(81)];
        let protocols = [None, Some(""), Some("TCP"), Some("UDP")];
        let addresses = [None, Some(""), Some("0.0.0.0"), Some("10.0.0.1"), Some("10.0.0.2"), Some("::")];
        let mut all = Vec::new();
        for number in numbers {
            for protocol in protocols {
                all.extend(addresses.map(|address| (number, protocol, address)));
            }
        }
        let full = |text: Option<&'static str>, default: &'static str| match text {
            None | Some("") => default,
            Some(text) => text,
        };
        for a in &all {
            let one = spec(vec![container(&[*a])]);
            let wanted = Wanted::of(&one);
            for b in &all {
                let (ip_a, ip_b) = (full(a.2, ANY), full(b.2, ANY));
                let expected = a.0.is_some_and(|number| number > 0)
                    && a.0 == b.0
                    && full(a.1, "TCP") == full(b.1, "TCP")
                    && (ip_a == ip_b || ip_a == ANY || ip_b == ANY);
                assert_eq!(wanted.conflict(&spec(vec![container(&[*b])])), expected, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn ports_count_of_containers_that_stay() {
        let eighty = || container(&[(Some(80), None, None)]);
        let init = |policy: Option<&str>| {
            let init = Container { restart_policy: policy.map(str::to_owned), ..eighty() };
            PodSpec { init_containers: Some(vec![init]), ..PodSpec::default() }
        };
        let app = spec(vec![container(&[(Some(81), None, None)]), eighty()]);
        for (name, other, conflicts) in [
            ("an app container", &app, true),
            ("a sidecar", &init(Some("Always")), true),
            ("an init container", &init(None), false),
            ("an init container that may fail", &init(Some("Never")), false),
        ] {
            assert_eq!(Wanted::of(&spec(vec![eighty()])).conflict(other), conflicts, "{name}");
            assert_eq!(Wanted::of(other).conflict(&spec(vec![eighty()])), conflicts, "{name}, wanted");
        }
    }

    #[test]
    fn one_conflict_among_many_ports_is_found() {
        let many = |protocol, address| {
            let ports: Vec<_> = (1..=3000).map(|port| (Some(port), Some(protocol), Some(address))).collect();
            spec(vec![container(&ports)])
        };
        let wanted_spec = many("TCP", "10.0.0.1");
        let wanted = Wanted::of(&wanted_spec);
        assert!(!wanted.conflict(&many("UDP", "10.0.0.1")) && !wanted.conflict(&many("TCP", "10.0.0.2")));
        assert!(
            wanted.conflict(&spec(vec![container(&[(Some(9000), None, None), (Some(3000), None, None)])]))
        );
    }
}
