use sha2::{Digest as _, Sha256};

use super::*;
use crate::limits::KUBE_RETRY_MAX;
use crate::model::Wall;
use crate::x509;

const SECOND: i64 = 1_000_000_000;
/// The path of a node that has nothing and is given everything: each state, and the outcome that leads to the next.
const PATH: [(&str, &str); 12] = [
    ("Inspecting", "nothing found"),
    ("ReadingToken", "token with hash"),
    ("FetchingAuthority", "authority"),
    ("FetchingCluster", "cluster"),
    ("ReadingPassword", "password"),
    ("RequestingCertificates", "certificates"),
    ("Storing", "stored"),
    ("Publishing", "published"),
    ("RequestingComponents", "components stored"),
    ("FetchingServers", "servers"),
    ("StoringServers", "servers stored"),
    ("Waiting", "waited"),
];

fn pem(of: &str) -> Vec<u8> {
    x509::pem("CERTIFICATE", of.as_bytes()).into_bytes()
}

/// Of the cluster that is joined.
fn cluster(of: &str) -> Outcome {
    Outcome::Described(Box::new(Cluster::new(Settings::default(), pem(of), pem(of)).unwrap()))
}

fn validity() -> Validity {
    Validity { from: Wall(0), until: Wall(100_000 * SECOND) }
}

fn inspected(certificate: Option<Validity>, authority: Option<&str>) -> Outcome {
    let authorities = authority.map(|of| Authorities { client: pem(of), server: pem(of) });
    let components = [certificate; 2];
    Outcome::Inspected(Inspection { certificate, authorities, has_settings: authority.is_some(), components })
}

fn identified(token: Result<Option<&str>, &str>, is_known: bool) -> Outcome {
    let token = token.map_err(str::to_owned).map(|authority| Token {
        authority: authority.map(|of| crate::text::hex(&Sha256::digest(pem(of)))),
        authorization: "Basic secret".to_owned(),
    });
    let known = |name: &str| is_known.then(|| pem(name));
    Outcome::Identified(Identity { token, certificate: known("node"), authority: known("kept") })
}

fn authority(pem: Vec<u8>) -> Outcome {
    Outcome::Authority { host: "s".to_owned(), pem }
}

fn no_servers(refused: Refused) -> Outcome {
    Outcome::NoServers { refused, why: "why".to_owned() }
}

