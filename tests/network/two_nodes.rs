//! Two whole nodes of a k3s cluster, as `smolet agent` runs them on the embedded runtime: real pods behind real links, Services and
//! network policies between them. Each test in namespaces of its own, on real time.

use std::cell::RefCell;
use std::net::IpAddr;

use serde_json::{Value, json};
use smolet::limits::{OFFLINE_PERIOD, OFFLINE_SETTLE};

use crate::cluster::{Cluster, OUTSIDE, PORTS, is_ready};
use crate::common::namespace::in_namespaces;
use crate::pod::{self, Pod, at};

/// Namespaces of each test.
const OWN: [&str; 2] = ["--net", "--mount"];
const WEB: &str = "10.43.0.10";
const OTHER: &str = "10.43.0.11";
/// The port of pods that serve datagrams.
const DATAGRAMS: u16 = 5353;
/// Answers of each client that are waited for.
const ANSWERS: usize = 20;

/// Names of those who answer, in order.
fn named(names: &[&str]) -> Result<Vec<String>, std::io::ErrorKind> {
    Ok(names.iter().map(ToString::to_string).collect())
}

/// A Service on that port of the nodes.
fn on_nodes(port: u16) -> Value {
    json!({"type": "NodePort", "ports": [{"port": 80, "targetPort": PORTS[0], "protocol": "TCP", "nodePort": port}]})
}

#[test]
fn pods_and_services_are_reached_from_both_nodes() {
    if !in_namespaces("two_nodes::pods_and_services_are_reached_from_both_nodes", &OWN) {
        return;
    }
    let mut cluster = Cluster::start("vxlan");
    let [client_a, web_a, client_b, web_b, _only] = cluster.run([
        ("a", "client-a", json!({})),
        ("a", "web-a", json!({"app": "web"})),
        ("b", "client-b", json!({})),
        ("b", "web-b", json!({"app": "web"})),
        ("b", "only", json!({"app": "only"})),
    ]);
    for (node, others) in [("a", "10.42.2"), ("b", "10.42.1")] {
        let route = format!("{others}.0/24 via {others}.0 dev flannel.1 onlink");
        cluster.until("flannel's route", |cluster| {
            cluster.node(node).run(&format!("ip route show {others}.0/24")).trim() == route
        });
    }

    // Pods with each other: the server sees the client's own address, and packets of full size arrive.
    for (client, server) in
        [(&client_a, &web_b), (&client_b, &web_a), (&client_a, &web_a), (&client_b, &web_b)]
    {
        assert_eq!(
            client.ask(server.at(PORTS[0])),
            Ok((server.name.to_owned(), client.ip)),
            "{}",
            client.name
        );
        assert!(client.fetch(server.at(PORTS[0]), "/megabyte").is_ok_and(|bytes| bytes > 1_000_000));
    }

    // A Service with an endpoint on each node, from pods of both, as a real program in a container and from the nodes.
    let web = at(WEB, 80);
    cluster.serve("web", WEB, &on_nodes(30080));
    cluster.serve("only", OTHER, &on_nodes(30081));
    for client in [&client_a, &client_b] {
        cluster.until("both endpoints serve", |_| client.servers(web) == named(&["web-a", "web-b"]));
        assert_eq!(client.ask(web).map(|answer| answer.1), Ok(client.ip), "its own address is seen");
        cluster.until("the other Service is there", |_| client.reaches(at(OTHER, 80), "only"));
        assert!(client.connects(at("10.96.0.1", 443)), "the API server, by its Service");
    }
    let page = format!("http://{WEB}/cgi-bin/who");
    for (node, pod) in [("a", "client-a"), ("b", "client-b")] {
        let node = cluster.node(node);
        let wget = ["wget", "-q", "-O", "-", &page];
        let inside = node.smolet(&[&["exec", pod, "--"], &wget[..]].concat());
        assert!(inside.starts_with("web-"), "{inside}");
        let of_node = node.run(&format!("busybox {}", wget.join(" ")));
        assert!(of_node.starts_with("web-"), "{of_node}");
    }

    // A port of the nodes: each of them leads to all endpoints, with its own address where they are on the other one.
    for node in ["192.168.7.1", "192.168.7.2"] {
        assert_eq!(pod::servers(at(node, 30080)), named(&["web-a", "web-b"]), "{node}");
        let (name, client) = pod::ask(at(node, 30081)).unwrap();
        assert!(name == "only" && client != IpAddr::V4(OUTSIDE), "{node}: {name} {client}");
    }
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
    cluster.api.patch("services", "default", "only", &local);
    cluster.until("the client's address is kept", |_| {
        pod::ask(at("192.168.7.2", 30081)) == Ok(("only".to_owned(), IpAddr::V4(OUTSIDE)))
    });
    cluster.until("the other node leads nowhere", |_| pod::ask(at("192.168.7.1", 30081)).is_err());
    assert!(client_a.reaches(at(OTHER, 80), "only"), "the cluster IP is none of that policy's");

    // An endpoint goes, and another one comes.
    cluster.end("web-b");
    cluster.publish("web");
    for client in [&client_a, &client_b] {
        cluster.until("the other endpoint is left", |_| client.servers(web) == named(&["web-a"]));
    }
    cluster.until("the node port follows", |_| pod::servers(at("192.168.7.2", 30080)) == named(&["web-a"]));
    let [_web_c] = cluster.run([("b", "web-c", json!({"app": "web"}))]);
    cluster.publish("web");
    for client in [&client_a, &client_b] {
        cluster.until("the new endpoint serves", |_| client.servers(web) == named(&["web-a", "web-c"]));
    }
    cluster.end("only");
    cluster.publish("only");
    for client in [&client_a, &client_b] {
        cluster.until("nobody is left", |_| client.is_refused(at(OTHER, 80)));
    }
}

