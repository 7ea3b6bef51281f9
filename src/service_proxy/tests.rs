//! The model from the objects of the API to the backends: tables by kube-proxy's tests, and what a watch does.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use super::{Backend, Cluster, ServiceName, ServicePort};
use crate::decode::{Node, json as reader};
use crate::limits::{
    ENDPOINTS_MAX, SERVICE_PORTS_EACH_MAX, SERVICE_PORTS_MAX, SERVICES_BYTES_MAX,
    SERVICES_LEFT_OUT_NAMED_MAX, SOURCE_RANGES_MAX,
};
use crate::model::{Network, Transport};

const NODE: &str = "node-1";

fn tree(of: &Value) -> Node {
    reader::read(of.to_string().as_bytes()).unwrap()
}

/// A Service with these fields of `spec`.
#[allow(clippy::needless_pass_by_value, reason = "of json!")]
fn service(name: &str, spec: Value) -> Value {
    json!({"metadata": {"namespace": "default", "name": name}, "spec": spec})
}

/// A slice of a Service.
#[allow(clippy::needless_pass_by_value, reason = "of json!")]
fn slice(service: &str, name: &str, ports: Value, endpoints: Value) -> Value {
    let labels = json!({"kubernetes.io/service-name": service});
    json!({
        "metadata": {"namespace": "default", "name": name, "labels": labels},
        "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
    })
}

fn named(name: &str) -> ServiceName {
    ServiceName { namespace: "default".into(), name: name.into() }
}

/// With both collections listed.
fn cluster(services: &[Value], slices: &[Value]) -> Cluster {
    let mut cluster = Cluster::new(NODE);
    cluster.services_begin();
    for of in services {
        cluster.apply_service(&tree(of));
    }
    assert!(!cluster.is_synced());
    cluster.services_settled();
    assert!(!cluster.is_synced());
    cluster.slices_begin();
    for of in slices {
        cluster.apply_slice(&tree(of));
    }
    cluster.slices_settled();
    assert!(cluster.is_synced());
    cluster
}

fn changed(cluster: &mut Cluster) -> Vec<String> {
    cluster.take_changed().iter().map(ToString::to_string).collect()
}

fn addresses(of: &[IpAddr]) -> String {
    of.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// `10.0.0.1:80 10.0.0.2:80*`: those on this node with a star.
fn backends(of: &[Backend]) -> String {
    let one = |of: &Backend| {
        format!("{}{}", SocketAddr::new(of.address, of.port), if of.is_local { "*" } else { "" })
    };
    of.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// A port of a Service without its backends, in one line: only what differs from an internal port.
fn shown(port: &ServicePort) -> String {
    let address = SocketAddr::new(port.cluster_ip, port.port);
    let mut shown = format!("{address} {:?} {:?}", port.transport, port.port_name);
    let range = |range: &Network| format!("{}/{}", range.address, range.prefix);
    let number = |number: u32| if number == 0 { String::new() } else { number.to_string() };
    let local = |is_local: bool| if is_local { "Local".to_owned() } else { String::new() };
    for (what, value) in [
        ("node", number(port.node_port.into())),
        ("external", addresses(&port.external_ips)),
        ("balancer", addresses(&port.load_balancer_ips)),
        ("from", port.source_ranges.iter().map(range).collect::<Vec<_>>().join(",")),
        ("stays", number(port.affinity_seconds)),
        ("internal-policy", local(port.is_internal_local)),
        ("external-policy", local(port.is_external_local)),
        ("health", number(port.health_check_node_port.into())),
    ] {
        if !value.is_empty() {
            write!(shown, " {what}={value}").unwrap();
        }
    }
    shown
}

#[test]
fn services_are_read_as_kube_proxy_reads_them() {
    let http = || json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    let plain = "10.43.0.1:80 Tcp \"http\"";
    let rows: &[(&str, Value, &[&str])] = &[
        ("a cluster IP", json!({}), &[plain]),
        ("headless", json!({"clusterIP": "None", "clusterIPs": ["None"]}), &[]),
        ("no cluster IP yet", json!({"clusterIP": ""}), &[]),
        ("no cluster IP at all", json!({"clusterIP": null}), &[]),
        ("another host's name", json!({"type": "ExternalName"}), &[]),
        ("not an address", json!({"clusterIP": "10.43.0"}), &[]),
        ("no ports", json!({"ports": null}), &[]),
        ("old, without families", json!({"clusterIP": "fd43::1"}), &["[fd43::1]:80 Tcp \"http\""]),
        (
            "both families",
            json!({"ipFamilies": ["IPv6", "IPv4"], "clusterIPs": ["fd43::1", "10.43.0.1"], "clusterIP": "fd43::1"}),
            &[plain, "[fd43::1]:80 Tcp \"http\""],
        ),
        (
            "one address of two",
            json!({"ipFamilies": ["IPv4", "IPv6"], "clusterIPs": ["10.43.0.1"]}),
            &[plain],
        ),
        ("families without addresses", json!({"ipFamilies": ["IPv4"]}), &[]),
        ("an address of the other family", json!({"ipFamilies": ["IPv4"], "clusterIPs": ["fd43::1"]}), &[]),
        (
            "ports of each protocol",
            json!({"ports": [
                {"name": "a", "port": 53, "protocol": "UDP"}, {"name": "b", "port": 5060, "protocol": "SCTP"},
                {"name": "c", "port": 53}, {"name": "d", "port": 1, "protocol": "QUIC"},
            ]}),
            &["10.43.0.1:53 Udp \"a\"", "10.43.0.1:5060 Sctp \"b\"", "10.43.0.1:53 Tcp \"c\""],
        ),
        (
            "numbers that are no ports",
            json!({"ports": [
                {"name": "a", "port": 0}, {"name": "b", "port": 65536}, {"name": "c", "port": -1},
                {"name": "d", "port": "80"}, {"name": "e", "port": 65535, "nodePort": 70000},
            ]}),
            &["10.43.0.1:65535 Tcp \"e\""],
        ),
        ("a port without a name", json!({"ports": [{"port": 80}]}), &["10.43.0.1:80 Tcp \"\""]),
        (
            "a node port",
            json!({"type": "NodePort", "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
                "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000}),
            &["10.43.0.1:80 Tcp \"http\" node=30080 external-policy=Local"],
        ),
        (
            "external addresses, by family",
            json!({"externalIPs": ["192.0.2.1", "fd00::1", "", "x", "::ffff:192.0.2.2", "192.000.02.3"],
                "ipFamilies": ["IPv4", "IPv6"], "clusterIPs": ["10.43.0.1", "fd43::1"], "externalTrafficPolicy": "Local"}),
            &[
                "10.43.0.1:80 Tcp \"http\" external=192.0.2.1,192.0.2.2,192.0.2.3 external-policy=Local",
                "[fd43::1]:80 Tcp \"http\" external=fd00::1 external-policy=Local",
            ],
        ),
        ("an external policy without anything external", json!({"externalTrafficPolicy": "Local"}), &[plain]),
        (
            "an internal policy",
            json!({"internalTrafficPolicy": "Local"}),
            &["10.43.0.1:80 Tcp \"http\" internal-policy=Local"],
        ),
        ("the default of an internal policy", json!({"internalTrafficPolicy": "Cluster"}), &[plain]),
        (
            "session affinity",
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}}}),
            &["10.43.0.1:80 Tcp \"http\" stays=10"],
        ),
        ("its default", json!({"sessionAffinity": "ClientIP"}), &["10.43.0.1:80 Tcp \"http\" stays=10800"]),
        (
            "none of it",
            json!({"sessionAffinity": "None", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}}}),
            &[plain],
        ),
        (
            "ranges of a load balancer",
            json!({"type": "LoadBalancer", "loadBalancerSourceRanges": [" 10.1.2.3/16 ", "x", "", "fd00::/8", "10.0.0.1"]}),
            &["10.43.0.1:80 Tcp \"http\" from=10.1.0.0/16"],
        ),
        (
            "a range of everybody",
            json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.1.0.0/16", "0.0.0.0/0"]}),
            &[plain],
        ),
        (
            "everybody of the other family",
            json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.1.0.0/16", "::/0"]}),
            &["10.43.0.1:80 Tcp \"http\" from=10.1.0.0/16"],
        ),
        (
            "a check of the node's health",
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000}),
            &["10.43.0.1:80 Tcp \"http\" external-policy=Local health=31000"],
        ),
        (
            "a check that nobody needs",
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Cluster", "healthCheckNodePort": 31000}),
            &[plain],
        ),
    ];
    for (row, fields, wanted) in rows {
        let mut spec = json!({"type": "ClusterIP", "clusterIP": "10.43.0.1", "ports": http()});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let cluster = cluster(&[service("web", spec)], &[]);
        let found: Vec<String> = cluster.ports(&named("web")).iter().map(shown).collect();
        assert_eq!(found, *wanted, "{row}");
    }
}

