//! `smolet k3s takeover` on a board that runs `k3s agent`, and back: k3s' unit as its installer writes it, a containerd as its child.
//! k3s itself is not there: a script starts that containerd, and a kubelet's part is played by another smolet.

use super::package::{self, Root, lay_over, target_stubs, tested_program, version};
use super::*;

const DATA_DIR: &str = "/var/lib/rancher/k3s";
const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\nspec:\n  hostNetwork: true\n  terminationGracePeriodSeconds: 1\n  \
                   containers:\n  - {name: c, image: 'smolet.test/busybox:1', command: [sh, -c, 'exec sleep 100000']}\n";

/// Starts what `k3s agent` starts, and ends it when it ends.
const K3S: &str = r#"#!/bin/sh
[ "$1" = agent ] || exit 1
dir=/var/lib/rancher/k3s
$dir/data/current/bin/containerd -c $dir/agent/etc/containerd/config.toml -a /run/k3s/containerd/containerd.sock \
    --state /run/k3s/containerd --root $dir/agent/containerd -l warn &
containerd=$!
/usr/bin/smolet run --config /etc/smolet/config.yaml --root-dir /var/lib/kubelet --manifests $dir/agent/pod-manifests \
    --node-name gw --runtime-endpoint unix:///run/k3s/containerd/containerd.sock --cgroup-driver systemd --socket /run/kubelet.sock &
kubelet=$!
trap 'kill $containerd $kubelet; wait $containerd $kubelet; exit 0' TERM
wait $containerd $kubelet
"#;

/// As k3s' installer writes it for an agent.
const UNIT: &str = r"[Unit]
Description=Lightweight Kubernetes
Documentation=https://k3s.io
Wants=network-online.target
After=network-online.target

[Install]
WantedBy=multi-user.target

[Service]
Type=exec
EnvironmentFile=-/etc/default/%N
EnvironmentFile=-/etc/sysconfig/%N
EnvironmentFile=-/etc/systemd/system/k3s-agent.service.env
KillMode=process
Delegate=yes
LimitNOFILE=1048576
TasksMax=infinity
# Having non-zero Limit*s causes performance problems due to accounting overhead
# in the kernel. We recommend using cgroups to do container-local accounting.
LimitNPROC=infinity
LimitCORE=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s
ExecStartPre=/bin/sh -xc '! /usr/bin/systemctl is-enabled --quiet nm-cloud-setup.service 2>/dev/null'
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/k3s \
    agent \
	'--node-name' \
	'gw' \
	'--node-label' \
	'example.com/site=the-greenhouse-behind-the-house' \
	'--node-label' \
	'example.com/owner=somebody-with-many-boards' \
	'--node-external-ip' \
	'192.0.2.1' \
	'--kubelet-arg=eviction-hard=memory.available<0%%' \
	'--kubelet-arg=image-gc-high-threshold=100' \
	'-t' \
	'b1ade0fc1107' \
";

struct Board<'w>(&'w World);

impl Board<'_> {
    fn run(&self, program: &str, words: &[&str]) -> String {
        text(&self.0.program(program).args(words).output().unwrap())
    }

    fn takeover(&self, words: &[&str]) -> (bool, String) {
        let mut command = self.0.program("/usr/bin/smolet");
        let output = command.args(["k3s", "takeover"]).args(words).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    /// The container of the pod, by the agent behind that socket.
    fn container(&self, socket: &str, pod: &str) -> String {
        wait_for(&format!("{pod} runs"), || {
            let asked =
                self.0.program("/usr/bin/smolet").args(["pods", "-o", "json", "--socket", socket]).output();
            let list: Value = serde_json::from_slice(&asked.unwrap().stdout).ok()?;
            let of =
                list["items"].as_array()?.iter().find(|of| of["metadata"]["name"] == format!("{pod}-gw"))?;
            let status = &of["status"]["containerStatuses"][0];
            status["state"]["running"].is_object().then(|| status["containerID"].as_str().unwrap().to_owned())
        })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.dir.join("service.log")).unwrap_or_default()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What a unit's first process runs.
    fn program_of(&self, unit: &str) -> String {
        let pid = self.0.show(unit, &["MainPID"]).remove(0);
        let command = fs::read_to_string(self.0.path(&format!("/proc/{pid}/cmdline"))).unwrap_or_default();
        command.replace('\0', " ")
    }

    /// The variables of a unit's first process.
    fn environment_of(&self, unit: &str) -> Vec<String> {
        let pid = self.0.show(unit, &["MainPID"]).remove(0);
        let environment =
            fs::read_to_string(self.0.path(&format!("/proc/{pid}/environ"))).unwrap_or_default();
        environment.split('\0').map(str::to_owned).collect()
    }

    /// Besides those that smolet has, too.
    fn chains(&self) -> Vec<String> {
        let saved = self.run("iptables-save", &[]);
        let names = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        let shared = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-FIREWALL", "FLANNEL-FWD"];
        names.filter(|name| name.contains('-') && !shared.contains(name)).map(str::to_owned).collect()
    }
}

