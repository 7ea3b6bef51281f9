//! What k3s' own program does besides the agent, when smolet is called by a link of one of its names. PURE.

/// The names of k3s' installer: its program, and links to it.
const NAMES: [&str; 4] = ["k3s", "kubectl", "crictl", "ctr"];

/// Why smolet does not do it: a sentence with the remedy. `called` is the path by which it was started, `command` the first argument.
pub(super) fn refusal(called: &str, command: Option<&str>) -> Option<String> {
    let name = called.rsplit('/').next().unwrap_or_default();
    if !NAMES.contains(&name) {
        return None;
    }
    let (wanted, shown) = if name == "k3s" {
        let command = command?;
        (command, format!("k3s {command}"))
    } else {
        (name, name.to_owned())
    };
    let instead = match wanted {
        "server" => {
            "smolet is a node agent; run servers with k3s' own program, on another machine or under another name"
        }
        "kubectl" => {
            "not included; install kubectl, or see this node's pods with smolet pods, describe, logs and exec"
        }
        "crictl" => "not included; install crictl (cri-tools), or use smolet pods, exec and image",
        "ctr" => "not included; install containerd's ctr, or use smolet image",
        "check-config" => "smolet doctor checks this machine",
        "token" | "etcd-snapshot" | "secrets-encrypt" | "certificate" => {
            "it is a command of servers; run it there with k3s' own program"
        }
        _ => return None,
    };
    Some(format!("{shown}: {instead} ({called} leads to smolet, which takes the place of k3s agent)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_servers_and_tools_are_refused_with_what_to_use_instead() {
        for (called, command, wanted) in [
            (
                "/usr/local/bin/k3s",
                Some("server"),
                "k3s server: smolet is a node agent; run servers with k3s' own",
            ),
            ("k3s", Some("kubectl"), "k3s kubectl: not included; install kubectl"),
            ("/usr/local/bin/kubectl", Some("get"), "kubectl: not included; install kubectl"),
            ("crictl", None, "crictl: not included; install crictl"),
            ("/usr/local/bin/ctr", Some("images"), "ctr: not included"),
            ("k3s", Some("check-config"), "k3s check-config: smolet doctor checks"),
            ("k3s", Some("token"), "k3s token: it is a command of servers"),
        ] {
            let why = refusal(called, command).unwrap_or_default();
            assert!(why.starts_with(wanted) && why.contains(called), "{called} {command:?}: {why}");
        }
        for (called, command) in [
            ("k3s", Some("agent")),
            ("k3s", Some("--version")),
            ("k3s", Some("pods")),
            ("k3s", None),
            ("/usr/bin/smolet", Some("server")),
            ("/srv/k3s/smolet", Some("kubectl")),
        ] {
            assert_eq!(refusal(called, command), None, "{called} {command:?}");
        }
    }
}
