//! `smolet k3s takeover --back`: k3s agent has its board again, with what has changed meanwhile. Also the way back of a takeover that fails.
//!
//! ```text
//!     smolet ends ─► what k3s needs of it: pods' addresses, certificates ─► smolet's files go, the drop-in last ─► k3s agent
//!     smolet's tables of nftables ─► each goes once k3s has its own rules; without a server they are all that pods have
//! ```

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Instant;

use super::k3s::{
    DROP_IN, RulesOf, TOKEN, Taken, VARIABLES, agent_unit, check_machine, delete_table, exists, is_active,
    put, rules_of_k3s, start, systemctl, tools, units,
};
use super::{client, say};
use crate::filesystem::{read_bounded, read_linked, replace};
use crate::k3s::takeover::{AGENT_UNIT, CONTAINERD_UNIT, of_flannels_plugin, renewed};
use crate::limits::{
    CNI_FILES_MAX, CNI_RESULT_BYTES_MAX, CONFIG_FILE_BYTES_MAX, TAKEOVER_LOOK_PERIOD, TAKEOVER_RULES_TIME,
};
use crate::paths::SOCKET;
use crate::tls::certificates;

/// libcni's cache: a file for each pod, with its network's name at the beginning of its own.
const CNI_CACHE: &str = "/var/lib/cni/results";
/// The network of flannel's plugin, of k3s' and of smolet's configuration, in the names of these files.
const CACHED_NETWORK: &str = "cbr0-";
/// What flannel's plugin keeps (`dataDir`), and k3s leaves where it is.
const FLANNEL_DATA: &str = "/var/lib/cni/flannel";

/// Gives the board back to k3s agent, or goes on with a call that did not come to its end.
///
/// # Errors
/// smolet has not taken it over, or k3s agent does not come up.
pub(super) fn give_back() -> Result<(), String> {
    check_machine()?;
    let drop_in = units(DROP_IN);
    if !drop_in.exists() && !is_unfinished() {
        return Err(format!("smolet has not taken this board over: {} is not there", drop_in.display()));
    }
    if drop_in.exists() || units(CONTAINERD_UNIT).exists() || !is_active(AGENT_UNIT) {
        return_to_k3s()?;
        say("k3s agent runs again; its pods run on");
    }
    end_own_rules()
}

/// The drop-in is removed, and something else of smolet's is not.
fn is_unfinished() -> bool {
    if units(CONTAINERD_UNIT).exists() {
        return true;
    }
    if !RulesOf::ALL.into_iter().any(are_there) {
        return false;
    }
    // A smolet that has not taken a board over has such tables, too.
    agent_unit().is_ok() && client::get(Path::new(SOCKET), "/metrics").is_err()
}

/// Ends smolet, and starts k3s agent whatever goes wrong before: a board without an agent is out of reach.
pub(super) fn return_to_k3s() -> Result<(), String> {
    let stopped = systemctl(&["stop", AGENT_UNIT]).map(drop);
    if let Err(why) = tell_flannels_plugin() {
        say(&format!("addresses of pods that smolet started stay in use when these end: {why}"));
    }
    // Where everything is, the drop-in says.
    if units(DROP_IN).exists()
        && let Err(why) = Taken::find().and_then(|taken| return_identity(&taken))
    {
        say(&format!("k3s agent has the certificates of the time when smolet took the board over: {why}"));
    }
    let removed = remove_files();
    stopped.and(removed).and(start(AGENT_UNIT))
}

/// With k3s' configuration flannel's plugin removes pods from the network, and releases only what it knows.
fn tell_flannels_plugin() -> Result<(), String> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    let data = Path::new(FLANNEL_DATA);
    let Ok(cache) = fs::read_dir(CNI_CACHE) else { return Ok(()) };
    for entry in cache.flatten().take(CNI_FILES_MAX) {
        if !entry.file_name().as_encoded_bytes().starts_with(CACHED_NETWORK.as_bytes()) {
            continue;
        }
        let cached = read_bounded(&entry.path(), CNI_RESULT_BYTES_MAX).map_err(failed(&entry.path()))?;
        let Some((id, bridge)) = of_flannels_plugin(&cached) else { continue };
        let path = data.join(id);
        if !path.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(data).map_err(failed(data))?;
            replace(&path, &path.with_extension("new"), bridge.as_bytes()).map_err(failed(&path))?;
        }
    }
    Ok(())
}

/// Gives k3s agent the certificates that smolet has renewed: by them a node is known whose token has expired.
fn return_identity(taken: &Taken) -> Result<(), String> {
    let (from, to) = (taken.root_dir.join("k3s"), &taken.agent_dir);
    let read = |path: &Path| read_linked(path, CONFIG_FILE_BYTES_MAX).ok();
    for name in ["server-ca.crt", "client-ca.crt"] {
        let own = read(&from.join(name)).filter(|pem| certificates(pem).is_some());
        if let Some(own) = own.filter(|own| read(&to.join(name)).as_ref() != Some(own)) {
            put(&to.join(name), &own, 0o600)?;
        }
    }
    for name in ["serving-kubelet", "client-kubelet"] {
        let Some(own) = read(&from.join(format!("{name}.pem"))) else { continue };
        let certificate = to.join(format!("{name}.crt"));
        if let Some((pem, key)) = renewed(&own, &read(&certificate).unwrap_or_default()) {
            // Before the certificate: a call that is interrupted between them finds the old one, and writes both.
            put(&to.join(format!("{name}.key")), key.as_bytes(), 0o600)?;
            put(&certificate, pem.as_bytes(), 0o600)?;
        }
    }
    Ok(())
}