#[test]
fn datagrams_and_a_node_with_another_range() {
    if !in_namespaces("two_nodes::datagrams_and_a_node_with_another_range", &OWN) {
        return;
    }
    let mut cluster = Cluster::start("vxlan");
    let [client_a, dns_a, client_b, dns_b] = cluster.run([
        ("a", "client-a", json!({})),
        ("a", "dns-a", json!({"app": "dns"})),
        ("b", "client-b", json!({})),
        ("b", "dns-b", json!({"app": "dns"})),
    ]);
    let _servers = [&dns_a, &dns_b].map(|server| server.serve_datagrams(DATAGRAMS));
    cluster.serve_datagrams("dns", WEB, DATAGRAMS);
    let dns = at(WEB, 53);
    // A client of each node whose datagrams go to the server of the first one, and stay there.
    let flows = [&client_a, &client_b].map(|client| {
        let flow = RefCell::new(client.datagrams(dns));
        cluster.until("both servers answer datagrams", |_| {
            client.datagrams(dns).ask().as_deref() == Some("dns-b")
        });
        cluster.until("one of them answers this client", |_| {
            flow.replace(client.datagrams(dns));
            flow.borrow().ask().as_deref() == Some("dns-a")
        });
        flow.into_inner()
    });
    for _ in 0..ANSWERS {
        assert!(flows.iter().all(|flow| flow.ask().as_deref() == Some("dns-a")));
    }
    // It goes: the same sockets are answered by the other one, for what the kernel kept of them is cleared.
    cluster.end("dns-a");
    cluster.publish("dns");
    for flow in &flows {
        cluster.until("the other server answers", |_| flow.ask().as_deref() == Some("dns-b"));
    }

    // A Node is deleted under its agent, and gets another range of addresses when it comes again.
    cluster.delete_node("b", 3);
    let routes = |cluster: &Cluster| cluster.node("a").run("ip route show root 10.42.0.0/16 dev flannel.1");
    cluster.until("the other node's route follows", |cluster| {
        let routes = routes(cluster);
        routes.contains("10.42.3.0/24 via 10.42.3.0") && !routes.contains("10.42.2.0/24")
    });
    for pod in ["client-b", "dns-b"] {
        cluster.end(pod);
    }
    let [new_b] = cluster.run([("b", "new-b", json!({"app": "web"}))]);
    assert!(new_b.ip.to_string().starts_with("10.42.3."), "{}", new_b.ip);
    cluster.serve("web", OTHER, &json!({}));
    cluster.until("the new pod is reached", |_| client_a.reaches(new_b.at(PORTS[0]), "new-b"));
    cluster.until("also by its Service", |_| client_a.reaches(at(OTHER, 80), "new-b"));
    cluster.until("and reaches the other node", |_| new_b.reaches(client_a.at(PORTS[0]), "client-a"));
}

