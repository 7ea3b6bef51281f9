//! What `smolet exec`, `attach` and `port-forward` ask the agent: a POST for the URL of the runtime's streaming server.
//!
//! `/exec?pod=NAME` with the command as the body, each word ended by a NUL; `/attach?pod=NAME`; `/portforward?pod=NAME`
//! with a `port=` for each port, a number or a name. The answer is a line for each fact, `url`, `note` and so on.

use crate::limits::FORWARDED_PORTS_MAX;

/// Which pod, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamQuestion {
    /// The pod's name, with or without the node's name behind it.
    pub name: String,
    /// Its namespace; without one, a name that stands in one namespace only is found.
    pub namespace: Option<String>,
    /// What for.
    pub kind: StreamKind,
}

/// What is to be streamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The streams of a command that is run in a container.
    Exec {
        /// Which container; without one, the pod's default.
        container: Option<String>,
        /// The command, at least one word.
        command: Vec<String>,
        /// It gets input.
        stdin: bool,
        /// It gets a terminal.
        tty: bool,
    },
    /// The streams of a container's main process.
    Attach {
        /// Which container; without one, the pod's default.
        container: Option<String>,
        /// It gets input.
        stdin: bool,
    },
    /// Connections to ports of the pod.
    PortForward {
        /// Ports by number or by name.
        ports: Vec<String>,
    },
}

/// True for the paths of this file, which want a POST.
pub(super) fn is_path(path: &str) -> bool {
    matches!(path, "/exec" | "/attach" | "/portforward")
}

/// Path, query and body → question. PURE.
///
/// # Errors
/// A sentence.
pub(super) fn question(path: &str, query: &str, body: &[u8]) -> Result<StreamQuestion, &'static str> {
    let pairs = || query.split('&').filter_map(|pair| pair.split_once('='));
    let values =
        |name: &'static str| pairs().filter(move |(key, _)| *key == name).map(|(_, value)| value.to_owned());
    let value = |name: &'static str| values(name).next().filter(|value| !value.is_empty());
    let is_set = |name: &'static str| value(name).as_deref() == Some("1");
    let (container, stdin) = (value("container"), is_set("stdin"));
    let kind = match path {
        "/exec" => {
            let words = std::str::from_utf8(body).map_err(|_| "the command is not UTF-8\n")?;
            let words = words
                .strip_suffix('\0')
                .ok_or("you must specify at least one command for the container\n")?;
            let command = words.split('\0').map(str::to_owned).collect();
            StreamKind::Exec { container, command, stdin, tty: is_set("tty") }
        }
        "/attach" => StreamKind::Attach { container, stdin },
        _ => StreamKind::PortForward { ports: values("port").collect() },
    };
    if matches!(&kind, StreamKind::PortForward { ports } if ports.len() > FORWARDED_PORTS_MAX) {
        return Err("too many ports\n");
    }
    let name = value("pod").ok_or("which pod? ?pod=NAME\n")?;
    Ok(StreamQuestion { name, namespace: value("namespace"), kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_query_and_body_become_a_question() {
        let of = |kind| StreamQuestion { name: "web".to_owned(), namespace: None, kind };
        let exec = |words: &[&str], stdin, tty, container: Option<&str>| {
            let command = words.iter().map(|&word| word.to_owned()).collect();
            Ok(of(StreamKind::Exec { container: container.map(str::to_owned), command, stdin, tty }))
        };
        assert_eq!(question("/exec", "pod=web", b"ls\0"), exec(&["ls"], false, false, None));
        assert_eq!(
            question("/exec", "pod=web&container=app&stdin=1&tty=1", "sh\0-c\0\0ä b&c=\0".as_bytes()),
            exec(&["sh", "-c", "", "ä b&c="], true, true, Some("app"))
        );
        let attach = StreamKind::Attach { container: None, stdin: true };
        let mut named = of(attach);
        named.namespace = Some("prod".to_owned());
        assert_eq!(question("/attach", "pod=web&namespace=prod&stdin=1", b""), Ok(named));
        let ports = vec!["80".to_owned(), "http".to_owned()];
        assert_eq!(
            question("/portforward", "port=80&pod=web&port=http", b""),
            Ok(of(StreamKind::PortForward { ports }))
        );
        assert!(question("/exec", "pod=web", b"").unwrap_err().contains("at least one command"));
        assert!(question("/exec", "pod=web", b"\xff\0").is_err());
        assert!(question("/exec", "container=app", b"ls\0").unwrap_err().contains("which pod?"));
        let many = "port=1&".repeat(FORWARDED_PORTS_MAX + 1);
        assert_eq!(question("/portforward", &format!("{many}pod=web"), b""), Err("too many ports\n"));
        assert!(is_path("/exec") && is_path("/attach") && is_path("/portforward") && !is_path("/pods"));
    }
}
