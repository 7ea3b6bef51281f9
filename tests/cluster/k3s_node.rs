//! What a node of k3s has besides: its sysctls, labels, annotations and addresses; a token, a name and an authority that change.
//!
//! On real time, as in `k3s`.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use smolet::config::{Call, Config, K3s as Joins, Registration, TokenSource};
use smolet::limits::K3S_BALANCER_CONNECTIONS_MAX;

use crate::client::{Client, unused_port};
use crate::common::apiserver::Authority;
use crate::common::namespace::{in_namespace, ip, lease, make_link};
use crate::common::write_program;
use crate::k3s::{is_ready, joining};
use crate::supervisor::{BOOTSTRAP, K3s, SECRET};
use crate::world::{NODE, World, app};

const EGRESS: &str = "egress.k3s.io/cluster";

/// A node that has joined by that token, at a server with these settings.
fn joined_with(settings: Value, token: impl Fn(&K3s) -> String) -> (World, K3s, Config) {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    k3s.state().settings = settings;
    let config = joining(&world, &k3s, &token(&k3s));
    world.start_with(config.clone());
    world.until("the node is ready", is_ready);
    (world, k3s, config)
}

fn labels(world: &World) -> Value {
    world.node().unwrap()["metadata"]["labels"].clone()
}

fn annotations(world: &World) -> Value {
    world.node().unwrap()["metadata"]["annotations"].clone()
}

/// A pod as servicelb makes it.
fn load_balancer() -> Value {
    let mut spec = app();
    spec["securityContext"] = json!({"sysctls": [
        {"name": "net.ipv4.ip_forward", "value": "1"},
        {"name": "net.ipv6.conf.all.forwarding", "value": "1"},
    ]});
    spec
}