#[test]
fn labels_status_and_deletion_of_a_service() {
    let of = |patch: Value| {
        let spec = json!({"type": "LoadBalancer", "clusterIP": "10.43.0.1", "ports": [{"name": "http", "port": 80}]});
        let mut object = service("web", spec);
        let metadata = patch["metadata"].as_object().cloned().unwrap_or_default();
        object["metadata"].as_object_mut().unwrap().extend(metadata);
        object["status"] = patch["status"].clone();
        cluster(&[object], &[]).ports(&named("web")).iter().map(shown).collect::<Vec<_>>()
    };
    let plain = "10.43.0.1:80 Tcp \"http\"";
    for (row, patch, wanted) in [
        ("nothing", json!({}), vec![plain]),
        (
            "of another proxy, whatever its name",
            json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": ""}}}),
            vec![],
        ),
        // The endpoint controllers set it on slices; kube-proxy does not ask a Service for it.
        (
            "a label of slices",
            json!({"metadata": {"labels": {"service.kubernetes.io/headless": ""}}}),
            vec![plain],
        ),
        ("being deleted", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), vec![plain]),
        (
            "addresses of the balancer",
            json!({"status": {"loadBalancer": {"ingress": [
                {"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "ipMode": "VIP"}, {"ip": "192.0.2.3", "ipMode": "Proxy"},
                {"hostname": "lb.example"}, {"ip": ""}, {"ip": "fd00::1"}, {"ip": "192.0.2.4", "ipMode": "Future"},
            ]}}}),
            vec!["10.43.0.1:80 Tcp \"http\" balancer=192.0.2.1,192.0.2.2"],
        ),
    ] {
        assert_eq!(of(patch), wanted, "{row}");
    }
}

/// What a slice's endpoint is: `10.0.0.1` and words: `unready`, `draining` (terminating and serving), `gone` (terminating and not
/// serving), `local`, `zones=a,b`, `nodes=a,b`.
fn endpoint(words: &str) -> Value {
    let mut words = words.split(' ');
    let mut endpoint =
        json!({"addresses": [words.next().unwrap()], "conditions": {}, "nodeName": "elsewhere"});
    let condition = |endpoint: &mut Value, ready: bool, serving: bool, terminating: bool| {
        endpoint["conditions"] = json!({"ready": ready, "serving": serving, "terminating": terminating});
    };
    for word in words {
        let hints = |names: &str| names.split(',').map(|name| json!({"name": name})).collect::<Value>();
        match word.split_once('=') {
            None if word == "unready" => condition(&mut endpoint, false, false, false),
            None if word == "draining" => condition(&mut endpoint, false, true, true),
            None if word == "gone" => condition(&mut endpoint, false, false, true),
            None if word == "published" => condition(&mut endpoint, true, false, true),
            None if word == "local" => endpoint["nodeName"] = json!(NODE),
            Some(("zones", names)) => endpoint["hints"]["forZones"] = hints(names),
            Some(("nodes", names)) => endpoint["hints"]["forNodes"] = hints(names),
            _ => panic!("{word}"),
        }
    }
    endpoint
}