fn outcome(name: &str) -> Outcome {
    match name {
        "failed" => Outcome::Failed("the disk is full".to_owned()),
        "nothing found" => inspected(None, None),
        "valid certificates" => inspected(Some(validity()), Some("ca")),
        "no component's certificate" => {
            let Outcome::Inspected(found) = outcome("valid certificates") else { unreachable!() };
            Outcome::Inspected(Inspection { components: [None, Some(validity())], ..found })
        }
        "token with hash" => identified(Ok(Some("ca")), false),
        "token with hash, known node" => identified(Ok(Some("ca")), true),
        "token without hash" => identified(Ok(None), false),
        "token without hash, known node" => identified(Ok(None), true),
        "no token" => identified(Err("--token-file: gone"), false),
        "no token, known node" => identified(Err("--token-file: gone"), true),
        "authority" => authority(pem("ca")),
        "another authority" => authority(pem("other")),
        "no authority" => authority(b"404 page not found".to_vec()),
        "cluster" => cluster("ca"),
        "another cluster" => cluster("other"),
        "password" => Outcome::Password("secret".to_owned()),
        "certificates" => {
            let (serving, client) = (pem("serving"), pem("client"));
            Outcome::Issued(Certificates { serving, client, validity: validity() })
        }
        "stored" => Outcome::Stored,
        "published" => Outcome::Published,
        "components stored" => Outcome::ComponentsStored(validity()),
        "servers" => Outcome::Servers(br#"["10.0.0.1:6443"]"#.to_vec()),
        "some servers" => Outcome::Servers(br#"["10.0.0.1:6443","x"]"#.to_vec()),
        "no servers yet" => Outcome::Servers(b"[]".to_vec()),
        "hostile servers" => Outcome::Servers(br#"["x"]"#.to_vec()),
        "no list of servers" => Outcome::Servers(b"{}".to_vec()),
        "servers unknown (404)" => no_servers(Refused::Status(404, String::new())),
        "servers refused (403)" => no_servers(Refused::Status(403, String::new())),
        "servers unreachable" => no_servers(Refused::Unreachable(String::new())),
        "servers stored" => Outcome::ServersStored,
        "waited" => Outcome::Waited,
        "tunnel lost" => Outcome::TunnelLost,
        _ => panic!("{name}"),
    }
}

fn name(state: &State) -> &'static str {
    match state {
        State::Inspecting => "Inspecting",
        State::ReadingToken { .. } => "ReadingToken",
        State::FetchingAuthority(_) => "FetchingAuthority",
        State::FetchingCluster { .. } => "FetchingCluster",
        State::ReadingPassword { .. } => "ReadingPassword",
        State::RequestingCertificates { .. } => "RequestingCertificates",
        State::Storing { .. } => "Storing",
        State::Publishing { .. } => "Publishing",
        State::RequestingComponents => "RequestingComponents",
        State::FetchingServers { .. } => "FetchingServers",
        State::StoringServers { .. } => "StoringServers",
        State::Waiting => "Waiting",
    }
}

/// The step of each state, which is the same whatever led to it.
fn state_of(step: &Step) -> &'static str {
    match step {
        Step::Inspect => "Inspecting",
        Step::ReadToken => "ReadingToken",
        Step::FetchAuthority => "FetchingAuthority",
        Step::FetchCluster(_) => "FetchingCluster",
        Step::ReadPassword => "ReadingPassword",
        Step::RequestCertificates { .. } => "RequestingCertificates",
        Step::Store(_) => "Storing",
        Step::Publish { .. } => "Publishing",
        Step::RequestComponents(_) => "RequestingComponents",
        Step::FetchServers => "FetchingServers",
        Step::StoreServers(_) => "StoringServers",
        Step::Wait(_) => "Waiting",
    }
}

/// A node, fed with outcomes.
struct Node {
    joining: Option<Joining>,
    now: Now,
}

impl Node {
    fn new() -> Self {
        let now = Now { mono: Mono(0), wall: Wall(1000 * SECOND) };
        Self { joining: Some(Joining::new("gw", now.mono)), now }
    }

    /// A node of the path above, in that state.
    fn in_state(wanted: &str) -> Self {
        let mut node = Self::new();
        for (state, next) in PATH {
            assert_eq!(node.state(), state);
            if state == wanted {
                return node;
            }
            node.take(outcome(next));
        }
        panic!("no state {wanted}");
    }

    fn state(&self) -> &'static str {
        name(&self.joining.as_ref().unwrap().state)
    }

    fn take(&mut self, outcome: Outcome) -> Next {
        let (joining, next) = self.joining.take().unwrap().next(outcome, self.now);
        assert_eq!(name(&joining.state), state_of(&next.step));
        self.joining = Some(joining);
        next
    }

    /// The last of what follows from these.
    fn take_all(&mut self, names: &[&str]) -> Next {
        names.iter().map(|name| self.take(outcome(name))).last().unwrap()
    }

    /// How long it waits after these.
    fn wait_after(&mut self, names: &[&str]) -> Duration {
        match self.take_all(names).step {
            Step::Wait(pause) => pause,
            step => panic!("{}", state_of(&step)),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now.mono = self.now.mono + time;
        self.now.wall = Wall(self.now.wall.0 + i64::try_from(time.as_nanos()).unwrap());
    }
}

fn said(next: &Next) -> String {
    match &next.line {
        Some(Line::Info(text)) => format!("info: {text}"),
        Some(Line::Warn(text)) => format!("warn: {text}"),
        None => String::new(),
    }
}

#[test]
fn each_state_has_its_outcomes_and_no_others() {
    const FAILED: &str = "warn: joining failed: the disk is full; retrying";
    const COMPONENTS: &str = "warn: joining: no credentials for the disk is full; retrying";
    const SERVERS: &str = "warn: joining: the servers at /v1-k3s/apiservers: ";
    // State | outcome | state that follows | what is logged.
    let rows = [
        ("Inspecting", "nothing found", "ReadingToken", ""),
        ("Inspecting", "valid certificates", "ReadingToken", ""),
        ("Inspecting", "no component's certificate", "ReadingToken", ""),
        ("ReadingToken", "token with hash", "FetchingAuthority", ""),
        ("ReadingToken", "token with hash, known node", "FetchingAuthority", ""),
        ("ReadingToken", "token without hash", "FetchingAuthority", ""),
        ("ReadingToken", "token without hash, known node", "FetchingAuthority", ""),
        ("ReadingToken", "no token, known node", "FetchingAuthority", ""),
        ("ReadingToken", "no token", "Waiting", "warn: joining failed: --token-file: gone; retrying"),
        ("FetchingAuthority", "authority", "FetchingCluster", ""),
        ("FetchingAuthority", "another authority", "Waiting", "its authority is not the one of the token"),
        ("FetchingAuthority", "no authority", "Waiting", "k3s server s: its /cacerts holds no certificate"),
        ("FetchingCluster", "cluster", "ReadingPassword", ""),
        ("ReadingPassword", "password", "RequestingCertificates", ""),
        ("RequestingCertificates", "certificates", "Storing", ""),
        ("Storing", "stored", "Publishing", "info: node gw: client certificate valid until 1970-01-02T"),
        ("Publishing", "published", "RequestingComponents", ""),
        ("RequestingComponents", "components stored", "FetchingServers", ""),
        ("FetchingServers", "servers", "StoringServers", ""),
        ("FetchingServers", "some servers", "StoringServers", ""),
        ("FetchingServers", "no servers yet", "Waiting", ""),
        ("FetchingServers", "hostile servers", "Waiting", "entries skipped that are not HOST:PORT: 1"),
        ("FetchingServers", "no list of servers", "Waiting", "is no list"),
        ("FetchingServers", "servers unknown (404)", "Waiting", ""),
        ("FetchingServers", "servers refused (403)", "Waiting", "why"),
        ("FetchingServers", "servers unreachable", "Waiting", ""),
        ("StoringServers", "servers stored", "Waiting", ""),
        ("Waiting", "waited", "Inspecting", ""),
        ("Waiting", "tunnel lost", "Inspecting", ""),
    ];
    for (state, name, wanted, line) in rows {
        let mut node = Node::in_state(state);
        let next = node.take(outcome(name));
        let line_is_right = if line.is_empty() { said(&next).is_empty() } else { said(&next).contains(line) };
        assert!(
            node.state() == wanted && line_is_right,
            "{state}, {name}: {}, {}",
            node.state(),
            said(&next)
        );
        if state == "FetchingServers" && !line.is_empty() {
            assert!(said(&next).starts_with(SERVERS), "{}", said(&next));
        }
    }
    for (state, _) in PATH {
        let mut node = Node::in_state(state);
        let line = said(&node.take(outcome("failed")));
        let of_list = format!("{SERVERS}the disk is full");
        let wanted = match state {
            "RequestingComponents" => COMPONENTS,
            state if state.ends_with("Servers") => of_list.as_str(),
            _ => FAILED,
        };
        assert_eq!(line, wanted, "{state}");
        // Every other outcome is of another state's step.
        let of_state = |wanted: &str| rows.iter().any(|(of, name, ..)| (*of, *name) == (state, wanted));
        for (_, name, ..) in rows.iter().filter(|(_, name, ..)| !of_state(name)) {
            let mut node = Node::in_state(state);
            let line = said(&node.take(outcome(name)));
            assert!(line.contains("a step has the outcome of another one"), "{state}, {name}: {line}");
            assert!(["Waiting", "FetchingServers"].contains(&node.state()), "{state}, {name}");
        }
    }
}

#[test]
fn an_authority_is_trusted_on_first_use_without_a_hash_and_that_is_logged_once() {
    let mut node = Node::new();
    let next = node.take_all(&["nothing found", "token without hash", "another authority"]);
    assert!(
        said(&next).starts_with("warn: joining: the token has no CA hash; trusting the CA of k3s server s")
    );
    let Step::FetchCluster(credentials) = next.step else { panic!("{}", node.state()) };
    assert_eq!(credentials.authority, pem("other"));
    assert_eq!(credentials.authorization.as_deref(), Some("Basic secret"));
    node.take_all(&["failed", "waited"]);
    assert_eq!(said(&node.take_all(&["nothing found", "token without hash", "authority"])), "");
}

#[test]
fn a_known_node_without_a_token_shows_its_certificate_to_servers_of_the_kept_authority() {
    for authority in ["authority", "another authority", "no authority"] {
        let mut node = Node::in_state("ReadingToken");
        let Step::FetchCluster(credentials) = node.take_all(&["no token, known node", authority]).step else {
            panic!("{}", node.state())
        };
        assert_eq!((&credentials.authority, &credentials.authorization), (&pem("kept"), &None));
        assert_eq!(credentials.certificate, Some(pem("node")));
        // What it lists is no more than a way to that authority.
        let Outcome::Authority { pem, .. } = outcome(authority) else { unreachable!() };
        assert_eq!(credentials.intermediates, pem);
    }
}

#[test]
fn a_node_that_has_nothing_retries_with_back_off_and_logs_each_reason_once() {
    let mut node = Node::new();
    for n in 0..12_u32 {
        let next = node.take(outcome("failed"));
        assert_eq!(said(&next).is_empty(), n > 0, "{n}");
        let Step::Wait(pause) = next.step else { panic!("{}", node.state()) };
        let least = (KUBE_RETRY_MIN * (1 << n)).min(KUBE_RETRY_MAX);
        assert!((least..=2 * least).contains(&pause), "{n}: {pause:?}");
        node.take(outcome("waited"));
    }
    let other = node.take_all(&["nothing found", "no token"]);
    assert_eq!(said(&other), "warn: joining failed: --token-file: gone; retrying");
    node.take(outcome("waited"));
    // A success ends it.
    let all: Vec<&str> = PATH.iter().map(|(_, next)| *next).collect();
    node.take_all(&all);
    let next = node.take(outcome("failed"));
    assert_eq!(said(&next), "warn: joining failed: the disk is full; retrying");
    assert!(matches!(next.step, Step::Wait(pause) if pause <= 2 * KUBE_RETRY_MIN));
}

#[test]
fn a_joined_node_greets_its_server_at_the_start_and_keeps_its_certificates() {
    let greet = ["valid certificates", "token with hash", "authority"];
    let mut node = Node::new();
    node.take_all(&greet);
    let Step::Store(given) = node.take(outcome("cluster")).step else { panic!("{}", node.state()) };
    assert!(given.certificates.is_none());
    let next = node.take(outcome("stored"));
    assert_eq!(said(&next), "");
    assert!(matches!(next.step, Step::Publish { is_renewed: false, .. }));
    assert_eq!(node.wait_after(&["published", "servers", "servers stored"]), CSR_RETRY_MIN);
    // From then on it waits for their renewal, and looks at them every so often.
    node.pass(CSR_RETRY_MIN);
    let pause = node.wait_after(&["waited", "valid certificates"]);
    assert_eq!(pause + CSR_RETRY_MIN, K3S_LIST_PERIOD);

    // Its server is away: it has what it needs, and is in no hurry.
    let mut node = Node::new();
    assert_eq!(
        node.wait_after(&["valid certificates", "token with hash", "failed"]),
        CERTIFICATE_CHECK_PERIOD
    );
    assert_eq!(node.wait_after(&["waited", "failed"]), CERTIFICATE_CHECK_PERIOD);

    // The server has other authorities: the certificates are of another cluster.
    let mut node = Node::new();
    node.take_all(&greet);
    node.take(outcome("another cluster"));
    assert_eq!(node.state(), "ReadingPassword");

    // Without the settings or the authorities it asks again, though its certificates hold.
    let mut node = Node::in_state("Waiting");
    node.take(outcome("waited"));
    node.take(inspected(Some(validity()), None));
    node.take_all(&["token with hash", "authority", "cluster"]);
    assert_eq!(node.state(), "ReadingPassword");
}

#[test]
fn certificates_are_renewed_before_they_end_and_new_ones_not_before_half_of_their_life() {
    let mut node = Node::in_state("Waiting");
    let renew = ["waited", "valid certificates"];
    node.pass(CSR_RETRY_MIN);
    node.wait_after(&renew);
    // The clock is set to behind the end.
    node.now.wall = Wall(validity().until.0 + SECOND);
    let rest = node.joining.as_ref().unwrap().renewed_after.since(node.now.mono);
    assert_eq!(rest + CSR_RETRY_MIN, csr::least_age(validity()));
    assert_eq!(node.wait_after(&renew) + CSR_RETRY_MIN, K3S_LIST_PERIOD, "it is new");
    node.pass(rest);
    node.take_all(&renew);
    assert_eq!(node.state(), "ReadingToken");
    let given = node.take_all(&["token with hash", "authority", "cluster", "password", "certificates"]);
    assert!(matches!(given.step, Step::Store(given) if given.certificates.is_some()));
    assert!(matches!(node.take(outcome("stored")).step, Step::Publish { is_renewed: true, .. }));
    assert!(node.joining.as_ref().unwrap().renewed_after > node.now.mono);

    // Late in their life, by a clock that is right.
    let mut node = Node::in_state("Waiting");
    node.pass(Duration::from_secs(95_000));
    node.take_all(&renew);
    assert_eq!(node.state(), "ReadingToken");
}

#[test]
fn the_list_of_servers_is_fetched_seldom_while_nobody_knows_it_and_soon_after_a_tunnel_was_lost() {
    let mut node = Node::in_state("FetchingServers");
    let mut waits = Vec::new();
    for _ in 0..12 {
        let pause = node.wait_after(&["servers unreachable"]).min(CSR_RETRY_MIN);
        let due = node.joining.as_ref().unwrap().servers.at.since(node.now.mono);
        assert_eq!(pause, due.min(CSR_RETRY_MIN));
        waits.push(due);
        node.pass(due);
        node.take_all(&["waited", "valid certificates"]);
    }
    assert_eq!(waits[..3], [KUBE_RETRY_MIN, 2 * KUBE_RETRY_MIN, 4 * KUBE_RETRY_MIN]);
    assert_eq!(waits.last(), Some(&K3S_LIST_PERIOD));
    // It is known: what is wrong with a part of it is logged once.
    for line in
        ["warn: joining: the servers at /v1-k3s/apiservers: entries skipped that are not HOST:PORT: 1", ""]
    {
        node.pass(KUBE_RETRY_MIN);
        let next = node.take_all(&["some servers", "servers stored"]);
        assert!(said(&next).starts_with(line) && said(&next).is_empty() == line.is_empty());
        let Step::Wait(pause) = next.step else { panic!("{}", node.state()) };
        assert_eq!(pause + KUBE_RETRY_MIN, K3S_LIST_PERIOD, "since it was asked for");
        node.pass(pause);
        node.take_all(&["waited", "valid certificates"]);
        assert_eq!(node.state(), "FetchingServers");
    }
    node.take_all(&["servers", "servers stored", "tunnel lost"]);
    assert_eq!(node.wait_after(&["valid certificates"]), K3S_LOST_WAIT);
}

#[test]
fn a_server_is_greeted_again_after_a_tunnel_was_lost() {
    let mut node = Node::in_state("Waiting");
    node.take_all(&["tunnel lost", "valid certificates"]);
    node.pass(K3S_LOST_WAIT / 2);
    // Another one was lost meanwhile.
    node.take_all(&["tunnel lost", "valid certificates"]);
    assert_eq!(node.state(), "Waiting");
    node.pass(K3S_LOST_WAIT / 2);
    node.take_all(&["waited", "valid certificates"]);
    assert_eq!(node.state(), "ReadingToken");
    // It is not there yet.
    node.take(outcome("failed"));
    assert_eq!(node.wait_after(&["servers unreachable"]), K3S_LOST_WAIT.min(KUBE_RETRY_MIN));
    node.pass(K3S_LOST_WAIT);
    let greet = ["waited", "valid certificates", "token with hash", "authority", "cluster", "stored"];
    let next = node.take_all(&greet);
    assert!(matches!(next.step, Step::Publish { is_renewed: false }));
    // Heard, it is not greeted any more.
    node.take_all(&["published", "servers", "servers stored"]);
    assert_eq!(node.state(), "Waiting");
    node.pass(2 * K3S_LOST_WAIT);
    node.take_all(&["waited", "valid certificates"]);
    assert_eq!(node.state(), "Waiting");

    // It has another authority.
    let mut node = Node::in_state("Waiting");
    node.take_all(&["tunnel lost", "valid certificates"]);
    node.pass(K3S_LOST_WAIT);
    node.take_all(&["waited", "valid certificates", "token without hash, known node", "another authority"]);
    node.take_all(&["another cluster"]);
    assert_eq!(node.state(), "ReadingPassword");
}

#[test]
fn only_what_is_usable_and_for_this_node_counts() {
    let signed_for = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let signed = params.self_signed(&key).unwrap();
        let own = [x509::pem("CERTIFICATE", signed.der()), x509::pem("PRIVATE KEY", key.serialized_der())];
        own.concat().into_bytes()
    };
    let own = signed_for("system:node:gw");
    let marked = |mark: &str| Some([mark.as_bytes(), &own].concat());
    let whole = || Found {
        certificate: Some(validity()),
        client: Some(own.clone()),
        serving: marked("# gw 10.0.0.2\n"),
        client_ca: Some(pem("client")),
        server_ca: Some(pem("server")),
        has_settings: true,
        components: [Some(own.clone()), Some(b"damaged".to_vec())],
    };
    let damaged = || Some(b"damaged".to_vec());
    // What is wrong | the files | certificates hold | authorities are there.
    for (what, found, holds, authorities) in [
        ("nothing", whole(), true, true),
        ("no kubeconfig", Found { certificate: None, ..whole() }, false, true),
        ("no certificate", Found { client: None, ..whole() }, false, true),
        ("damaged certificate", Found { client: damaged(), ..whole() }, false, true),
        (
            "another node's certificate",
            Found { client: Some(signed_for("system:node:old")), ..whole() },
            false,
            true,
        ),
        ("nobody's certificate", Found { client: Some(signed_for("gw")), ..whole() }, false, true),
        ("no serving certificate", Found { serving: None, ..whole() }, false, true),
        ("unmarked", Found { serving: Some(own.clone()), ..whole() }, false, true),
        ("damaged", Found { serving: Some(b"# gw 10.0.0.2\ndamaged".to_vec()), ..whole() }, false, true),
        ("renamed node", Found { serving: marked("# old 10.0.0.2\n"), ..whole() }, false, true),
        ("other address", Found { serving: marked("# gw 10.0.0.3\n"), ..whole() }, false, true),
        ("no client authority", Found { client_ca: None, ..whole() }, true, false),
        ("damaged server authority", Found { server_ca: damaged(), ..whole() }, true, false),
    ] {
        let inspection = Inspection::new(found, "gw", "# gw 10.0.0.2\n", true);
        let shown = (inspection.certificate.is_some(), inspection.authorities.is_some());
        assert_eq!(shown, (holds, authorities), "{what}");
        assert_eq!(inspection.is_complete(), authorities, "{what}");
        assert_eq!(inspection.components.map(|validity| validity.is_some()), [true, false], "{what}");
    }
    assert!(Inspection::new(whole(), "gw", "# gw \n", false).certificate.is_some(), "no address yet");
    assert!(!Inspection::new(Found { has_settings: false, ..whole() }, "gw", "", true).is_complete());
    let wrong = |client: &[u8], server: &[u8]| {
        Cluster::new(Settings::default(), client.to_vec(), server.to_vec()).err().unwrap()
    };
    assert_eq!(wrong(b"", &pem("ca")), "/v1-k3s/client-ca.crt holds no certificate in PEM");
    assert_eq!(wrong(&pem("ca"), b""), "/v1-k3s/server-ca.crt holds no certificate in PEM");
}