#[test]
fn pods_of_the_servers_load_balancer_run() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    let config = joining(&world, &k3s, &k3s.token());
    // It is there before the node: it is judged by the settings of the server, however they come.
    world.bind("early", load_balancer());
    world.start_with(config.clone());
    world.until("the early pod is ready", |world| world.is_ready("early"));
    world.run_as("later", load_balancer());
    world.bind("other", {
        let mut spec = app();
        spec["securityContext"] = json!({"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]});
        spec
    });
    world.until("others are still refused", |world| world.phase("other") == "Failed");
    assert_eq!(world.pod("other").unwrap()["status"]["reason"], "SysctlForbidden");

    // The settings are known without the server.
    world.kill();
    world.start_with(config.clone());
    world.run_as("again", load_balancer());
    world.kill();

    // What the configuration says counts, and says nothing of the server's.
    world.start_with(Config { allowed_unsafe_sysctls: Some(Vec::new()), ..config });
    world.bind("forbidden", load_balancer());
    world.until("it is refused", |world| world.phase("forbidden") == "Failed");
}

#[test]
fn without_a_load_balancer_its_sysctls_are_forbidden() {
    let (world, _k3s, _) = joined_with(json!({"DisableServiceLB": true}), K3s::token);
    world.bind("forbidden", load_balancer());
    world.until("it is refused", |world| world.phase("forbidden") == "Failed");
    assert_eq!(world.pod("forbidden").unwrap()["status"]["reason"], "SysctlForbidden");
}

#[test]
fn the_label_of_the_egress_mode_is_the_servers_and_stays_right() {
    let (world, k3s, config) = joined_with(json!({"EgressSelectorMode": "cluster"}), K3s::token);
    world.until("its label", |world| labels(world)[EGRESS] == "true");
    for value in [json!(null), json!("false")] {
        world.api.patch("nodes", "", NODE, &json!({"metadata": {"labels": {EGRESS: value}}}));
        world.until("its label is right again", |world| labels(world)[EGRESS] == "true");
    }
    // Another mode after a restart of the server, noticed at the next greeting.
    world.kill();
    k3s.state().settings = json!({"EgressSelectorMode": "agent"});
    k3s.forget();
    let registration =
        Registration { labels: [("site".into(), "roof".into())].into(), ..config.registration };
    world.start_with(Config { registration, ..config });
    world.until("the label is gone", |world| labels(world).get(EGRESS).is_none());
    // Labels that are given later are set at a start, as by k3s agent.
    assert_eq!(labels(&world)["site"], "roof");
    world.api.patch("nodes", "", NODE, &json!({"metadata": {"labels": {EGRESS: "true", "site": "shed"}}}));
    world.until("it is gone again", |world| labels(world).get(EGRESS).is_none());
    assert_eq!(labels(&world)["site"], "shed", "what others label stays until the next start");
}

#[test]
fn the_servers_cloud_controller_finds_what_it_needs() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    let config = joining(&world, &k3s, &k3s.token());
    let args = ["run", "--server", "https://h:6443", "--token", SECRET].map(str::to_owned);
    let call = Call::new(&args, &[("K3S_TOKEN".to_owned(), SECRET.to_owned())]);
    let registration = Registration {
        addresses: vec!["127.99.0.1".parse().unwrap()],
        external_addresses: vec!["192.0.2.1".parse().unwrap()],
        ..config.registration.clone()
    };
    let joins = Joins { call, ..config.k3s.clone().unwrap() };
    let config = Config { registration, k3s: Some(joins), ..config };
    world.start_with(config.clone());
    world.until("the node is ready", is_ready);
    let of = |key: &str| annotations(&world)[key].clone();
    assert_eq!(
        (of("k3s.io/internal-ip"), of("k3s.io/external-ip")),
        (json!("127.99.0.1"), json!("192.0.2.1"))
    );
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let host = if host.contains("localhost") { NODE.to_owned() } else { host };
    assert_eq!(of("k3s.io/hostname"), json!(host));
    assert_eq!(of("k3s.io/node-args"), r#"["run","--server","https://h:6443","--token","********"]"#);
    assert_eq!(of("k3s.io/node-env"), r#"{"K3S_TOKEN":"********"}"#);
    assert_eq!(of("k3s.io/node-config-hash").as_str().unwrap().len(), 56);
    assert_eq!(of("alpha.kubernetes.io/provided-node-ip"), "127.99.0.1");
    // The external address is in the certificate of the node's API.
    let ips = |path: &str| {
        let asked = k3s.state().asked.clone();
        asked.into_iter().find(|asked| asked.path == path).unwrap().headers["k3s-node-ip"].clone()
    };
    assert_eq!(ips("/v1-k3s/serving-kubelet.crt"), "127.99.0.1,192.0.2.1");

    // A new Node waits for the controller, which sets its addresses, provider ID and instance type.
    let node = world.node().unwrap();
    assert_eq!(node["spec"]["taints"][0]["key"], "node.cloudprovider.kubernetes.io/uninitialized");
    assert_eq!(
        (&node["spec"]["providerID"], node["status"]["addresses"].as_array().unwrap().len()),
        (&json!(null), 2)
    );
    // An older agent's Node has no such taint: nobody but the node sets them.
    world.api.patch("nodes", "", NODE, &json!({"spec": {"taints": null}}));
    world.until("its provider ID", |world| {
        world.node().unwrap()["spec"]["providerID"] == format!("k3s://{NODE}")
    });
    assert_eq!(labels(&world)["node.kubernetes.io/instance-type"], "k3s");

    // What somebody else changes is right again, and another address is told.
    let wrong = json!({"k3s.io/internal-ip": null, "alpha.kubernetes.io/provided-node-ip": "10.9.9.9"});
    world.api.patch("nodes", "", NODE, &json!({"metadata": {"annotations": wrong}}));
    world.until("it is right again", |_| {
        ["k3s.io/internal-ip", "alpha.kubernetes.io/provided-node-ip"]
            .iter()
            .all(|key| of(key) == "127.99.0.1")
    });
    world.kill();
    let registration = Registration { external_addresses: Vec::new(), ..config.registration.clone() };
    world.start_with(Config { registration, ..config });
    world.until("the address is gone", |_| of("k3s.io/external-ip") == json!(null));
}

#[test]
fn the_first_address_is_of_the_family_of_the_clusters_first_range() {
    if !in_namespace("k3s_node::the_first_address_is_of_the_family_of_the_clusters_first_range") {
        return;
    }
    make_link();
    lease("10.7.0.2", "10.7.0.1");
    ip("-6 address add fd00::2/64 dev up0 nodad");
    ip("-6 route add default via fd00::1 dev up0");
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    let ranges = [("fd42::", "/////////wAAAAAAAAAAAA=="), ("10.42.0.0", "//8AAA==")];
    let ranges = ranges.map(|(ip, mask)| json!({"IP": ip, "Mask": mask}));
    k3s.state().settings =
        json!({"ClusterIPRanges": ranges, "ClusterIPRange": ranges[0], "DisableCCM": true});
    let port = unused_port();
    let config = joining(&world, &k3s, &k3s.token());
    let joins = Joins { load_balancer_port: Some(port), ..config.k3s.clone().unwrap() };
    let config = Config { k3s: Some(joins), ..config };
    world.start_with(config.clone());
    world.until("the node is ready", is_ready);
    let internal = |world: &World| {
        let node = world.node().unwrap_or_default();
        let all = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
        let internal = all.iter().filter(|address| address["type"] == "InternalIP");
        internal.map(|address| address["address"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(",")
    };
    let certified = || {
        let asked = k3s.state().asked.clone();
        let mut of_serving = asked.iter().filter(|asked| asked.path == "/v1-k3s/serving-kubelet.crt");
        of_serving.next_back().map(|asked| asked.headers["k3s-node-ip"].clone())
    };
    world.until("the Node has them in that order", |world| internal(world) == "fd00::2,10.7.0.2");
    assert_eq!(certified().as_deref(), Some("fd00::2,10.7.0.2"));
    let mut spec = app();
    spec["hostNetwork"] = json!(true);
    world.bind("web", spec);
    world.until("the pod is ready", |world| world.is_ready("web"));
    assert_eq!(world.pod("web").unwrap()["status"]["podIP"], "fd00::2");
    // As with k3s the order that was found counts there.
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());

    // It is known without the server; nothing is asked for anew.
    world.kill();
    k3s.forget();
    world.start_with(config.clone());
    world.until("it was greeted", |_| k3s.paths().contains(&"GET /v1-k3s/server-ca.crt".to_owned()));
    world.run("later");
    assert_eq!((internal(&world).as_str(), certified()), ("fd00::2,10.7.0.2", None));
    let changes = |line: &String| line.contains("node addresses: [10.7.0.2 fd00::2]");
    assert!(!world.log().iter().any(changes), "{:#?}", world.log());

    // Given ones too.
    world.kill();
    k3s.state().settings =
        json!({"ClusterIPRanges": ranges, "ClusterIPRange": ranges[1], "DisableCCM": true});
    let addresses = ["fd00::2", "10.7.0.2"].map(|ip| ip.parse().unwrap()).to_vec();
    let registration = Registration { addresses, ..config.registration.clone() };
    world.start_with(Config { registration, ..config });
    world.until("the Node has them in that order", |world| internal(world) == "10.7.0.2,fd00::2");
}

#[test]
fn without_a_token_a_node_is_known_by_the_certificate_of_an_earlier_join() {
    let (world, k3s, config) = joined_with(json!({}), K3s::token);
    world.kill();
    let agent = world.path("rancher/agent");
    let without = |dir: &Path| {
        let token = TokenSource::EarlierJoin(Some(dir.to_owned()));
        Config { k3s: Some(Joins { token, ..config.k3s.clone().unwrap() }), ..config.clone() }
    };
    k3s.state().token_ended = true;
    world.start_with(without(&agent));
    world.run("web");
    world.kill();

    // Of smolet's own nothing is left.
    let own = world.path("root/k3s");
    std::fs::remove_dir_all(&own).unwrap();
    let why = world.refusal(without(&agent));
    assert!(
        why.starts_with("--server: needs --token-file, a copy of the server's /var/lib/rancher"),
        "{why}"
    );
    // As k3s agent has it.
    let put = |node: &str| {
        let pem = k3s_certificate(&world, node);
        let (certificate, key) = pem.split_at(pem.find("-----BEGIN PRIVATE KEY").unwrap());
        std::fs::create_dir_all(&agent).unwrap();
        let ca = world.api.ca_pem();
        for (name, text) in
            [("client-kubelet.crt", certificate), ("client-kubelet.key", key), ("server-ca.crt", &ca)]
        {
            std::fs::write(agent.join(name), text).unwrap();
        }
    };
    put("another");
    world.start_with(without(&agent));
    world.until("it is said that it is another node's", |world| {
        world.log().iter().any(|line| line.contains("no certificate of an earlier join is this node's"))
    });
    world.kill();
    put(NODE);
    k3s.forget();
    world.start_with(without(&agent));
    world.run("other");
    let asked = k3s.state().asked.clone();
    let of_client = asked.iter().find(|asked| asked.path == "/v1-k3s/client-kubelet.crt").unwrap();
    assert!(of_client.user.is_some() && !of_client.headers.contains_key("authorization"), "{of_client:?}");
    assert!(own.join("client-kubelet.pem").exists(), "its own from now on");
}

#[test]
fn the_kernel_is_set_up_for_the_clusters_network() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    let ranges = [("10.42.0.0", "//8AAA=="), ("fd42::", "/////////wAAAAAAAAAAAA==")];
    let ranges = ranges.map(|(ip, mask)| json!({"IP": ip, "Mask": mask}));
    k3s.state().settings = json!({"ClusterIPRanges": ranges});
    let config = joining(&world, &k3s, &k3s.token());
    let net = world.path("sys/net");
    let put = |setting: &str| {
        let path = net.join(setting);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "0\n").unwrap();
        path
    };
    let forwarding = [put("ipv4/conf/all/forwarding"), put("ipv6/conf/all/forwarding")];
    let bridged = net.join("bridge/bridge-nf-call-iptables");
    std::fs::remove_file(&bridged).unwrap();
    // A modprobe that is refused, as by a service without the capability.
    let modprobe = config.k3s.as_ref().unwrap().modprobe.clone();
    let script = |text: &str| write_program(&modprobe, &format!("#!/bin/sh\n{text}\n"));
    script("echo \"no rights for $*\" >&2; exit 1");
    world.start_with(config.clone());
    world.until("it is set", |_| {
        forwarding.iter().all(|path| std::fs::read_to_string(path).unwrap().trim() == "1")
    });
    world.until("it is said", |world| world.log().iter().any(|line| line.contains("br_netfilter")));
    let lines: Vec<String> =
        world.log().into_iter().filter(|line| line.contains("kernel module br_netfilter")).collect();
    assert!(lines.len() == 1 && lines[0].contains("no rights for -- br_netfilter"), "{lines:?}");
    assert!(lines[0].contains("run modprobe -a br_netfilter"), "{lines:?}");
    world.until("the node is ready", is_ready);

    // What the settings of the server's were is known at a start without it.
    world.kill();
    script(&format!("echo 0 > {}", bridged.display()));
    let again = put("ipv6/conf/all/forwarding");
    drop(k3s);
    world.start_with(config);
    world.until("it is set again", |_| {
        [&again, &bridged]
            .iter()
            .all(|path| std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "1"))
    });
}