/// The rows of kube-proxy's `TestCategorizeEndpoints`, through the objects.
#[test]
fn endpoints_are_categorized_as_in_kube_proxy() {
    // The policies; the zone; the endpoints; those of policy Cluster; those of Local; whether any node has one.
    type Row<'a> = (&'a str, &'a str, &'a str, &'a [&'a str], &'a str, &'a str, bool);
    let rows: &[Row] = &[
        (
            "hints of all, a zone, and endpoints in it",
            "",
            "zone-a",
            &[
                "10.1.2.3 zones=zone-a",
                "10.1.2.4 zones=zone-b",
                "10.1.2.5 zones=zone-c",
                "10.1.2.6 zones=zone-a",
            ],
            "10.1.2.3:80 10.1.2.6:80",
            "",
            true,
        ),
        (
            "externalTrafficPolicy: Local: topology is ignored for local endpoints",
            "external node-port",
            "zone-a",
            &[
                "10.1.2.3 zones=zone-a local",
                "10.1.2.4 zones=zone-b local",
                "10.1.2.5 zones=zone-c",
                "10.1.2.6 zones=zone-a",
            ],
            "10.1.2.3:80* 10.1.2.6:80",
            "10.1.2.3:80* 10.1.2.4:80*",
            true,
        ),
        (
            "internalTrafficPolicy: Local: topology is ignored for local endpoints",
            "internal node-port",
            "zone-a",
            &[
                "10.1.2.3 zones=zone-a local",
                "10.1.2.4 zones=zone-b local",
                "10.1.2.5 zones=zone-c",
                "10.1.2.6 zones=zone-a",
            ],
            "10.1.2.3:80* 10.1.2.6:80",
            "10.1.2.3:80* 10.1.2.4:80*",
            true,
        ),
        ("a node without a zone", "", "", &["10.1.2.3 zones=zone-a"], "10.1.2.3:80", "", true),
        ("a node in another zone", "", "zone-b", &["10.1.2.3 zones=zone-a"], "10.1.2.3:80", "", true),
        (
            "an endpoint that is not ready",
            "",
            "zone-a",
            &[
                "10.1.2.3 zones=zone-a",
                "10.1.2.4 zones=zone-b",
                "10.1.2.5 zones=zone-c",
                "10.1.2.6 zones=zone-a unready",
            ],
            "10.1.2.3:80",
            "",
            true,
        ),
        (
            "none that is ready in the zone",
            "",
            "zone-a",
            &[
                "10.1.2.3 zones=zone-a unready",
                "10.1.2.4 zones=zone-b",
                "10.1.2.5 zones=zone-c",
                "10.1.2.6 zones=zone-a unready",
            ],
            "10.1.2.4:80 10.1.2.5:80",
            "",
            true,
        ),
        (
            "hints that are missing",
            "",
            "zone-a",
            &["10.1.2.3 zones=zone-a", "10.1.2.4 zones=zone-b", "10.1.2.5", "10.1.2.6 zones=zone-a"],
            "10.1.2.3:80 10.1.2.4:80 10.1.2.5:80 10.1.2.6:80",
            "",
            true,
        ),
        (
            "hints that are missing of one that is not ready",
            "",
            "zone-a",
            &["10.1.2.3 zones=zone-a", "10.1.2.4 zones=zone-b", "10.1.2.5 unready"],
            "10.1.2.3:80",
            "",
            true,
        ),
        (
            "several hints of an endpoint",
            "",
            "zone-c",
            &[
                "10.1.2.3 zones=zone-a,zone-b,zone-c",
                "10.1.2.4 zones=zone-b,zone-c",
                "10.1.2.5 zones=zone-b,zone-d",
                "10.1.2.6 zones=zone-c",
            ],
            "10.1.2.3:80 10.1.2.4:80 10.1.2.6:80",
            "",
            true,
        ),
        (
            "PreferSameNode",
            "",
            "zone-a",
            &[
                "10.1.2.3 zones=zone-a nodes=node-1",
                "10.1.2.4 zones=zone-b nodes=node-2",
                "10.1.2.5 zones=zone-c nodes=node-3",
                "10.1.2.6 zones=zone-a nodes=node-4",
            ],
            "10.1.2.3:80",
            "",
            true,
        ),
        (
            "PreferSameNode with an endpoint without hints",
            "",
            "zone-a",
            &[
                "10.1.2.3 zones=zone-a nodes=node-1",
                "10.1.2.4",
                "10.1.2.5 zones=zone-c nodes=node-3",
                "10.1.2.6 zones=zone-a nodes=node-4",
            ],
            "10.1.2.3:80 10.1.2.4:80 10.1.2.5:80 10.1.2.6:80",
            "",
            true,
        ),
        (
            "PreferSameNode falls back to the zone",
            "",
            "zone-a",
            &[
                "10.1.2.3 zones=zone-a nodes=node-0",
                "10.1.2.4 zones=zone-b nodes=node-2",
                "10.1.2.5 zones=zone-c nodes=node-3",
                "10.1.2.6 zones=zone-a nodes=node-4",
            ],
            "10.1.2.3:80 10.1.2.6:80",
            "",
            true,
        ),
        (
            "topology and localness that differ",
            "external node-port",
            "zone-a",
            &[
                "10.0.0.0 zones=zone-a local",
                "10.0.0.1 zones=zone-b local",
                "10.0.0.2 zones=zone-a",
                "10.0.0.3 zones=zone-b",
            ],
            "10.0.0.0:80* 10.0.0.2:80",
            "10.0.0.0:80* 10.0.0.1:80*",
            true,
        ),
        ("internalTrafficPolicy: Local without endpoints", "internal", "", &[], "", "", false),
        (
            "internalTrafficPolicy: Local, all are remote",
            "internal",
            "",
            &["10.0.0.0", "10.0.0.1"],
            "",
            "",
            true,
        ),
        (
            "internalTrafficPolicy: Local, all are local",
            "internal",
            "",
            &["10.0.0.0 local", "10.0.0.1 local"],
            "",
            "10.0.0.0:80* 10.0.0.1:80*",
            true,
        ),
        (
            "internalTrafficPolicy: Local, some are local",
            "internal",
            "",
            &["10.0.0.0 local", "10.0.0.1"],
            "",
            "10.0.0.0:80*",
            true,
        ),
        ("Cluster, none is ready", "", "", &["10.0.0.0 unready", "10.0.0.1 unready"], "", "", false),
        ("Cluster, some are ready", "", "", &["10.0.0.0 unready", "10.0.0.1"], "10.0.0.1:80", "", true),
        (
            "Cluster, all are terminating",
            "",
            "",
            &["10.0.0.0 draining local", "10.0.0.1 draining"],
            "10.0.0.0:80* 10.0.0.1:80",
            "",
            true,
        ),
        (
            "Cluster, all are terminating and serve no more",
            "",
            "",
            &["10.0.0.0 gone local", "10.0.0.1 gone"],
            "",
            "",
            false,
        ),
        (
            "iTP: Local, eTP: Cluster, some are local",
            "internal node-port",
            "",
            &["10.0.0.0 local", "10.0.0.1"],
            "10.0.0.0:80* 10.0.0.1:80",
            "10.0.0.0:80*",
            true,
        ),
        (
            "iTP: Cluster, eTP: Local, some are local",
            "external node-port",
            "",
            &["10.0.0.0 local", "10.0.0.1"],
            "10.0.0.0:80* 10.0.0.1:80",
            "10.0.0.0:80*",
            true,
        ),
        (
            "iTP: Local, eTP: Local, some are local",
            "internal external node-port",
            "",
            &["10.0.0.0 local", "10.0.0.1"],
            "10.0.0.0:80* 10.0.0.1:80",
            "10.0.0.0:80*",
            true,
        ),
        (
            "iTP: Local, eTP: Local, all are remote",
            "internal external node-port",
            "",
            &["10.0.0.0", "10.0.0.1"],
            "10.0.0.0:80 10.0.0.1:80",
            "",
            true,
        ),
        (
            "iTP: Local, eTP: Local, all are remote and terminating",
            "internal external node-port",
            "",
            &["10.0.0.0 draining", "10.0.0.1 draining"],
            "10.0.0.0:80 10.0.0.1:80",
            "",
            true,
        ),
        (
            "iTP: Cluster, eTP: Local, with terminating ones",
            "external node-port",
            "",
            &["10.0.0.0", "10.0.0.1 unready local", "10.0.0.2 draining local", "10.0.0.3 draining"],
            "10.0.0.0:80",
            "10.0.0.2:80*",
            true,
        ),
        (
            "eTP without anything external",
            "external",
            "",
            &["10.0.0.0", "10.0.0.1 local"],
            "10.0.0.0:80 10.0.0.1:80*",
            "",
            true,
        ),
        (
            "iTP: Local without anything external",
            "internal",
            "",
            &["10.0.0.0", "10.0.0.1 local"],
            "",
            "10.0.0.1:80*",
            true,
        ),
        ("no endpoints", "", "", &[], "", "", false),
        (
            "one that is neither ready nor serving nor terminating",
            "",
            "zone-a",
            &["10.0.0.0 unready"],
            "",
            "",
            false,
        ),
        // publishNotReadyAddresses.
        (
            "ready while it terminates",
            "",
            "",
            &["10.0.0.0 published", "10.0.0.1"],
            "10.0.0.0:80 10.0.0.1:80",
            "",
            true,
        ),
    ];
    for (row, policies, zone, endpoints, by_cluster, by_local, has_endpoints) in rows {
        let has = |word| policies.split(' ').any(|policy| policy == word);
        let policy = |word| if has(word) { "Local" } else { "Cluster" };
        // `external` without a node port: a NodePort Service whose port has none.
        let spec = json!({
            "type": "NodePort", "clusterIP": "10.43.0.1",
            "ports": [{"name": "http", "port": 80, "nodePort": if has("node-port") { 30080 } else { 0 }}],
            "internalTrafficPolicy": policy("internal"), "externalTrafficPolicy": policy("external"),
        });
        let endpoints: Value = endpoints.iter().map(|words| endpoint(words)).collect();
        let slice =
            slice("web", "web-1", json!([{"name": "http", "port": 80, "protocol": "TCP"}]), endpoints);
        let mut cluster = cluster(&[service("web", spec)], &[slice]);
        cluster.set_zone(zone);
        let ports = cluster.ports(&named("web"));
        assert_eq!(ports.len(), 1, "{row}");
        let found = (backends(&ports[0].cluster), backends(&ports[0].local), ports[0].has_endpoints);
        assert_eq!(found, (String::from(*by_cluster), String::from(*by_local), *has_endpoints), "{row}");
    }
}