/// Connections to each server on a port: who is let in, all others are refused.
struct Judge<'a> {
    clients: &'a [&'a Pod],
    servers: &'a [&'a Pod],
}

impl Judge<'_> {
    /// Waits until clients reach servers as `allows` says, by their own addresses.
    fn expect(&self, cluster: &mut Cluster, what: &str, port: u16, allows: impl Fn(&str, &str) -> bool) {
        cluster.until(what, |_| {
            // Side by side: a refusal may take a second.
            std::thread::scope(|scope| {
                let pairs = self
                    .clients
                    .iter()
                    .flat_map(|client| self.servers.iter().map(move |server| (client, server)));
                let asked: Vec<_> = pairs
                    .map(|(client, server)| {
                        let is_allowed = allows(client.name, server.name);
                        scope.spawn(move || {
                            let to = server.at(port);
                            if is_allowed { client.reaches(to, server.name) } else { client.is_refused(to) }
                        })
                    })
                    .collect();
                asked.into_iter().map(|asked| asked.join().unwrap()).fold(true, |all, one| all & one)
            })
        });
    }
}

#[test]
fn policies_hold_between_pods_of_both_nodes() {
    if !in_namespaces("two_nodes::policies_hold_between_pods_of_both_nodes", &OWN) {
        return;
    }
    let mut cluster = Cluster::start("vxlan");
    let [good_a, bad_a, web_a, good_b, bad_b, web_b] = cluster.run([
        ("a", "good-a", json!({"role": "good"})),
        ("a", "bad-a", json!({"role": "bad"})),
        ("a", "web-a", json!({"app": "web"})),
        ("b", "good-b", json!({"role": "good"})),
        ("b", "bad-b", json!({"role": "bad"})),
        ("b", "web-b", json!({"app": "web"})),
    ]);
    let (clients, servers) = ([&good_a, &bad_a, &good_b, &bad_b], [&web_a, &web_b]);
    let judge = Judge { clients: &clients, servers: &servers };
    let [first, second] = PORTS;
    let is_good = |client: &str| client.starts_with("good");
    cluster.serve("web", WEB, &json!({}));
    judge.expect(&mut cluster, "no policy denies anything", first, |_, _| true);

    let select = json!({"matchLabels": {"app": "web"}});
    cluster.policy("web", &json!({"podSelector": select, "policyTypes": ["Ingress"]}));
    judge.expect(&mut cluster, "all are denied", first, |_, _| false);
    // What is allowed is allowed to the pods of both nodes, by the pod's address and by the Service, on that port.
    let from = |role: &str| json!([{"podSelector": {"matchLabels": {"role": role}}}]);
    let allow = |port: &Value| json!([{"from": from("good"), "ports": [{"port": port, "protocol": "TCP"}]}]);
    let ingress =
        |port: Value| json!({"podSelector": select, "policyTypes": ["Ingress"], "ingress": allow(&port)});
    cluster.policy("web", &ingress(json!(first)));
    judge.expect(&mut cluster, "good ones are let in", first, |client, _| is_good(client));
    judge.expect(&mut cluster, "and on that port alone", second, |_, _| false);
    let web = at(WEB, 80);
    cluster.until("the Service is served", |_| good_a.servers(web) == named(&["web-a", "web-b"]));
    cluster.until("on the other node, too", |_| good_b.servers(web) == named(&["web-a", "web-b"]));
    assert!([&bad_a, &bad_b].iter().all(|bad| bad.ask(web).is_err()));
    // Another port, by its name.
    cluster.policy("web", &ingress(json!("other")));
    judge.expect(&mut cluster, "the other port is open", second, |client, _| is_good(client));
    judge.expect(&mut cluster, "the first one is closed", first, |_, _| false);
    cluster.policy("web", &ingress(json!(first)));
    judge.expect(&mut cluster, "as before", first, |client, _| is_good(client));

    // Labels change, and a pod comes.
    cluster.label("bad-b", &json!({"role": "good"}));
    judge.expect(&mut cluster, "it is one of the good ones", first, |client, _| client != "bad-a");
    cluster.label("bad-b", &json!({"role": "bad"}));
    judge.expect(&mut cluster, "it is none any more", first, |client, _| is_good(client));
    let [late] = cluster.run([("b", "late", json!({"role": "good"}))]);
    Judge { clients: &[&late], servers: &servers }.expect(&mut cluster, "it is let in", first, |_, _| true);
    // Node's probes are nobody's business.
    assert!(servers.iter().all(|server| is_ready(&cluster.pod(server.name))));

    // Egress of a pod on one node, to a pod on the other one.
    let egress = |app: &str| {
        let to = json!([{"podSelector": {"matchLabels": {"app": app}}}]);
        json!({"podSelector": {"matchLabels": {"role": "good"}}, "policyTypes": ["Egress"], "egress": [{"to": to}]})
    };
    let [db_a, db_b] =
        cluster.run([("a", "db-a", json!({"app": "db"})), ("b", "db-b", json!({"app": "db"}))]);
    let servers = [&web_a, &web_b, &db_a, &db_b];
    let judge = Judge { clients: &clients, servers: &servers };
    cluster.policy("out", &egress("db"));
    judge.expect(&mut cluster, "good ones reach that alone, others what lets them in", first, |_, server| {
        server.starts_with("db")
    });
    cluster.until("the Service leads to what is denied", |_| {
        [&good_a, &good_b].iter().all(|good| good.ask(web).is_err())
    });
    cluster.policy("out", &egress("web"));
    judge.expect(&mut cluster, "and now to the other", first, |client, server| {
        is_good(client) == server.starts_with("web")
    });
    cluster.api.delete("networkpolicies", "default", "out", None);
    judge.expect(&mut cluster, "ingress is left", first, |client, server| {
        is_good(client) || server.starts_with("db")
    });
    cluster.api.delete("networkpolicies", "default", "web", None);
    judge.expect(&mut cluster, "nothing is left", first, |_, _| true);
    for node in ["a", "b"] {
        cluster.until("nor a table", |cluster| {
            !cluster.node(node).run("nft list tables").contains("smolet-policy")
        });
    }
}