/// Removes the units' files and k3s' containerd as a unit of its own. What of it fails keeps nothing else.
fn remove_files() -> Result<(), String> {
    let drop_in = units(DROP_IN);
    // Nothing of it may be left; a missing one is.
    let remove = |path: &Path| match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    };
    let mut done = Ok(());
    if units(CONTAINERD_UNIT).exists() {
        done = systemctl(&["stop", CONTAINERD_UNIT]).map(drop);
    }
    for name in [CONTAINERD_UNIT, VARIABLES, TOKEN] {
        done = done.and(remove(&units(name)));
    }
    // Last: by it a call after an interrupted one knows that there is something left to do.
    done = done.and(remove(&drop_in));
    if let Some(directory) = drop_in.parent() {
        // Others of the owner's may be in it.
        let _ = fs::remove_dir(directory);
    }
    done.and(systemctl(&["daemon-reload"]).map(drop))
}

/// Removes smolet's tables, each once k3s has rules in its place. Without a server k3s has none, and those of smolet stay.
pub(super) fn end_own_rules() -> Result<(), String> {
    if !RulesOf::ALL.into_iter().any(are_there) {
        return Ok(());
    }
    let (tools, until) = (tools(), Instant::now() + TAKEOVER_RULES_TIME);
    loop {
        let left = end_replaced(&tools)?;
        if left.is_empty() {
            say("the rules of smolet are removed; those of k3s serve");
            return Ok(());
        }
        if Instant::now() >= until {
            say(&still_there(&left));
            return Ok(());
        }
        std::thread::sleep(TAKEOVER_LOOK_PERIOD);
    }
}

/// smolet has such tables.
fn are_there(rules: RulesOf) -> bool {
    rules.tables().iter().any(|(family, table)| exists(*family, table))
}

/// Removes those tables that k3s has rules for. Returns what the others are for.
fn end_replaced(tools: &str) -> Result<Vec<RulesOf>, String> {
    let found = rules_of_k3s(tools);
    let there = RulesOf::ALL.into_iter().filter(|rules| are_there(*rules));
    let (replaced, left): (Vec<RulesOf>, _) = there.partition(|rules| rules.are_k3s(&found));
    for (family, table) in replaced.into_iter().flat_map(RulesOf::tables) {
        delete_table(*family, table)?;
    }
    Ok(left)
}

/// A sentence for the user. PURE.
fn still_there(left: &[RulesOf]) -> String {
    let names: Vec<&str> = left.iter().map(|rules| rules.name()).collect();
    format!(
        "smolet's rules stay for {}, because k3s agent has none in their place within {} s; smolet k3s takeover --back, called again, \
         removes them when it has",
        names.join(", "),
        TAKEOVER_RULES_TIME.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::self_signed;

    #[test]
    fn it_says_what_stays_and_how_it_goes() {
        let said = still_there(&[RulesOf::Services, RulesOf::Policies]);
        assert!(said.contains("Services, network policies, because"), "{said}");
        assert!(said.contains("takeover --back, called again"), "{said}");
    }

    #[test]
    fn k3s_agent_gets_what_is_newer_for_root_alone() {
        use std::os::unix::fs::PermissionsExt as _;

        let dir = std::env::temp_dir().join(format!("smolet-k3s-back-{}", std::process::id()));
        let taken = Taken::below(&dir);
        let (own, to) = (taken.root_dir.join("k3s"), taken.agent_dir.clone());
        let write = |path: &Path, text: &str| put(path, text.as_bytes(), 0o644).unwrap();
        let ((old, old_key), (new, new_key)) = (self_signed(2040), self_signed(2041));
        write(&own.join("client-kubelet.pem"), &format!("{new}{new_key}"));
        write(&own.join("serving-kubelet.pem"), &format!("# mark\n{old}{old_key}"));
        write(&own.join("server-ca.crt"), &new);
        write(&own.join("client-ca.crt"), "none");
        for (name, text) in [
            ("client-kubelet.crt", &old),
            ("client-kubelet.key", &old_key),
            ("serving-kubelet.crt", &new),
            ("serving-kubelet.key", &new_key),
            ("server-ca.crt", &old),
            ("client-ca.crt", &old),
        ] {
            write(&to.join(name), text);
        }
        return_identity(&taken).unwrap();
        for (name, text, mode) in [
            ("client-kubelet.crt", &new, 0o600),
            ("client-kubelet.key", &new_key, 0o600),
            ("serving-kubelet.crt", &new, 0o644),
            ("serving-kubelet.key", &new_key, 0o644),
            ("server-ca.crt", &new, 0o600),
            ("client-ca.crt", &old, 0o644),
        ] {
            let path = to.join(name);
            assert_eq!(&fs::read_to_string(&path).unwrap(), text, "{name}");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{name}");
        }
        // Interrupted behind the key.
        write(&to.join("client-kubelet.crt"), &old);
        return_identity(&taken).unwrap();
        assert_eq!(fs::read_to_string(to.join("client-kubelet.crt")).unwrap(), new);
        fs::remove_dir_all(&dir).unwrap();
    }
}