/// The rows of kube-proxy's `TestEndpointsMapFromESC` and `TestEndpointInfoByServicePort`, and those of its `EndpointSlice` types.
#[test]
fn slices_of_a_service_are_merged() {
    let http = |port: u16| json!([{"name": "http", "port": port}]);
    let of = |ports: Value, endpoints: &[&str]| {
        (ports, endpoints.iter().map(|words| endpoint(words)).collect::<Value>())
    };
    #[allow(clippy::type_complexity, reason = "a table")]
    let rows: &[(&str, &[(Value, Value)], &str)] = &[
        ("no slices", &[], ""),
        (
            "two slices",
            &[of(http(80), &["10.0.1.1", "10.0.1.2 local"]), of(http(80), &["10.0.2.1"])],
            "10.0.1.1:80 10.0.1.2:80* 10.0.2.1:80",
        ),
        (
            "the same endpoint in both",
            &[of(http(80), &["10.0.1.2", "10.0.1.1"]), of(http(80), &["10.0.1.1", "10.0.1.3"])],
            "10.0.1.1:80 10.0.1.2:80 10.0.1.3:80",
        ),
        (
            "ready in the first",
            &[of(http(80), &["10.0.1.1"]), of(http(80), &["10.0.1.1 unready"])],
            "10.0.1.1:80",
        ),
        (
            "ready in the second",
            &[of(http(80), &["10.0.1.1 unready"]), of(http(80), &["10.0.1.1"])],
            "10.0.1.1:80",
        ),
        (
            "terminating in the second, not ready in the first",
            &[of(http(80), &["10.0.1.1 unready"]), of(http(80), &["10.0.1.1 draining"])],
            "",
        ),
        (
            "an address that a terminating pod still has",
            &[of(http(80), &["10.0.1.1 draining", "10.0.1.1 local", "10.0.1.1 gone"])],
            "10.0.1.1:80*",
        ),
        (
            "one address with two ports",
            &[of(http(80), &["10.0.1.1"]), of(http(8080), &["10.0.1.1"])],
            "10.0.1.1:80 10.0.1.1:8080",
        ),
        ("no number, all ports", &[of(json!([{"name": "http", "port": null}]), &["10.0.1.1"])], ""),
        ("the number 0", &[of(http(0), &["10.0.1.1"])], ""),
        ("no name", &[of(json!([{"name": null, "port": 80}]), &["10.0.1.1"])], ""),
        ("another name", &[of(json!([{"name": "https", "port": 80}]), &["10.0.1.1"])], ""),
        (
            "another protocol",
            &[of(json!([{"name": "http", "port": 80, "protocol": "UDP"}]), &["10.0.1.1"])],
            "",
        ),
        ("no ports", &[of(Value::Null, &["10.0.1.1"])], ""),
        (
            "the name twice",
            &[of(json!([{"name": "http", "port": 80}, {"name": "http", "port": 81}]), &["10.0.1.1"])],
            "10.0.1.1:80 10.0.1.1:81",
        ),
        ("addresses that are none", &[of(http(80), &["fd00::1", "x", "10.0.1.01"])], "10.0.1.1:80"),
        (
            "an endpoint without addresses",
            &[(
                http(80),
                json!([{"addresses": []}, {"addresses": null}, {}, {"addresses": ["10.0.1.1", "10.0.1.2"]}]),
            )],
            "10.0.1.1:80",
        ),
        ("no endpoints", &[(http(80), Value::Null)], ""),
        (
            "conditions that are not given",
            &[(
                http(80),
                json!([
                    {"addresses": ["10.0.1.1"], "conditions": null},
                    {"addresses": ["10.0.1.2"], "conditions": {"serving": false, "terminating": null}},
                ]),
            )],
            "10.0.1.1:80 10.0.1.2:80",
        ),
        (
            "serving that is not given",
            &[(
                http(80),
                json!([{"addresses": ["10.0.1.1"], "conditions": {"ready": false, "terminating": true}}]),
            )],
            "10.0.1.1:80",
        ),
        ("no node", &[(http(80), json!([{"addresses": ["10.0.1.1"], "nodeName": ""}]))], "10.0.1.1:80"),
    ];
    let spec = json!({"clusterIP": "10.43.0.1", "ports": [{"name": "http", "port": 8000}]});
    for (row, slices, wanted) in rows {
        let slices: Vec<Value> = slices
            .iter()
            .enumerate()
            .map(|(number, (ports, endpoints))| {
                slice("web", &format!("web-{number}"), ports.clone(), endpoints.clone())
            })
            .collect();
        let ports = cluster(&[service("web", spec.clone())], &slices).ports(&named("web"));
        assert_eq!(backends(&ports[0].cluster), *wanted, "{row}");
    }
}

