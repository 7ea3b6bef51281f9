//! The credentials of the parts of `k3s agent` that ask the API server for themselves.
//!
//! On real time, as in `k3s`.

use std::os::unix::fs::PermissionsExt as _;

use futures_rustls::pki_types::CertificateDer;
use futures_rustls::pki_types::pem::PemObject as _;

use crate::k3s::{is_ready, joining};
use crate::supervisor::{K3s, SECRET};
use crate::world::World;

/// File of the certificate, kubeconfig, path, user.
const COMPONENTS: [(&str, &str, &str, &str); 2] = [
    (
        "client-kube-proxy.pem",
        "kubeproxy.kubeconfig",
        "POST /v1-k3s/client-kube-proxy.crt",
        "system:kube-proxy",
    ),
    (
        "client-k3s-controller.pem",
        "k3scontroller.kubeconfig",
        "POST /v1-k3s/client-k3s-controller.crt",
        "system:k3s-controller",
    ),
];

fn are_there(world: &World) -> bool {
    COMPONENTS.iter().all(|(_, kubeconfig, ..)| world.path("root/k3s").join(kubeconfig).exists())
}

/// How often they were asked for.
fn asked(k3s: &K3s) -> [usize; 2] {
    let paths = k3s.paths();
    COMPONENTS.map(|(_, _, wanted, _)| paths.iter().filter(|path| *path == wanted).count())
}

#[test]
fn each_component_has_a_certificate_of_its_own_with_a_key_that_was_made_here() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    let config = joining(&world, &k3s, &k3s.token());
    world.start_with(config.clone());
    world.until("their kubeconfigs", are_there);
    let mut keys = Vec::new();
    for (file, kubeconfig, _, user) in COMPONENTS {
        let folder = world.path("root/k3s");
        for name in [file, kubeconfig] {
            let mode = std::fs::metadata(folder.join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
            assert!(!std::fs::read_to_string(folder.join(name)).unwrap().contains(SECRET), "{name}");
        }
        let pem = std::fs::read_to_string(folder.join(file)).unwrap();
        let chain: Vec<_> =
            CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().expect("certificates");
        assert_eq!(world.api.signer().user(&chain).unwrap().name, user);
        keys.push(pem.split("-----BEGIN PRIVATE KEY").nth(1).expect("a key").to_owned());
        // Whoever has the kubeconfig finds everything: the API's address, the authority, the certificate.
        let text = std::fs::read_to_string(folder.join(kubeconfig)).unwrap();
        let port = world.api.address().port();
        for part in [format!(":{port}"), "server-ca.crt".to_owned(), file.to_owned()] {
            assert!(text.contains(&part), "{part}: {text}");
        }
    }
    assert_ne!(keys[0], keys[1]);

    // They are kept.
    world.kill();
    k3s.forget();
    world.start_with(config.clone());
    world.until("it was greeted", |_| k3s.paths().contains(&"GET /v1-k3s/server-ca.crt".to_owned()));
    world.run("web");
    assert_eq!(asked(&k3s), [0, 0]);

    // Damaged, or of another cluster: both are fetched, so that they end together.
    world.kill();
    std::fs::write(world.path("root/k3s/client-kube-proxy.pem"), "damaged").unwrap();
    world.start_with(config);
    world.until("both", |_| asked(&k3s) == [1, 1]);
    world.until("they are whole", |world| {
        let pem = std::fs::read_to_string(world.path("root/k3s/client-kube-proxy.pem")).unwrap();
        pem.contains("PRIVATE KEY")
    });
}

#[test]
fn a_node_joins_also_without_them_and_says_so_once() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    k3s.state().refuses_components = true;
    let config = joining(&world, &k3s, &k3s.token());
    world.start_with(config.clone());
    world.until("the node is ready", is_ready);
    world.run("web");
    world.until("it is said", |world| world.log().iter().any(|line| line.contains("no credentials for")));
    let lines: Vec<String> =
        world.log().into_iter().filter(|line| line.contains("no credentials for")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("kube-proxy: k3s server 127.0.0.1 answers 403: Forbidden"), "{lines:?}");
    assert!(!are_there(&world));

    // The server is another one after an upgrade.
    world.kill();
    k3s.state().refuses_components = false;
    world.start_with(config);
    world.until("their kubeconfigs", are_there);
}