#[test]
fn traffic_goes_on_while_an_agent_is_killed_and_when_a_node_is_lost() {
    if !in_namespaces("two_nodes::traffic_goes_on_while_an_agent_is_killed_and_when_a_node_is_lost", &OWN) {
        return;
    }
    let mut cluster = Cluster::start("host-gw");
    let [good_a, web_a, good_b, bad_b, web_b] = cluster.run([
        ("a", "good-a", json!({"role": "good"})),
        ("a", "web-a", json!({"app": "web"})),
        ("b", "good-b", json!({"role": "good"})),
        ("b", "bad-b", json!({})),
        ("b", "web-b", json!({"app": "web"})),
    ]);
    let route = |cluster: &Cluster| cluster.node("a").run("ip route show 10.42.2.0/24").trim().to_owned();
    cluster.until("flannel's route", |cluster| route(cluster) == "10.42.2.0/24 via 192.168.7.2 dev eth0");
    let from =
        json!([{"podSelector": {"matchLabels": {"role": "good"}}}, {"ipBlock": {"cidr": "192.168.7.0/24"}}]);
    cluster.policy(
        "web",
        &json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": [{"from": from}]}),
    );
    cluster.serve("web", WEB, &on_nodes(30080));
    let (web, both) = (at(WEB, 80), ["web-a", "web-b"]);
    for good in [&good_a, &good_b] {
        cluster.until("both serve", |_| good.servers(web) == named(&both));
    }
    cluster.until("one is denied", |_| [&web_a, &web_b].iter().all(|web| bad_b.is_refused(web.at(PORTS[0]))));
    for node in ["192.168.7.1", "192.168.7.2"] {
        cluster.until("a port of the nodes", |_| pod::servers(at(node, 30080)) == named(&both));
    }

    // The agent of one node is killed. All goes on, and what is denied stays denied, before it starts again and after.
    let containers = |cluster: &Cluster| {
        ["good-a", "web-a"].map(|pod| cluster.pod(pod)["status"]["containerStatuses"].clone())
    };
    let before = containers(&cluster);
    let traffic = [
        good_a.keep_asking(web),
        good_b.keep_asking(web),
        good_a.keep_asking(web_b.at(PORTS[0])),
        good_b.keep_asking(web_a.at(PORTS[0])),
        good_b.keep_asking(at("192.168.7.1", 30080)),
    ];
    let denied = bad_b.keep_asking(web_a.at(PORTS[0]));
    cluster.kill_agent("a");
    let answered = traffic.each_ref().map(pod::Traffic::answered);
    let goes_on = |answered: [usize; 5]| {
        traffic.iter().zip(answered).all(|(traffic, before)| traffic.answered() >= before + ANSWERS)
    };
    let [late] = cluster.run([("b", "late", json!({"app": "late"}))]);
    cluster.serve("late", OTHER, &json!({}));
    cluster.until("the other node serves what is new", |_| good_b.reaches(at(OTHER, 80), late.name));
    cluster.until("traffic goes on without it", |_| goes_on(answered));
    assert!(!good_a.reaches(at(OTHER, 80), late.name), "nobody told this node");
    cluster.start_agent("a");
    cluster.until("it makes up for what happened", |_| good_a.reaches(at(OTHER, 80), late.name));
    let answered = traffic.each_ref().map(pod::Traffic::answered);
    cluster.until("traffic goes on with it", |_| goes_on(answered));
    for tally in traffic.map(pod::Traffic::stop) {
        assert_eq!(tally.failed, [], "{}", tally.what);
    }
    let tally = denied.stop();
    assert!(tally.answered == 0 && !tally.failed.is_empty(), "{tally:?}");
    assert_eq!(containers(&cluster), before, "no container was touched");
    // It does its work.
    cluster.label("bad-b", &json!({"role": "good"}));
    cluster.until("a pod of the other node is let in", |_| bad_b.reaches(web_a.at(PORTS[0]), web_a.name));

    // The other node loses its power.
    let traffic = good_a.keep_asking(web_a.at(PORTS[0]));
    cluster.lose("b");
    cluster.publish("web");
    cluster.publish("late");
    cluster.until("what is left serves", |_| good_a.servers(web) == named(&["web-a"]));
    cluster.until("also from outside", |_| pod::servers(at("192.168.7.1", 30080)) == named(&["web-a"]));
    cluster.until("what was there alone is refused", |_| good_a.is_refused(at(OTHER, 80)));
    cluster.until("the way to it is gone", |cluster| route(cluster).is_empty());
    // Another machine takes its place.
    cluster.join(&["b"]);
    let [good_b, _web_b] =
        cluster.run([("b", "good-b", json!({"role": "good"})), ("b", "web-b", json!({"app": "web"}))]);
    cluster.publish("web");
    for good in [&good_a, &good_b] {
        cluster.until("both nodes serve again", |_| good.servers(web) == named(&both));
    }
    let tally = traffic.stop();
    assert!(tally.failed.is_empty() && tally.answered > 0, "{tally:?}");
}