#[test]
fn slices_of_others_are_not_taken() {
    let endpoints = || json!([{"addresses": ["10.0.1.1"]}]);
    let good = || slice("web", "web-1", json!([{"name": "", "port": 80}]), endpoints());
    let patched = |pointer: &str, value: Value| {
        let mut slice = good();
        *slice.pointer_mut(pointer).unwrap() = value;
        slice
    };
    let spec = json!({"clusterIP": "10.43.0.1", "ports": [{"port": 80}]});
    for (row, slice, wanted) in [
        ("its own", good(), "10.0.1.1:80"),
        ("of names", patched("/addressType", json!("FQDN")), ""),
        ("of the other family", patched("/addressType", json!("IPv6")), ""),
        ("without a type", patched("/addressType", Value::Null), ""),
        ("of another namespace", patched("/metadata/namespace", json!("kube-system")), ""),
        ("without a name", patched("/metadata/name", json!("")), ""),
        ("of another Service", patched("/metadata/labels/kubernetes.io~1service-name", json!("web-1")), ""),
        ("of no Service", patched("/metadata/labels/kubernetes.io~1service-name", json!("")), ""),
        ("without labels", patched("/metadata/labels", Value::Null), ""),
        (
            "headless",
            patched(
                "/metadata/labels",
                json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""}),
            ),
            "",
        ),
        (
            "being deleted",
            {
                let mut slice = good();
                slice["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                slice
            },
            "10.0.1.1:80",
        ),
    ] {
        let ports = cluster(&[service("web", spec.clone())], &[slice]).ports(&named("web"));
        assert_eq!(backends(&ports[0].cluster), wanted, "{row}");
    }
}