#[test]
fn without_a_cloud_controller_the_node_has_its_own_addresses() {
    let (world, _k3s, _) = joined_with(json!({"DisableCCM": true}), K3s::token);
    let node = world.node().unwrap();
    assert_eq!((&node["spec"]["taints"], &node["spec"]["providerID"]), (&json!(null), &json!(null)));
    assert_eq!(annotations(&world).get("k3s.io/internal-ip"), None);
    assert!(annotations(&world)["k3s.io/node-args"].is_string());
}

#[test]
fn a_renamed_node_joins_anew_by_its_token() {
    let (world, k3s, config) = joined_with(json!({}), |_| BOOTSTRAP.to_owned());
    world.kill();
    k3s.forget();
    // No pods are there that are named after the former name.
    std::fs::remove_file(world.path("root/identity.cbor")).unwrap();
    let name = "gw-renamed";
    let config = Config { node_name: Some(name.to_owned()), ..config };
    world.start_with(config.clone());
    world.until("the renamed node", |world| world.api.get("nodes", "", name).is_some());
    let by = |of: &str| k3s.state().asked.iter().find(|asked| asked.path.contains(of)).unwrap().user.clone();
    assert_eq!(by("serving-kubelet"), None, "a certificate of another name is not shown");

    // The agent was killed between the two files: the client's certificate is still that of the former name.
    world.kill();
    let client = world.path("root/k3s/client-kubelet.pem");
    let old = k3s_certificate(&world, NODE);
    std::fs::write(&client, old).unwrap();
    world.start_with(config);
    world.until("its own certificate", |_| {
        let paths = k3s.paths();
        paths.iter().filter(|path| path.contains("client-kubelet")).count() == 2
    });
    assert!(!k3s.state().asked.is_empty());
}