#[test]
fn a_node_that_boots_without_its_server_runs_its_pods_at_once() {
    if !in_namespaces("two_nodes::a_node_that_boots_without_its_server_runs_its_pods_at_once", &OWN) {
        return;
    }
    let mut cluster = Cluster::start("vxlan");
    let [_, _, _, good_b] = cluster.run([
        ("a", "good-a", json!({"role": "good"})),
        ("a", "bad-a", json!({})),
        ("a", "web-a", json!({"app": "web"})),
        ("b", "good-b", json!({"role": "good"})),
    ]);
    let from = json!([{"podSelector": {"matchLabels": {"role": "good"}}}]);
    cluster.policy(
        "web",
        &json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": [{"from": from}]}),
    );
    cluster.serve("web", WEB, &json!({}));
    let web = at(WEB, 80);
    cluster.until("the Service is served", |_| good_b.reaches(web, "web-a"));

    // What the node keeps of the cluster is on its disk by then.
    std::thread::sleep(OFFLINE_PERIOD + 2 * OFFLINE_SETTLE);
    let before = cluster.node("a").log().len();
    cluster.reboot_alone("a");
    let [good_a, bad_a, web_a] = ["good-a", "bad-a", "web-a"].map(|name| cluster.pod_of_node("a", name));
    assert!(good_a.reaches(web_a.at(PORTS[0]), "web-a"), "the pods' network of the node is there");
    let log = cluster.node("a").log();
    assert!(
        !log[before..].contains("starts before the rules"),
        "nobody waits for rules that cannot come: {log}"
    );

    // The network comes.
    cluster.node("a").plug_in();
    cluster.until("the policy holds", |_| bad_a.is_refused(web_a.at(PORTS[0])));
    cluster.until("the server sees the pods", |cluster| {
        let ips = ["good-a", "web-a"].map(|pod| cluster.pod(pod)["status"]["podIP"].clone());
        ips == [good_a.at(0).ip().to_string(), web_a.at(0).ip().to_string()]
    });
    cluster.publish("web");
    for good in [&good_a, &good_b] {
        cluster.until("the Service is served again", |_| good.reaches(web, "web-a"));
    }
}