#[test]
fn each_family_has_its_own_endpoints() {
    let spec = json!({
        "ipFamilies": ["IPv4", "IPv6"], "clusterIPs": ["10.43.0.1", "fd43::1"], "clusterIP": "10.43.0.1",
        "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2, "protocol": "UDP"}],
    });
    let ports = json!([{"name": "a", "port": 81}, {"name": "b", "port": 82, "protocol": "UDP"}]);
    let v4 = slice("web", "web-4", ports.clone(), json!([{"addresses": ["10.0.0.1"], "nodeName": NODE}]));
    let mut v6 = slice(
        "web",
        "web-6",
        ports,
        json!([
            {"addresses": ["fd00::1"], "nodeName": NODE}, {"addresses": ["fd00::2"], "nodeName": NODE},
            {"addresses": ["fd00::3"]},
        ]),
    );
    v6["addressType"] = json!("IPv6");
    let cluster = cluster(&[service("web", spec)], &[v4, v6]);
    let lines: Vec<String> = cluster
        .ports(&named("web"))
        .iter()
        .map(|port| {
            format!(
                "{} {} {}: {}",
                port.cluster_ip,
                port.port,
                port.transport.number(),
                backends(&port.cluster)
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            "10.43.0.1 1 6: 10.0.0.1:81*",
            "10.43.0.1 2 17: 10.0.0.1:82*",
            "fd43::1 1 6: [fd00::1]:81* [fd00::2]:81* [fd00::3]:81",
            "fd43::1 2 17: [fd00::1]:82* [fd00::2]:82* [fd00::3]:82",
        ]
    );
    assert_eq!(cluster.counts(), (2, 8), "each endpoint with each port");
    assert_eq!(cluster.local_ready(&named("web")), 2, "of the family that has more, whatever the ports");
    assert_eq!(cluster.local_ready(&named("other")), 0);
    assert_eq!(Transport::Sctp.number(), 132);
}

fn web(name: &str) -> Value {
    service(name, json!({"clusterIP": "10.43.0.1", "ports": [{"port": 80}]}))
}

fn web_slice(service: &str, name: &str, address: &str) -> Value {
    slice(service, name, json!([{"name": "", "port": 80}]), json!([{"addresses": [address]}]))
}

fn served(cluster: &Cluster, name: &str) -> String {
    cluster.ports(&named(name)).iter().map(|port| backends(&port.cluster)).collect::<Vec<_>>().join(" | ")
}

#[test]
fn what_changes_is_said_once() {
    let mut cluster = cluster(&[web("a"), web("b")], &[web_slice("a", "a-1", "10.0.0.1")]);
    assert_eq!(changed(&mut cluster), ["default/a", "default/b"]);
    assert_eq!(changed(&mut cluster), [""; 0]);

    cluster.apply_service(&tree(&web("a")));
    cluster.apply_slice(&tree(&web_slice("a", "a-1", "10.0.0.1")));
    assert_eq!(changed(&mut cluster), [""; 0], "the same again");

    cluster.apply_slice(&tree(&web_slice("a", "a-1", "10.0.0.2")));
    cluster.apply_slice(&tree(&web_slice("a", "a-1", "10.0.0.3")));
    assert_eq!(changed(&mut cluster), ["default/a"]);
    assert_eq!(served(&cluster, "a"), "10.0.0.3:80");

    // The slices of a Service that does not exist say nothing until it does, in whichever order they come.
    cluster.apply_slice(&tree(&web_slice("c", "c-1", "10.0.0.4")));
    assert_eq!(changed(&mut cluster), [""; 0]);
    assert!(cluster.ports(&named("c")).is_empty());
    cluster.apply_service(&tree(&web("c")));
    assert_eq!(changed(&mut cluster), ["default/c"]);
    assert_eq!(served(&cluster, "c"), "10.0.0.4:80");

    cluster.delete_service(&tree(&web("c")));
    cluster.delete_service(&tree(&web("nobody")));
    assert_eq!(changed(&mut cluster), ["default/c"]);
    assert!(cluster.ports(&named("c")).is_empty());
    cluster.delete_slice(&tree(&web_slice("c", "c-1", "10.0.0.4")));
    cluster.delete_slice(&tree(&web_slice("c", "c-1", "10.0.0.4")));
    assert_eq!(changed(&mut cluster), [""; 0]);

    // Gone and there again before anybody asked: once.
    cluster.delete_service(&tree(&web("b")));
    cluster.apply_service(&tree(&web("b")));
    assert_eq!(changed(&mut cluster), ["default/b"]);

    // A Service that becomes headless is gone.
    cluster.apply_service(&tree(&service("b", json!({"clusterIP": "None", "ports": [{"port": 80}]}))));
    assert_eq!(changed(&mut cluster), ["default/b"]);
    cluster.delete_service(&tree(&web("a")));
    cluster.delete_slice(&tree(&web_slice("a", "a-1", "10.0.0.3")));
    assert_eq!(changed(&mut cluster), ["default/a"]);
    assert_eq!((cluster.counts(), cluster.bytes()), ((0, 0), 0), "nothing is left of them");
}

#[test]
fn what_a_list_does_not_have_is_gone() {
    let slices = [
        web_slice("a", "a-1", "10.0.0.1"),
        web_slice("b", "b-1", "10.0.0.2"),
        web_slice("b", "b-2", "10.0.0.3"),
    ];
    let mut cluster = cluster(&[web("a"), web("b")], &slices);
    changed(&mut cluster);

    // A list that broke off takes nothing away, and the next one begins anew.
    cluster.services_begin();
    cluster.apply_service(&tree(&web("a")));
    cluster.services_begin();
    cluster.apply_service(&tree(&web("b")));
    cluster.apply_service(&tree(&web("c")));
    assert!(cluster.is_synced());
    assert_eq!(changed(&mut cluster), ["default/c"]);
    cluster.services_settled();
    assert_eq!(changed(&mut cluster), ["default/a"]);
    assert!(cluster.ports(&named("a")).is_empty());

    cluster.slices_begin();
    cluster.apply_slice(&tree(&slices[2]));
    cluster.slices_settled();
    assert_eq!(changed(&mut cluster), ["default/b"]);
    assert_eq!(served(&cluster, "b"), "10.0.0.3:80");
    // Events of the watch settle too.
    cluster.slices_settled();
    cluster.services_settled();
    assert_eq!((changed(&mut cluster), cluster.counts()), (Vec::<String>::new(), (2, 1)));
}

#[test]
fn a_slice_that_changes_its_labels_moves() {
    let mut cluster = cluster(&[web("a"), web("b")], &[web_slice("a", "s", "10.0.0.1")]);
    changed(&mut cluster);
    cluster.apply_slice(&tree(&web_slice("b", "s", "10.0.0.1")));
    assert_eq!(changed(&mut cluster), ["default/a", "default/b"]);
    assert_eq!((served(&cluster, "a"), served(&cluster, "b")), (String::new(), "10.0.0.1:80".into()));

    let mut headless = web_slice("c", "s", "10.0.0.1");
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = json!("");
    cluster.apply_slice(&tree(&headless));
    assert_eq!((changed(&mut cluster), cluster.counts()), (vec!["default/b".to_owned()], (2, 0)));

    // The same within a list, which sweeps.
    cluster.apply_slice(&tree(&web_slice("b", "s", "10.0.0.1")));
    cluster.slices_begin();
    cluster.apply_slice(&tree(&web_slice("a", "s", "10.0.0.1")));
    cluster.slices_settled();
    assert_eq!((served(&cluster, "a"), served(&cluster, "b")), ("10.0.0.1:80".into(), String::new()));
    assert_eq!(cluster.counts(), (2, 1));
}

#[test]
fn a_change_of_the_zone_changes_what_depends_on_it() {
    let mut hinted = web_slice("a", "a-1", "10.0.0.1");
    hinted["endpoints"] = json!([endpoint("10.0.0.1 zones=zone-a"), endpoint("10.0.0.2 zones=zone-b")]);
    let mut cluster = cluster(&[web("a"), web("b")], &[hinted, web_slice("b", "b-1", "10.0.0.3")]);
    changed(&mut cluster);
    for (zone, said, wanted) in [
        ("zone-a", 1, "10.0.0.1:80"),
        ("zone-a", 0, "10.0.0.1:80"),
        ("zone-b", 1, "10.0.0.2:80"),
        ("", 1, "10.0.0.1:80 10.0.0.2:80"),
    ] {
        cluster.set_zone(zone);
        assert_eq!(changed(&mut cluster), &["default/a"][..said], "{zone}");
        assert_eq!(served(&cluster, "a"), wanted, "{zone}");
    }
}

#[test]
fn a_change_of_the_nodes_addresses_changes_services_with_ranges() {
    let balanced = |name: &str, ranges: &[&str], ingress: &[&str]| {
        let spec = json!({"type": "LoadBalancer", "clusterIP": "10.43.0.1", "ports": [{"port": 80}],
            "loadBalancerSourceRanges": ranges});
        let mut object = service(name, spec);
        let ingress: Value = ingress.iter().map(|ip| json!({"ip": ip})).collect();
        object["status"] = json!({"loadBalancer": {"ingress": ingress}});
        object
    };
    let services = [
        balanced("a", &["192.168.9.0/24"], &["192.0.2.1"]),
        balanced("b", &[], &["192.0.2.2"]),
        balanced("c", &["192.168.9.0/24"], &[]),
        web("d"),
    ];
    let mut cluster = cluster(&services, &[]);
    assert_eq!(changed(&mut cluster).len(), 4);
    for (address, said) in [("192.168.9.1", 1), ("192.168.9.1", 0), ("192.168.8.1", 1)] {
        cluster.set_node_addresses(&[address.parse().unwrap()]);
        assert_eq!(changed(&mut cluster), &["default/a"][..said], "{address}");
    }
}

/// More different sets of zones in a slice than are kept: the hints do not count, and no endpoint is lost.
#[test]
fn too_many_sets_of_zones_count_as_none() {
    let endpoints = |count: usize| -> Value {
        (0..count).map(|n| endpoint(&format!("10.0.{}.{} zones=zone-{n}", n / 250, n % 250 + 1))).collect()
    };
    for (count, wanted) in [(255, 1), (256, 256)] {
        let slice = slice("a", "a-1", json!([{"name": "", "port": 80}]), endpoints(count));
        let mut cluster = cluster(&[web("a")], &[slice]);
        cluster.set_zone("zone-7");
        assert_eq!(cluster.ports(&named("a"))[0].cluster.len(), wanted, "{count} sets");
    }
}

fn hundred(service: &str, name: &str, from: usize) -> Value {
    let endpoints = (from..from + 100).map(|n| {
        let address = format!("10.{}.{}.{}", n / 62_500, n / 250 % 250, n % 250 + 1);
        json!({
            "addresses": [address], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "node-2", "targetRef": {"kind": "Pod", "namespace": "default", "name": "web-5d4f", "uid": "0b5e"},
        })
    });
    slice(service, name, json!([{"name": "http", "port": 8080, "protocol": "TCP"}]), endpoints.collect())
}

#[test]
fn ten_thousand_endpoints_are_held_in_little_memory() {
    let spec = json!({
        "type": "ClusterIP", "clusterIP": "10.43.0.1", "clusterIPs": ["10.43.0.1"], "ipFamilies": ["IPv4"],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
    });
    let services: Vec<Node> =
        (0..100).map(|n| tree(&service(&format!("web-{n:03}"), spec.clone()))).collect();
    let of = |n: usize| tree(&hundred(&format!("web-{n:03}"), &format!("web-{n:03}-x7k2p"), n * 100));
    let slices: Vec<Node> = (0..100).map(of).collect();
    let mut cluster = Cluster::new(NODE);
    let spent = allocation_counter::measure(|| {
        cluster.services_begin();
        for of in &services {
            cluster.apply_service(of);
        }
        cluster.services_settled();
        cluster.slices_begin();
        for of in &slices {
            cluster.apply_slice(of);
        }
        cluster.slices_settled();
        assert_eq!(cluster.take_changed().len(), 100);
    });
    let held = usize::try_from(spent.bytes_current).unwrap();
    println!(
        "10,000 endpoints: {held} bytes are held, at the peak {}; counted: {}",
        spent.bytes_max,
        cluster.bytes()
    );
    assert_eq!(cluster.counts(), (100, 10_000));
    assert!(held <= cluster.bytes(), "{held} bytes, and {} are counted", cluster.bytes());
    assert!(cluster.bytes() <= 1 << 20, "{} bytes", cluster.bytes());

    // One change costs what it changes, and of nothing else a copy is made.
    let change = tree(&hundred("web-050", "web-050-x7k2p", 0));
    let spent = allocation_counter::measure(|| {
        cluster.apply_slice(&change);
        assert_eq!(cluster.take_changed().len(), 1);
    });
    println!("one slice changed: {} bytes at the peak", spent.bytes_max);
    assert!(spent.bytes_max < 8 << 10, "{} bytes", spent.bytes_max);
    assert_eq!(spent.bytes_current, 0);

    for of in &services {
        cluster.delete_service(of);
    }
    for of in &slices {
        cluster.delete_slice(of);
    }
    cluster.take_changed();
    assert_eq!((cluster.counts(), cluster.bytes()), ((0, 0), 0));
}

#[test]
fn services_that_do_not_fit_are_left_out_and_named() {
    let of = |name: &str, count: usize| {
        let ports: Value = (1..=count).map(|n| json!({"name": format!("p{n}"), "port": n})).collect();
        tree(&service(name, json!({"clusterIP": "10.43.0.1", "ports": ports})))
    };
    let mut cluster = Cluster::new(NODE);
    let list = |cluster: &mut Cluster, first: usize| {
        cluster.services_begin();
        (first..SERVICE_PORTS_MAX / 1000 - 1)
            .for_each(|n| cluster.apply_service(&of(&format!("a{n}"), 1000)));
    };
    list(&mut cluster, 0);
    cluster.apply_service(&of("b", 1000));
    cluster.services_settled();
    assert!(cluster.take_left_out().is_empty());
    assert_eq!((cluster.counts(), changed(&mut cluster).len()), ((SERVICE_PORTS_MAX, 0), 10));

    cluster.apply_service(&of("c", 1));
    cluster.apply_service(&of("c", 2));
    assert_eq!(cluster.take_left_out(), [named("c")]);
    assert!(cluster.take_left_out().is_empty(), "named once");
    assert!(cluster.ports(&named("c")).is_empty() && !cluster.services_have_room());
    assert_eq!((changed(&mut cluster), cluster.ports(&named("b")).len()), (Vec::<String>::new(), 1000));
    // One that grows past the bound is left out as well, and makes room.
    cluster.apply_service(&of("b", 1001));
    assert_eq!(cluster.take_left_out(), [named("b")]);
    assert_eq!((cluster.counts(), changed(&mut cluster)), ((9000, 0), vec!["default/b".to_owned()]));
    assert!(cluster.services_have_room() && !cluster.slices_have_room());

    list(&mut cluster, 0);
    assert!(!cluster.services_have_room());
    cluster.apply_service(&of("b", 1001));
    cluster.apply_service(&of("c", 2));
    cluster.services_settled();
    assert_eq!((cluster.ports(&named("b")).len(), cluster.ports(&named("c")).len()), (0, 2));
    assert!(cluster.take_left_out().is_empty(), "it was named already");
    cluster.delete_service(&of("a0", 1));
    assert!(cluster.services_have_room());
    list(&mut cluster, 1);
    cluster.apply_service(&of("b", 1001));
    cluster.apply_service(&of("c", 2));
    cluster.services_settled();
    assert_eq!(cluster.counts(), (9003, 0));

    // What is too large never fits: no list is worth while.
    cluster.apply_service(&of("d", SERVICE_PORTS_EACH_MAX + 1));
    cluster.delete_service(&of("b", 1));
    assert!(!cluster.services_have_room());
    assert_eq!(cluster.take_left_out(), [named("d")]);
    let ranges = |count: usize| {
        let spec = json!({"type": "LoadBalancer", "clusterIP": "10.43.0.9", "ports": [{"port": 80}],
            "loadBalancerSourceRanges": vec!["10.0.0.0/8"; count]});
        tree(&service("r", spec))
    };
    cluster.apply_service(&ranges(SOURCE_RANGES_MAX));
    assert_eq!((cluster.ports(&named("r")).len(), cluster.take_left_out().len()), (1, 0));
    cluster.apply_service(&ranges(SOURCE_RANGES_MAX + 1));
    assert_eq!((cluster.ports(&named("r")).len(), cluster.take_left_out()), (0, vec![named("r")]));
    assert_eq!(changed(&mut cluster), ["default/c", "default/a0", "default/b", "default/r"]);
    // The names that are kept are bounded, and nothing else is kept.
    let bytes = cluster.bytes();
    for n in 0..2 * SERVICES_LEFT_OUT_NAMED_MAX {
        cluster.apply_service(&of(&format!("e{n}"), SERVICE_PORTS_EACH_MAX + 1));
    }
    assert_eq!(cluster.take_left_out().len(), SERVICES_LEFT_OUT_NAMED_MAX - 2);
    assert_eq!((cluster.bytes(), changed(&mut cluster)), (bytes, Vec::new()));
}

#[test]
fn endpoints_that_do_not_fit_are_left_out_and_their_service_named() {
    let mut cluster = cluster(&[web("a"), web("b")], &[]);
    let slices = ENDPOINTS_MAX / 100;
    cluster.slices_begin();
    for n in 0..slices {
        cluster.apply_slice(&tree(&hundred("a", &format!("a-{n:04}"), n * 100)));
    }
    cluster.slices_settled();
    println!("{ENDPOINTS_MAX} endpoints: {} bytes", cluster.bytes());
    assert_eq!(cluster.counts(), (2, ENDPOINTS_MAX));
    assert!(cluster.take_left_out().is_empty());

    cluster.apply_slice(&tree(&web_slice("b", "b-1", "10.9.0.1")));
    assert_eq!((cluster.take_left_out(), cluster.counts()), (vec![named("b")], (2, ENDPOINTS_MAX)));
    assert!(!cluster.slices_have_room());
    // One for one fits.
    cluster.apply_slice(&tree(&hundred("a", "a-0000", 500)));
    assert_eq!((cluster.take_left_out(), cluster.counts()), (Vec::<ServiceName>::new(), (2, ENDPOINTS_MAX)));
    for n in 1..=slices / 16 + 1 {
        assert!(!cluster.slices_have_room(), "a list for a few would be one after the other");
        cluster.delete_slice(&tree(&hundred("a", &format!("a-{n:04}"), 0)));
    }
    assert!(cluster.slices_have_room());
    cluster.apply_slice(&tree(&web_slice("b", "b-1", "10.9.0.1")));
    assert_eq!(served(&cluster, "b"), "10.9.0.1:80");
}

#[test]
fn ten_thousand_services_fit() {
    let mut cluster = Cluster::new(NODE);
    cluster.services_begin();
    let ports = json!([{"name": "http", "port": 80}]);
    for n in 0..SERVICE_PORTS_MAX {
        let spec = json!({"clusterIP": "10.43.0.1", "ports": ports});
        cluster.apply_service(&tree(&service(&format!("application-{n:05}"), spec)));
    }
    cluster.services_settled();
    cluster.slices_begin();
    for n in 0..SERVICE_PORTS_MAX {
        let endpoints: Value = (1..=10).map(|n| json!({"addresses": [format!("10.0.0.{n}")]})).collect();
        let (of, name) = (format!("application-{n:05}"), format!("application-{n:05}-x7k2p"));
        cluster.apply_slice(&tree(&slice(&of, &name, ports.clone(), endpoints)));
    }
    cluster.slices_settled();
    println!(
        "{SERVICE_PORTS_MAX} Services, 10 endpoints each: {} bytes of {SERVICES_BYTES_MAX}",
        cluster.bytes()
    );
    assert_eq!(
        (cluster.take_left_out(), cluster.counts()),
        (Vec::<ServiceName>::new(), (SERVICE_PORTS_MAX, ENDPOINTS_MAX))
    );
}

/// What many slices hold besides endpoints is bounded too.
#[test]
fn bytes_are_bounded() {
    let mut cluster = Cluster::new(NODE);
    let long = "x".repeat(100_000);
    let mut count = 0;
    while cluster.take_left_out().is_empty() {
        cluster.apply_slice(&tree(&slice("a", &format!("{long}{count}"), json!([]), json!([]))));
        count += 1;
        assert!(count < 1000);
    }
    assert!(cluster.bytes() <= SERVICES_BYTES_MAX && cluster.bytes() > SERVICES_BYTES_MAX - 200_000);
}

/// A walk of random events: what is served is what the last objects say, and whatever changes of it is said.
#[test]
fn a_watch_ends_where_a_list_begins() {
    for seed in 1..=crate::cases(200) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut next = |below: usize| random.usize(..below);
        let names = ["a", "b", "c"];
        let (mut services, mut slices): (Vec<Option<Value>>, Vec<Option<Value>>) =
            (vec![None; 3], vec![None; 6]);
        let mut cluster = cluster(&[], &[]);
        let mut zone = "";
        let mut known: Vec<Vec<ServicePort>> = vec![Vec::new(); 3];
        for _ in 0..60 {
            match next(12) {
                0 => {
                    zone = ["", "zone-a", "zone-b"][next(3)];
                    cluster.set_zone(zone);
                }
                1 => {
                    cluster.services_begin();
                    services = services.into_iter().map(|of| of.filter(|_| next(4) > 0)).collect();
                    for of in services.iter().flatten() {
                        cluster.apply_service(&tree(of));
                    }
                    cluster.services_settled();
                }
                2 => {
                    cluster.slices_begin();
                    slices = slices.into_iter().map(|of| of.filter(|_| next(4) > 0)).collect();
                    for of in slices.iter().flatten() {
                        cluster.apply_slice(&tree(of));
                    }
                    cluster.slices_settled();
                }
                3 | 4 => {
                    let n = next(3);
                    if let Some(gone) = services[n].take() {
                        cluster.delete_service(&tree(&gone));
                    }
                }
                5 | 6 => {
                    let n = next(6);
                    if let Some(gone) = slices[n].take() {
                        cluster.delete_slice(&tree(&gone));
                    }
                }
                7 | 8 => {
                    let n = next(3);
                    let ip = ["10.43.0.1", "10.43.0.2", "None"][next(3)];
                    let policy = ["Local", "Cluster"][next(2)];
                    let spec = json!({"clusterIP": ip, "ports": [{"port": 80 + next(2)}], "internalTrafficPolicy": policy});
                    let object = service(names[n], spec);
                    cluster.apply_service(&tree(&object));
                    services[n] = Some(object);
                }
                _ => {
                    let n = next(6);
                    let words = [
                        "",
                        " unready",
                        " draining",
                        " local",
                        " zones=zone-a",
                        " zones=zone-b",
                        " nodes=node-1",
                    ];
                    let count = next(4);
                    let endpoints: Value = (0..count)
                        .map(|_| endpoint(&format!("10.0.0.{}{}", next(4), words[next(7)])))
                        .collect();
                    let object =
                        slice(names[next(3)], &format!("s{n}"), json!([{"name": "", "port": 80}]), endpoints);
                    cluster.apply_slice(&tree(&object));
                    slices[n] = Some(object);
                }
            }
            let said = changed(&mut cluster);
            let mut fresh = self::cluster(
                &services.iter().flatten().cloned().collect::<Vec<_>>(),
                &slices.iter().flatten().cloned().collect::<Vec<_>>(),
            );
            fresh.set_zone(zone);
            fresh.take_changed();
            assert_eq!((cluster.counts(), cluster.bytes()), (fresh.counts(), fresh.bytes()), "seed {seed}");
            for (name, known) in names.iter().zip(&mut known) {
                let now = cluster.ports(&named(name));
                assert_eq!(now, fresh.ports(&named(name)), "seed {seed}, {name}");
                let is_said = said.contains(&format!("default/{name}"));
                assert!(is_said || now == *known, "seed {seed}: {name} has changed, and nobody said it");
                *known = now;
            }
        }
    }
}