/// A node's certificate with its key, in PEM.
fn k3s_certificate(world: &World, node: &str) -> String {
    world.api.signer().node(node, None, None, None)
}

#[test]
fn a_secret_with_colons_is_a_whole_one() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    k3s.state().secret = Some("a:b:c d".to_owned());
    world.start_with(joining(&world, &k3s, "a:b:c d"));
    world.until("the node is ready", is_ready);
}

#[test]
fn a_first_join_logs_what_happens_and_warns_of_what_the_node_leaves_out() {
    let (world, k3s, _) = joined_with(json!({}), K3s::token);
    world.until("the tunnel", |_| k3s.has_tunnel(NODE));
    let wanted = ["client certificate valid until", "node gw: registered", "tunnel: open to k3s server"];
    world.until("all of it", |world| {
        let log = world.log();
        wanted.iter().all(|text| log.iter().any(|line| line.contains(text)))
    });
    let log = world.log();
    // The machine's resolver is none of the node's, nor is its load.
    let of_the_machine = |line: &&String| line.contains("name server") || line.contains("blocked the loop");
    let wrong = |line: &&String| line.starts_with("WARN") && !of_the_machine(line);
    // The server says nothing of flannel.
    let left_out = "WARN: k3s agent does more for the network of this cluster: --service-proxy --network-policy; give these flags, or \
                    start smolet agent";
    assert_eq!(log.iter().filter(wrong).collect::<Vec<_>>(), [left_out], "{log:#?}");
    assert!(!log.iter().any(|line| line.contains("again")), "nothing was lost: {log:#?}");
}

