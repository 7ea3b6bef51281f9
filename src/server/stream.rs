//! POST requests of `smolet exec`, `attach`, `port-forward` and `debug` to the agent.
//!
//! For the URL of the runtime's streaming server: `/exec?pod=NAME` with the command as the body, each argument terminated by a
//! NUL; `/attach?pod=NAME`; `/portforward?pod=NAME` with a `port=` for each port, a number or a name. For a debug container:
//! `/debug?pod=NAME` with its image and then its command as the body. The response is a line for each value, `url`, `note` and so
//! on.

use super::Question;
use crate::limits::{DEBUGGER_BYTES_MAX, DEBUGGER_WORDS_MAX, FORWARDED_PORTS_MAX};

/// The pod and the kind of stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamQuestion {
    /// The pod's name, with or without the node's name as its suffix.
    pub name: String,
    /// Its namespace; without one, a name that exists in only one namespace is found.
    pub namespace: Option<String>,
    /// The kind of stream.
    pub kind: StreamKind,
}

/// A request to stream to or from a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Runs a command in a container.
    Exec {
        /// The container; without one, the pod's default.
        container: Option<String>,
        /// The command, at least one argument.
        command: Vec<String>,
        /// With standard input.
        stdin: bool,
        /// With a terminal.
        tty: bool,
    },
    /// Attaches to a container's main process.
    Attach {
        /// The container; without one, the pod's default.
        container: Option<String>,
        /// With standard input.
        stdin: bool,
    },
    /// Connections to ports of the pod.
    PortForward {
        /// Ports by number or by name.
        ports: Vec<String>,
    },
}

/// The debug container and its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugQuestion {
    /// The pod's name, with or without the node's name as its suffix.
    pub name: String,
    /// Its namespace; without one, a name that exists in only one namespace is found.
    pub namespace: Option<String>,
    /// The container's name; without one, it is generated.
    pub container: Option<String>,
    /// Its image.
    pub image: String,
    /// `imagePullPolicy`; without one, the image's default.
    pub pull_policy: Option<String>,
    /// Its command; empty: the image's own.
    pub command: Vec<String>,
    /// The container whose PID namespace it shares.
    pub target: Option<String>,
    /// Its standard input stays open.
    pub stdin: bool,
    /// It has a terminal.
    pub tty: bool,
}

/// Whether the path is one of this file, which need a POST.
pub(super) fn is_path(path: &str) -> bool {
    matches!(path, "/exec" | "/attach" | "/portforward" | "/debug")
}

/// Parses path, query and body. PURE.
///
/// # Errors
/// A sentence.
pub(super) fn question(path: &str, query: &str, body: &[u8]) -> Result<Question, &'static str> {
    let pairs = || query.split('&').filter_map(|pair| pair.split_once('='));
    let values =
        |name: &'static str| pairs().filter(move |(key, _)| *key == name).map(|(_, value)| value.to_owned());
    let value = |name: &'static str| values(name).next().filter(|value| !value.is_empty());
    let is_set = |name: &'static str| value(name).as_deref() == Some("1");
    let (container, stdin, tty) = (value("container"), is_set("stdin"), is_set("tty"));
    let name = value("pod").ok_or("which pod? ?pod=NAME\n")?;
    let namespace = value("namespace");
    let words = || {
        let text = std::str::from_utf8(body).map_err(|_| "the command is not UTF-8\n")?;
        Ok::<_, &'static str>(text.strip_suffix('\0').map(|text| text.split('\0').map(str::to_owned)))
    };
    let kind = match path {
        "/exec" => {
            let words = words()?.ok_or("you must specify at least one command for the container\n")?;
            StreamKind::Exec { container, command: words.collect(), stdin, tty }
        }
        "/debug" => {
            let mut words = words()?.ok_or("which image? it is the first word of the body\n")?;
            let image = words.next().unwrap_or_default();
            let command: Vec<String> = words.take(DEBUGGER_WORDS_MAX + 1).collect();
            if body.len() > DEBUGGER_BYTES_MAX || command.len() > DEBUGGER_WORDS_MAX {
                return Err("the image and the command are too long\n");
            }
            let (target, pull_policy) = (value("target"), value("pull"));
            return Ok(Question::Debug(Box::new(DebugQuestion {
                name,
                namespace,
                container,
                image,
                pull_policy,
                command,
                target,
                stdin,
                tty,
            })));
        }
        "/attach" => StreamKind::Attach { container, stdin },
        _ => StreamKind::PortForward { ports: values("port").collect() },
    };
    if matches!(&kind, StreamKind::PortForward { ports } if ports.len() > FORWARDED_PORTS_MAX) {
        return Err("too many ports\n");
    }
    Ok(Question::Stream(StreamQuestion { name, namespace, kind }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_query_and_body_become_a_question() {
        let named = |namespace: Option<&str>, kind| {
            let namespace = namespace.map(str::to_owned);
            Question::Stream(StreamQuestion { name: "web".to_owned(), namespace, kind })
        };
        let of = |kind| named(None, kind);
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
        assert_eq!(
            question("/attach", "pod=web&namespace=prod&stdin=1", b""),
            Ok(named(Some("prod"), attach))
        );
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

    #[test]
    fn an_image_and_a_command_become_a_container_to_add() {
        let text = |text: &str| Some(text.to_owned());
        let bare = DebugQuestion {
            name: "web".to_owned(),
            namespace: None,
            container: None,
            image: "reg.example:5000/busybox:1@sha256:0".to_owned(),
            pull_policy: None,
            command: Vec::new(),
            target: None,
            stdin: false,
            tty: false,
        };
        let debug = |of: &DebugQuestion| Ok(Question::Debug(Box::new(of.clone())));
        let full = DebugQuestion {
            namespace: text("prod"),
            container: text("shell"),
            pull_policy: text("Never"),
            command: vec!["sh".to_owned(), "-c".to_owned(), String::new()],
            target: text("app"),
            stdin: true,
            tty: true,
            ..bare.clone()
        };
        let image = b"reg.example:5000/busybox:1@sha256:0\0";
        assert_eq!(question("/debug", "pod=web", image), debug(&bare));
        let query = "pod=web&namespace=prod&container=shell&target=app&pull=Never&stdin=1&tty=1";
        assert_eq!(question("/debug", query, &[image, &b"sh\0-c\0\0"[..]].concat()), debug(&full));
        assert!(question("/debug", "pod=web", b"").unwrap_err().contains("which image?"));
        assert!(question("/debug", "container=c", image).unwrap_err().contains("which pod?"));
        let long = [image, vec![b'x'; DEBUGGER_BYTES_MAX].as_slice(), b"\0"].concat();
        assert!(question("/debug", "pod=web", &long).unwrap_err().contains("too long"));
        let words = [&image[..], &b"\0".repeat(DEBUGGER_WORDS_MAX)].concat();
        assert!(question("/debug", "pod=web", &words).is_ok());
        assert!(
            question("/debug", "pod=web", &[&words[..], b"\0"].concat()).unwrap_err().contains("too long")
        );
    }
}