#[test]
fn a_node_has_joined_without_its_components_and_asks_for_them_with_back_off() {
    let greet = ["token with hash", "authority", "cluster", "stored", "published"];
    let mut node = Node::in_state("RequestingComponents");
    let mut logged = 1;
    let mut wait = CSR_RETRY_MIN;
    for _ in 0..9 {
        let lines = usize::from(!said(&node.take(outcome("failed"))).is_empty());
        assert_eq!(lines, std::mem::take(&mut logged), "each reason once");
        let second = Duration::from_secs(1);
        for (time, wanted) in [(wait.saturating_sub(second), "Waiting"), (second, "ReadingToken")] {
            if node.state() == "FetchingServers" {
                node.take(outcome("servers unreachable"));
            }
            node.pass(time);
            node.take_all(&["waited", "no component's certificate"]);
            if node.state() == "FetchingServers" {
                node.take(outcome("servers unreachable"));
            }
            assert_eq!(node.state(), wanted, "{wait:?}");
        }
        node.take_all(&greet);
        assert_eq!(node.state(), "RequestingComponents");
        wait = (2 * wait).min(K3S_LIST_PERIOD);
    }
    node.take(outcome("components stored"));
    if node.state() == "FetchingServers" {
        node.take(outcome("servers unreachable"));
    }
    // New ones stay, whatever the clock says.
    node.take_all(&["waited", "no component's certificate"]);
    assert_ne!(node.state(), "ReadingToken");

    // Of a node that has its own certificates already they are fetched alone.
    let mut node = Node::new();
    let found = ["no component's certificate", "token with hash", "authority"];
    node.take_all(&found);
    let Step::Store(given) = node.take(outcome("cluster")).step else { panic!("{}", node.state()) };
    assert!(given.certificates.is_none());
    node.take_all(&["stored", "published"]);
    assert_eq!(node.state(), "RequestingComponents");
}