#[test]
fn a_new_authority_is_followed_where_the_known_one_has_signed_it() {
    // By a token without a hash: the authority is kept. With one: it pins the former authority, and names no other.
    for token in [|_: &K3s| SECRET.to_owned(), K3s::token] {
        let (world, k3s, config) = joined_with(json!({}), token);
        world.kill();
        let new = Authority::new("new-ca");
        let listed = [new.pem(), world.api.cross_signed(&new), world.api.ca_pem()];
        k3s.rotate(&world.api, &new, &listed);
        let kept = || std::fs::read_to_string(world.path("root/k3s/server-ca.crt")).unwrap();
        for name in ["web", "other"] {
            k3s.forget();
            world.start_with(config.clone());
            world.until("the new authority is known", |_| {
                kept() == listed.concat() && k3s.paths().contains(&"GET /v1-k3s/server-ca.crt".to_owned())
            });
            world.run(name);
            world.until("the tunnel", |_| k3s.has_tunnel(NODE));
            world.kill();
        }
    }
}

#[test]
fn a_running_node_follows_a_new_authority_and_new_settings_after_its_tunnel_was_lost() {
    let (world, k3s, _) = joined_with(json!({}), K3s::token);
    world.until("the tunnel", |_| k3s.has_tunnel(NODE));
    let new = Authority::new("new-ca");
    let listed = [new.pem(), world.api.cross_signed(&new), world.api.ca_pem()];
    k3s.state().settings = json!({"EgressSelectorMode": "pod"});
    k3s.rotate(&world.api, &new, &listed);
    world.until("the tunnel is open again", |_| k3s.has_tunnel(NODE));
    world.until("the settings", |world| labels(world)[EGRESS] == "true");
    world.run("web");
}