impl Drop for Board<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("---- the units' words\n{}----", self.log());
        }
    }
}

/// A certificate that holds until that year, and its key.
fn certificate(year: i32) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let certificate = smolet::x509::pem("CERTIFICATE", params.self_signed(&key).unwrap().der());
    (certificate, smolet::x509::pem("PRIVATE KEY", key.serialized_der()))
}

#[test]
fn a_board_of_k3s_agent_is_taken_over_and_given_back() {
    let root = Root::new("takeover");
    for directory in ["/usr/local/bin", "/usr/bin", "/etc/smolet"] {
        fs::create_dir_all(root.path(directory)).unwrap();
    }
    fs::copy(tested_program(), root.path("/usr/bin/smolet")).unwrap();
    package::program_file(&root.path("/usr/local/bin/k3s"), K3S);
    let calm = include_str!("../env/calm.yaml");
    fs::write(root.path("/etc/smolet/config.yaml"), calm).unwrap();
    let world = World::up("systemd-takeover", version());
    let board = Board(&world);
    // Its images come from a containerd that has ended by then.
    world.start_runtime();
    board.run(RUNTIME, &["kill", world.dir.join("rt").to_str().unwrap()]);
    lay_over(&world, &[&root.0]);
    let units = world.dir.join("units");
    board.run("mount", &["--bind", units.to_str().unwrap(), "/etc/systemd/system"]);
    target_stubs(&units);
    fs::write(units.join("k3s-agent.service"), UNIT).unwrap();
    fs::write(
        units.join("k3s-agent.service.env"),
        "K3S_TOKEN='0ffe7a8d3c21'\nK3S_URL='https://127.0.0.1:6443'\nCONTAINERD_LOG_LEVEL=warn\n\
         CONTAINERD_HTTPS_PROXY='http://barn:5ec re7@127.0.0.1:3128'\n",
    )
    .unwrap();
    let log = format!("append:{}", world.dir.join("service.log").display());
    let mut own = format!("[Service]\nStandardOutput={log}\nStandardError={log}\n");
    let lowers = package::lowers_oom_scores(&world);
    if !lowers {
        own.push_str("OOMScoreAdjust=0\n");
    }
    for unit in ["k3s-agent", "k3s-containerd"] {
        fs::create_dir_all(units.join(format!("{unit}.service.d"))).unwrap();
        fs::write(units.join(format!("{unit}.service.d/test.conf")), &own).unwrap();
    }
    fs::write(
        units.join("k3s-agent.service.d/site.conf"),
        "[Service]\nEnvironment=\"SITE=the barn\" HTTPS_PROXY=http://127.0.0.1:1 CONTAINERD_NO_PROXY=%n\n",
    )
    .unwrap();

    // A machine without k3s agent.
    let mut other = world.program("sh");
    let absent =
        other.args(["-c", "SYSTEMD_UNIT_PATH=/nowhere smolet k3s takeover --back"]).output().unwrap();
    let said = String::from_utf8(absent.stderr).unwrap();
    assert!(!absent.status.success() && said.contains("smolet has not taken this board over"), "{said}");

    let toml = fs::read_to_string(world.dir.join("rt/smolet-test.toml")).unwrap();
    board.write(&format!("{DATA_DIR}/agent/etc/containerd/config.toml"), &toml);
    let root_of_images = world.dir.join("rt/root");
    board.run("ln", &["-s", root_of_images.to_str().unwrap(), &format!("{DATA_DIR}/agent/containerd")]);
    board.write(&format!("{DATA_DIR}/agent/pod-manifests/first.yaml"), &POD.replace("NAME", "first"));
    for name in ["client-ca.crt", "server-ca.crt"] {
        board.write(&format!("{DATA_DIR}/agent/{name}"), &format!("{name}\n"));
    }
    let (first_certificate, first_key) = certificate(2040);
    board.write(&format!("{DATA_DIR}/agent/client-kubelet.crt"), &first_certificate);
    board.write(&format!("{DATA_DIR}/agent/client-kubelet.key"), &first_key);
    board.run("systemctl", &["daemon-reload"]);

    // Before k3s agent has run there, nothing is touched.
    let (done, said) = board.takeover(&[]);
    assert!(!done && said.contains("data/current/bin/containerd: No such file"), "{said}");
    let containerd = board.run("sh", &["-c", "command -v containerd"]);
    let programs = format!("{DATA_DIR}/data/current/bin");
    board.run("mkdir", &["-p", &programs]);
    board.run("ln", &["-s", containerd.trim(), &format!("{programs}/containerd")]);

    board.run("systemctl", &["start", "k3s-agent"]);
    let first = board.container("/run/kubelet.sock", "first");
    for rule in [
        "-N FLANNEL-FWD",
        "-A FORWARD -j FLANNEL-FWD",
        "-t nat -N FLANNEL-POSTRTG",
        "-t nat -A POSTROUTING -j FLANNEL-POSTRTG",
        "-t nat -N KUBE-POD-FW-X",
        "-t nat -N CNI-HOSTPORT-DNAT",
        "-t nat -A PREROUTING -j CNI-HOSTPORT-DNAT",
    ] {
        board.run("iptables", &rule.split(' ').collect::<Vec<_>>());
    }

    // The package's own service would be a second agent.
    fs::write(units.join("smolet.service"), "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=true\n")
        .unwrap();
    board.run("systemctl", &["start", "smolet"]);
    let (done, said) = board.takeover(&[]);
    assert!(!done && said.contains("systemctl disable --now smolet.service"), "{said}");
    board.run("systemctl", &["stop", "smolet"]);
    fs::remove_file(units.join("smolet.service")).unwrap();
    board.run("systemctl", &["daemon-reload"]);

    let (done, said) = board.takeover(&["--dry-run"]);
    assert!(done && said.contains("ExecStart=/usr/bin/smolet agent '--node-name'"), "{said}");
    let secrets = ["0ffe7a8d3c21", "b1ade0fc1107", "5ec re7", "the barn"];
    let has_secret = secrets.iter().any(|secret| said.contains(secret));
    assert!(!has_secret && said.contains("cgroup-driver=systemd"), "{said}");
    assert!(
        said.contains("/k3s-containerd.service.env\n(SITE, NO_PROXY, HTTPS_PROXY; root's alone)\n"),
        "{said}"
    );
    assert!(
        !units.join("k3s-containerd.service").exists()
            && !units.join("k3s-agent.service.d/smolet.conf").exists()
    );

    // A containerd that does not come up by itself: k3s agent has its board again.
    let program = world.path(&format!("{programs}/containerd"));
    fs::rename(&program, program.with_extension("good")).unwrap();
    board.write(&format!("{programs}/containerd"), "#!/bin/sh\nexit 1\n");
    board.run("chmod", &["755", &format!("{programs}/containerd")]);
    let (done, said) = board.takeover(&[]);
    assert!(!done && said.contains("k3s-containerd.service does not come up"), "{said}");
    assert!(said.contains("k3s agent runs again"), "{said}");
    fs::rename(program.with_extension("good"), &program).unwrap();
    board.run("systemctl", &["restart", "k3s-agent"]);
    assert_eq!(board.container("/run/kubelet.sock", "first"), first);

    // What smolet makes once the server has told it of flannel.
    board.run("nft", &["add", "table", "ip", "flannel-ipv4"]);
    let (done, said) = board.takeover(&[]);
    assert!(done && said.contains("its pods run on"), "{said}\n{}", board.log());
    assert!(
        board.program_of("k3s-agent.service").starts_with("/usr/bin/smolet agent --node-name gw"),
        "{said}"
    );
    assert!(!board.program_of("k3s-agent.service").contains("b1ade0fc1107"), "all processes see it");
    let token =
        "cd /etc/systemd/system/k3s-agent.service.d && cat smolet.token && stat -c ' %a' smolet.token";
    assert_eq!(board.run("sh", &["-c", token]), "b1ade0fc1107 600\n");
    let containerd = board.program_of("k3s-containerd.service");
    assert!(containerd.contains(" -a /run/k3s/containerd/containerd.sock --state "), "{containerd}");
    // As k3s gives them to it.
    assert!(containerd.contains(" --log-level warn"), "{containerd}");
    let environment = board.environment_of("k3s-containerd.service");
    for variable in
        ["HTTPS_PROXY=http://barn:5ec re7@127.0.0.1:3128", "NO_PROXY=k3s-agent.service", "SITE=the barn"]
    {
        assert!(environment.iter().any(|found| found == variable), "{variable}: {environment:?}");
    }
    let mode = board.run("stat", &["-c", "%a", "/etc/systemd/system/k3s-containerd.service.env"]);
    assert_eq!(mode, "600\n");
    let socket = "/run/smolet/smolet.sock";
    assert_eq!(board.container(socket, "first"), first, "it runs on");
    assert_eq!(board.chains(), ["CNI-HOSTPORT-DNAT"], "rules of pods stay");
    let key =
        "cat /var/lib/kubelet/k3s/client-kubelet.pem && stat -c %a /var/lib/kubelet/k3s/client-kubelet.pem";
    assert_eq!(board.run("sh", &["-c", key]), format!("{first_certificate}\n{first_key}600\n"));
    board.write(&format!("{DATA_DIR}/agent/pod-manifests/second.yaml"), &POD.replace("NAME", "second"));
    let second = board.container(socket, "second");
    // Both at a restart, as at the next boot.
    board.run("systemctl", &["restart", "k3s-containerd", "k3s-agent"]);
    assert_eq!(board.container(socket, "second"), second);

    // A call that was interrupted goes on: behind the stop, and before it, when systemd does not know the drop-in yet.
    let behind = "systemctl stop k3s-agent";
    let before = "systemctl stop k3s-agent k3s-containerd && cd /etc/systemd/system/k3s-agent.service.d && mv smolet.conf kept && \
                  systemctl daemon-reload && systemctl start k3s-agent && mv kept smolet.conf";
    for (interrupted, state) in [(behind, "inactive"), (before, "active")] {
        board.run("sh", &["-c", interrupted]);
        if interrupted == before {
            assert_eq!(board.container("/run/kubelet.sock", "second"), second);
        }
        let (done, said) = board.takeover(&["--dry-run"]);
        assert!(done && said.contains("was interrupted here"), "{said}");
        assert_eq!(world.show("k3s-agent.service", &["ActiveState"]), [state], "nothing is changed");
        let (done, said) = board.takeover(&[]);
        assert!(done && said.contains("its pods run on"), "{said}\n{}", board.log());
        assert!(board.program_of("k3s-agent.service").starts_with("/usr/bin/smolet agent "), "{said}");
        assert_eq!(board.container(socket, "first"), first, "it runs on");
        assert_eq!(board.container(socket, "second"), second);
    }

    // Those of kube-proxy go once there are others, also later.
    board.run("iptables", &["-t", "nat", "-N", "KUBE-SERVICES"]);
    for table in ["smolet-services", "kube-proxy"] {
        board.run("nft", &["add", "table", "ip", table]);
    }
    let (done, said) = board.takeover(&["--dry-run"]);
    assert!(done && said.contains("smolet has this board already"), "{said}");
    assert!(board.chains().contains(&"KUBE-SERVICES".to_owned()), "nothing is changed");
    let (done, said) = board.takeover(&[]);
    assert!(done && said.contains("smolet has this board already"), "{said}");
    assert_eq!(board.chains(), ["CNI-HOSTPORT-DNAT"]);
    assert!(!board.run("nft", &["list", "tables"]).contains("kube-proxy"));

    // As libcni keeps what a pod was added to its network by.
    let cached = "mkdir -p /var/lib/cni/results && config=$(printf '{\"cniVersion\": \"0.4.0\", \"name\": \"cbr0\", \"plugins\": \
                  [{\"type\": \"bridge\", \"ipam\": {\"type\": \"host-local\"}}]}' | base64 -w0) && \
                  printf '{\"containerId\": \"abc1\", \"config\": \"%s\"}' \"$config\" > /var/lib/cni/results/cbr0-abc1-eth0";
    board.run("sh", &["-c", cached]);
    // As smolet keeps what it has renewed.
    let ((certificate, key), authority) = (certificate(2041), certificate(2050).0);
    board.write("/var/lib/kubelet/k3s/client-kubelet.pem", &format!("# system:node:gw\n{certificate}{key}"));
    board.write("/var/lib/kubelet/k3s/server-ca.crt", &authority);

    // k3s agent has not written all of its rules yet: what it has none for stays. FLANNEL-FWD is smolet's, too. Then the call is
    // interrupted.
    board.run("ip6tables", &["-t", "nat", "-N", "KUBE-SERVICES"]);
    board.run("iptables", &["-n", "-L", "FLANNEL-FWD"]);
    board.run("nft", &["add", "table", "inet", "smolet-policy"]);
    let back = "smolet k3s takeover --back >/run/back.log 2>&1 & back=$!; tries=600; \
                while nft list tables | grep -q smolet-services && [ $((tries -= 1)) -gt 0 ]; do sleep 0.1; done; \
                sleep 2; kill $back; wait $back; cat /run/back.log; nft list tables";
    let said = board.run("sh", &["-c", back]);
    assert!(said.contains("k3s agent runs again") && !said.contains("smolet-services"), "{said}");
    assert!(said.contains("table inet smolet-policy") && said.contains("table ip flannel-ipv4"), "{said}");
    // Certificates that hold longer, and those of the cluster.
    let agent = format!("cd {DATA_DIR}/agent && ");
    let shown =
        board.run("sh", &["-c", &format!("{agent}cat client-kubelet.crt client-kubelet.key server-ca.crt")]);
    assert_eq!(shown, format!("{certificate}{key}{authority}"));
    assert_eq!(board.run("sh", &["-c", &format!("{agent}stat -c %a client-kubelet.key")]), "600\n");
    // By it flannel's plugin releases the pod's address.
    let told: Value = serde_json::from_str(&board.run("cat", &["/var/lib/cni/flannel/abc1"])).unwrap();
    let bridge = serde_json::json!({"type": "bridge", "ipam": {"type": "host-local"}, "cniVersion": "0.4.0", "name": "cbr0"});
    assert_eq!(told, bridge);
    assert_eq!(board.container("/run/kubelet.sock", "first"), first, "it runs on");
    assert_eq!(board.container("/run/kubelet.sock", "second"), second);
    for gone in [
        "k3s-containerd.service",
        "k3s-containerd.service.env",
        "k3s-agent.service.d/smolet.conf",
        "k3s-agent.service.d/smolet.token",
    ] {
        assert!(!units.join(gone).exists(), "{gone}");
    }
    assert_eq!(world.show("k3s-containerd.service", &["ActiveState"]), ["inactive"]);

    // Called again it removes the rest, and k3s agent runs on.
    let k3s = world.show("k3s-agent.service", &["MainPID"]);
    board.run("iptables", &["-N", "KUBE-ROUTER-INPUT"]);
    board.run("iptables", &["-t", "nat", "-N", "FLANNEL-POSTRTG"]);
    let (done, said) = board.takeover(&["--back"]);
    assert!(done && said.contains("the rules of smolet are removed"), "{said}");
    let tables = board.run("nft", &["list", "tables"]);
    assert!(!tables.contains("smolet") && !tables.contains("flannel"), "{tables}");
    assert_eq!(world.show("k3s-agent.service", &["MainPID"]), k3s);
    let (done, said) = board.takeover(&["--back"]);
    assert!(!done && said.contains("smolet has not taken this board over"), "{said}");
}