#[test]
fn connections_that_are_lost_without_a_word_are_made_anew() {
    if !in_namespaces("two_nodes::connections_that_are_lost_without_a_word_are_made_anew", &OWN) {
        return;
    }
    let mut cluster = Cluster::start("vxlan");
    let [client, first, second] = cluster.run([
        ("a", "client", json!({})),
        ("b", "first", json!({"app": "web"})),
        ("b", "second", json!({"app": "other"})),
    ]);
    cluster.serve("web", WEB, &json!({}));
    let web = at(WEB, 80);
    cluster.until("the Service is served", |_| client.reaches(web, first.name));
    // A router forgets its connections, or a server loses its power: nobody hears of it.
    let port = cluster.api.address().port();
    let open = cluster.node("a").run(&format!("ss -Htn state established dport = :{port}"));
    let ports: Vec<&str> =
        open.lines().filter_map(|line| line.split_whitespace().nth(2)?.rsplit(':').next()).collect();
    assert!(ports.len() >= 3, "the node's, the service proxy's and the controller's: {open}");
    let of_old = |end: &str| format!("tcp {end} {{ {} }} drop", ports.join(", "));
    let table = format!(
        "table inet forgotten {{ chain from {{ type filter hook input priority 0; ip saddr 192.168.7.1 {}; }}; \
         chain to {{ type filter hook output priority 0; ip daddr 192.168.7.1 {}; }}; }}",
        of_old("sport"),
        of_old("dport")
    );
    let made = std::process::Command::new("nft").arg(table).status().expect("nftables is there");
    assert!(made.success());
    cluster.label(first.name, &json!({"app": "none"}));
    cluster.label(second.name, &json!({"app": "web"}));
    cluster.publish("web");
    let begun = std::time::Instant::now();
    cluster.until("what has changed is served", |_| client.reaches(web, second.name));
    println!("served after {} s", begun.elapsed().as_secs());
}