#[test]
fn of_an_authority_that_is_not_known_the_node_says_what_to_do() {
    let (world, k3s, config) = joined_with(json!({}), |_| SECRET.to_owned());
    world.kill();
    let new = Authority::new("new-ca");
    let listed = [new.pem(), world.api.ca_pem()];
    k3s.rotate(&world.api, &new, &listed);
    k3s.forget();
    world.start_with(config.clone());
    world.until("it is said", |world| {
        let is_it = |line: &String| {
            line.contains("joining failed")
                && line.contains("rotate-ca")
                && line.contains("server/agent-token")
        };
        world.log().iter().any(is_it)
    });
    let unasked = |path: &String| !path.contains("/cacerts");
    assert!(!k3s.paths().iter().any(unasked), "it learns nothing: {:?}", k3s.paths());

    // The new token's hash names the new authority.
    let hash = ring::digest::digest(&ring::digest::SHA256, new.certificate());
    let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let path = world.path("token");
    std::fs::write(&path, format!("K10{hash}::node:{SECRET}\n")).unwrap();
    assert_eq!(config.k3s.as_ref().unwrap().token, TokenSource::File(path));
    world.kill();
    world.start_with(config);
    world.until("the new authority is known", |world| {
        std::fs::read_to_string(world.path("root/k3s/server-ca.crt")).unwrap() == listed.concat()
    });
    world.until("the tunnel", |_| k3s.has_tunnel(NODE));
}

#[test]
fn the_load_balancer_leads_to_a_server_that_is_there() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    let port = unused_port();
    let config = joining(&world, &k3s, &k3s.token());
    let joins = Joins { load_balancer_port: Some(port), ..config.k3s.clone().unwrap() };
    // Nobody knows when another process takes a port: the balancer waits for it.
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    world.start_with(Config { k3s: Some(joins.clone()), ..config.clone() });
    world.until("it is said", |world| {
        world.log().iter().any(|line| line.contains("load balancer") && line.contains("--lb-server-port"))
    });
    world.kill();
    drop(taken);
    let listed = || k3s.paths().iter().filter(|path| *path == "GET /v1-k3s/apiservers").count();
    let before = listed();
    world.start_with(Config { k3s: Some(joins), ..config });
    world.until("the node is ready", is_ready);
    // TLS goes through as it is: the server's certificate is the cluster's.
    let version = |port: u16| {
        let ca = world.api.ca_pem();
        let mut client = Client::connect_to("localhost", port, &ca).ok()?;
        client.send(b"GET /cacerts HTTP/1.1\r\nHost: k3s\r\n\r\n");
        Some(client.rest().body)
    };
    world.until("the server answers", |world| version(port) == Some(world.api.ca_pem()));
    assert!(k3s.paths().iter().filter(|path| *path == "GET /cacerts").count() >= 2);

    // The node's own requests are over: what comes now is the test's.
    world.until("the last of them", |_| listed() > before);
    world.until("the tunnel alone", |_| k3s.has_tunnel(NODE) && k3s.state().open == 1);
    // More connections than there are places: the others wait for one. They say nothing, and so their handshakes last.
    let seen = || k3s.state().handshakes;
    let held: Vec<TcpStream> =
        (0..K3S_BALANCER_CONNECTIONS_MAX).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    world.until("they are through", |_| seen() == K3S_BALANCER_CONNECTIONS_MAX);
    let _waits = TcpStream::connect(("127.0.0.1", port)).unwrap();
    world.until("it is said that clients wait", |world| {
        world.log().iter().any(|line| line.starts_with("WARN") && line.contains("connections are in use"))
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(seen(), K3S_BALANCER_CONNECTIONS_MAX);
    drop(held);
    world.until("it is through", |_| seen() == 1);
    world.until("the server answers again", |world| version(port) == Some(world.api.ca_pem()));
}

#[test]
fn the_load_balancer_is_on_the_loopback_address_of_the_nodes_family() {
    if !in_namespace("k3s_node::the_load_balancer_is_on_the_loopback_address_of_the_nodes_family") {
        return;
    }
    make_link();
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    let port = unused_port();
    let config = joining(&world, &k3s, &k3s.token());
    let joins = Joins { load_balancer_port: Some(port), ..config.k3s.clone().unwrap() };
    world.start_with(Config { k3s: Some(joins), ..config });
    let answers = |host: &str| TcpStream::connect((host, port)).is_ok();
    world.until("it listens before the node has an address", |_| answers("127.0.0.1"));
    ip("-6 address add fd00::2/64 dev up0 nodad");
    ip("-6 route add default via fd00::1 dev up0");
    world.until("a node with IPv6 alone has it on ::1", |_| answers("::1"));
    assert!(!answers("127.0.0.1"));
}
