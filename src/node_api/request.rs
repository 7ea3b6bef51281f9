//! Parses a request's method, path and query into its authorization attributes and its route. PURE.

use crate::limits::FORWARDED_PORTS_MAX;
use crate::logs::line::{Shown, Stream, rfc3339};
use crate::model::Wall;
use crate::printers::table::PodsFormat;
use crate::server::{PodsQuestion, Question};

use crate::server::node_question::{CommandStreams, NodeQuestion, Target};

/// The verb and the subresources of this node, one of which has to be allowed (`GetRequestAttributes`, the fine-grained ones
/// first).
///
/// Unlike in the kubelet, requests that run in a container or reach its ports need `create` whatever the method. With the kubelet
/// a WebSocket begins with GET and so needs only `get` on nodes/proxy, which is granted to read metrics and logs, and would run
/// any command in any pod. The API server, the client behind kubectl, has every verb (`system:kubelet-api-admin`).
pub fn attributes(method: &str, path: &str) -> (&'static str, Vec<&'static str>) {
    let verb = match method {
        _ if reaches_into_a_container(path) => "create",
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    };
    let below = |of: &str| path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let fine =
        [("/pods", "pods"), ("/healthz", "healthz"), ("/configz", "configz"), ("/runningpods", "pods")];
    let own = [
        ("/stats", "stats"),
        ("/metrics", "metrics"),
        ("/logs", "log"),
        ("/checkpoint", "checkpoint"),
        ("/statusz", "statusz"),
        ("/flagz", "flagz"),
    ];
    let of = |list: &[(&str, &'static str)]| list.iter().find(|(path, _)| below(path)).map(|(_, part)| *part);
    let mut parts: Vec<&'static str> = of(&fine).into_iter().collect();
    parts.push(of(&own).unwrap_or("proxy"));
    (verb, parts)
}

/// Whether `route` may return an exec, attach or port-forward for this path; it decodes the path in the same way.
fn reaches_into_a_container(path: &str) -> bool {
    let first = path.strip_prefix('/').unwrap_or(path).split('/').next().and_then(decoded);
    first.is_some_and(|first| matches!(first.as_str(), "exec" | "attach" | "portForward" | "run"))
}

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// A query of the loop, with the response's content type.
    Ask(Question, &'static str),
    /// The same, of which one runs at a time.
    Measure(NodeQuestion, &'static str),
    /// `/configz`.
    Config,
    /// A container's log.
    Log(LogRequest),
    /// A file or a directory of the node's logs, by the components of its path; `true` with a trailing slash.
    SystemLog(Vec<String>, bool),
    /// A connection to upgrade.
    Stream(NodeQuestion),
    /// A command whose output is the response.
    Run(NodeQuestion),
}

/// A container's log and its options (`v1.PodLogOptions`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRequest {
    /// The pod.
    pub target: Target,
    /// The container.
    pub container: String,
    /// The log of the previous, terminated container.
    pub previous: bool,
    /// Follow the log.
    pub follow: bool,
    /// Number of lines from the end; `None`: all.
    pub tail: Option<u64>,
    /// The start time.
    pub since: Since,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// Greatest number of bytes.
    pub bytes_max: Option<u64>,
    /// Only this stream.
    pub only: Option<Stream>,
}

/// The start time of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Since {
    /// From its beginning.
    #[default]
    Always,
    /// Seconds before now.
    Ago(i64),
    /// From this time on.
    At(Wall),
}

impl LogRequest {
    /// Which of its lines are shown.
    pub fn shown(&self, now: Wall) -> Shown {
        let since = match self.since {
            Since::Always => None,
            Since::Ago(seconds) => Some(Wall(now.0.saturating_sub(seconds.saturating_mul(1_000_000_000)))),
            Since::At(at) => Some(at),
        };
        Shown { since, timestamps: self.timestamps }
    }
}

/// A rejected request: the HTTP status and the kubelet's message.
pub type Refusal = (u16, String);

/// Plain text.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// JSON.
pub const JSON: &str = "application/json";
/// Prometheus' text format.
pub const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Parses method, path and query.
///
/// # Errors
/// An unknown path, a method that it does not have, an invalid parameter.
pub fn route(method: &str, path: &str, query: &str) -> Result<Route, Refusal> {
    let not_found = || (404, "404 page not found\n".to_owned());
    let parts: Option<Vec<String>> = path.strip_prefix('/').unwrap_or(path).split('/').map(decoded).collect();
    let parts = parts.ok_or_else(not_found)?;
    let mut parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let slash = parts.last() == Some(&"");
    // A trailing slash is allowed.
    if parts.len() > 1 && parts.last() == Some(&"") {
        parts.pop();
    }
    let get = |route| if method == "GET" { Ok(route) } else { Err(not_allowed()) };
    let query = Query::of(query)?;
    match *parts.as_slice() {
        ["healthz"] | ["healthz", "ping" | "log" | "syncloop"] => get(Route::Ask(Question::Health, TEXT)),
        ["pods"] => get(Route::Ask(
            Question::Pods(PodsQuestion { format: PodsFormat::Json, ..PodsQuestion::default() }),
            JSON,
        )),
        ["runningpods"] => get(Route::Ask(Question::Node(Box::new(NodeQuestion::RunningPods)), JSON)),
        ["metrics"] => get(Route::Ask(Question::Metrics, METRICS)),
        ["metrics", "resource"] => get(Route::Measure(NodeQuestion::Resources, METRICS)),
        ["stats", "summary"] => {
            let only_cpu_and_memory = query.is_true("only_cpu_and_memory");
            get(Route::Measure(NodeQuestion::Summary { only_cpu_and_memory }, JSON))
        }
        ["configz"] => get(Route::Config),
        ["logs", ref path @ ..] => {
            let path: Vec<String> = path.iter().map(|&part| part.to_owned()).collect();
            let slash = slash || path.is_empty();
            get(Route::SystemLog(path, slash))
        }
        ["containerLogs", namespace, pod, container] => {
            let target = target(namespace, pod, None)?;
            get(Route::Log(log(target, container, &query)?))
        }
        [kind @ ("exec" | "attach" | "run"), namespace, pod, container] => {
            command(method, kind, target(namespace, pod, None)?, container, &query)
        }
        [kind @ ("exec" | "attach" | "run"), namespace, pod, uid, container] => {
            command(method, kind, target(namespace, pod, Some(uid))?, container, &query)
        }
        ["portForward", namespace, pod] => forward(method, target(namespace, pod, None)?, &query),
        ["portForward", namespace, pod, uid] => forward(method, target(namespace, pod, Some(uid))?, &query),
        _ => Err(not_found()),
    }
}

fn not_allowed() -> Refusal {
    (405, "405: Method Not Allowed".to_owned())
}

fn target(namespace: &str, pod: &str, uid: Option<&str>) -> Result<Target, Refusal> {
    if namespace.is_empty() || pod.is_empty() {
        return Err((404, "404 page not found\n".to_owned()));
    }
    let uid = uid.filter(|uid| !uid.is_empty()).map(str::to_owned);
    Ok(Target { namespace: namespace.to_owned(), pod: pod.to_owned(), uid })
}

/// `getExec`, `getAttach`, `getRun`.
fn command(
    method: &str,
    kind: &str,
    target: Target,
    container: &str,
    query: &Query,
) -> Result<Route, Refusal> {
    if !(method == "POST" || method == "GET" && kind != "run") {
        return Err(not_allowed());
    }
    let container = container.to_owned();
    if kind == "run" {
        let command = query.first("cmd").unwrap_or_default().split(' ').map(str::to_owned).collect();
        return Ok(Route::Run(NodeQuestion::Run { target, container, command }));
    }
    let is = |name| query.first(name) == Some("1");
    let tty = is("tty");
    // On a terminal stdout and stderr are one stream (`NewOptions`).
    let streams =
        CommandStreams { stdin: is("input"), stdout: is("output"), stderr: is("error") && !tty, tty };
    if !(streams.stdin || streams.stdout || streams.stderr) {
        return Err((400, "you must specify at least 1 of stdin, stdout, stderr".to_owned()));
    }
    Ok(Route::Stream(match kind {
        "exec" => {
            let command = query.all("command").map(str::to_owned).collect();
            NodeQuestion::Exec { target, container, command, streams }
        }
        _ => NodeQuestion::Attach { target, container, streams },
    }))
}

/// `getPortForward`.
fn forward(method: &str, target: Target, query: &Query) -> Result<Route, Refusal> {
    if method != "POST" && method != "GET" {
        return Err(not_allowed());
    }
    let ports = query.all("port").flat_map(|ports| ports.split(','));
    let ports: Result<Vec<u16>, Refusal> = ports
        .map(|port| {
            let number = port.parse().ok().filter(|port| *port > 0);
            number.ok_or_else(|| (400, format!("unable to parse {port:?} as a port")))
        })
        .collect();
    let ports = ports?;
    if ports.len() > FORWARDED_PORTS_MAX {
        return Err((400, format!("at most {FORWARDED_PORTS_MAX} ports")));
    }
    Ok(Route::Stream(NodeQuestion::PortForward { target, ports }))
}

/// `getContainerLogs`, `ValidatePodLogOptions`.
fn log(target: Target, container: &str, query: &Query) -> Result<LogRequest, Refusal> {
    let undecodable = || (400, r#"{"message": "Unable to decode query."}"#.to_owned());
    let number = |name| query.first(name).map(str::parse::<i64>).transpose().map_err(|_| undecodable());
    let tail = match query.first("tail") {
        Some("all") => None,
        Some(tail) => Some(tail.parse().map_err(|_| undecodable())?),
        None => number("tailLines")?,
    };
    let (since_seconds, bytes_max) = (number("sinceSeconds")?, number("limitBytes")?);
    let since_time = query.first("sinceTime").map(|time| rfc3339(time.as_bytes()).ok_or_else(undecodable));
    let since_time = since_time.transpose()?;
    let stream = query.first("stream").unwrap_or("All");
    let is_valid = tail.is_none_or(|tail| tail >= 0)
        && bytes_max.is_none_or(|bytes| bytes >= 1)
        && since_seconds.is_none_or(|seconds| seconds >= 1)
        && !(since_seconds.is_some() && since_time.is_some())
        && matches!(stream, "All" | "Stdout" | "Stderr")
        && !(tail.is_some() && stream != "All");
    if !is_valid {
        return Err((422, r#"{"message": "Invalid request."}"#.to_owned()));
    }
    Ok(LogRequest {
        target,
        container: container.to_owned(),
        previous: query.is_true("previous"),
        follow: query.is_true("follow"),
        tail: tail.and_then(|tail| u64::try_from(tail).ok()),
        since: match (since_seconds, since_time) {
            (Some(seconds), _) => Since::Ago(seconds),
            (None, Some(at)) => Since::At(at),
            (None, None) => Since::Always,
        },
        timestamps: query.is_true("timestamps"),
        bytes_max: bytes_max.and_then(|bytes| u64::try_from(bytes).ok()),
        only: match stream {
            "Stdout" => Some(Stream::Out),
            "Stderr" => Some(Stream::Err),
            _ => None,
        },
    })
}

/// The decoded pairs of a query, bounded by the head's length.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(text: &str) -> Result<Self, Refusal> {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = |text: &str| decoded(&text.replace('+', " "));
            decoded(name).zip(decoded(value)).ok_or_else(|| (400, "the query is no UTF-8".to_owned()))
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }

    fn all<'q>(&'q self, name: &'static str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn first(&self, name: &'static str) -> Option<&str> {
        self.all(name).next().filter(|value| !value.is_empty())
    }

    /// Parses a boolean as Go's query conversion: everything but an explicit false.
    fn is_true(&self, name: &'static str) -> bool {
        self.all(name).next().is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }
}

/// Decodes percent-encoding; `None` when the result is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit =
                |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            bytes.push(digit(rest.next())? << 4 | digit(rest.next())?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_needs_what_the_kubelet_asks_for_it_and_more_where_it_reaches_into_a_container() {
        for (method, path, verb, parts) in [
            ("GET", "/pods", "get", &["pods", "proxy"][..]),
            ("GET", "/pods/", "get", &["pods", "proxy"]),
            ("GET", "/podsx", "get", &["proxy"]),
            ("GET", "/runningpods/", "get", &["pods", "proxy"]),
            ("GET", "/healthz", "get", &["healthz", "proxy"]),
            ("GET", "/healthz/ping", "get", &["healthz", "proxy"]),
            ("GET", "/configz", "get", &["configz", "proxy"]),
            ("GET", "/metrics", "get", &["metrics"]),
            ("GET", "/metrics/resource", "get", &["metrics"]),
            ("GET", "/stats/summary", "get", &["stats"]),
            ("GET", "/logs/", "get", &["log"]),
            ("POST", "/checkpoint/a/b/c", "create", &["checkpoint"]),
            ("GET", "/statusz", "get", &["statusz"]),
            ("POST", "/exec/default/web/app", "create", &["proxy"]),
            // Stricter than the kubelet, which requires `get` here.
            ("GET", "/exec/default/web/app", "create", &["proxy"]),
            ("GET", "/attach/default/web/0-1/app", "create", &["proxy"]),
            ("GET", "/portForward/default/web", "create", &["proxy"]),
            ("POST", "/portForward/default/web", "create", &["proxy"]),
            ("POST", "/run/default/web/app", "create", &["proxy"]),
            ("PUT", "/run/default/web/app", "create", &["proxy"]),
            ("OPTIONS", "/exec", "create", &["proxy"]),
            // A route is matched on the decoded path.
            ("GET", "/%65xec/default/web/app", "create", &["proxy"]),
            ("GET", "/port%46orward/default/web", "create", &["proxy"]),
            ("GET", "exec/default/web/app", "create", &["proxy"]),
            ("GET", "/execute/default/web/app", "get", &["proxy"]),
            ("GET", "//exec/default/web/app", "get", &["proxy"]),
            ("GET", "/containerLogs/default/web/app", "get", &["proxy"]),
            ("GET", "/", "get", &["proxy"]),
            ("PUT", "/x", "update", &["proxy"]),
            ("PATCH", "/x", "patch", &["proxy"]),
            ("DELETE", "/x", "delete", &["proxy"]),
            ("OPTIONS", "/x", "", &["proxy"]),
            // Without decoding it is not a known path.
            ("GET", "/%6detrics", "get", &["proxy"]),
        ] {
            assert_eq!(attributes(method, path), (verb, parts.to_vec()), "{method} {path}");
        }
        assert_eq!(route("GET", "//exec/default/web/app", "output=1").unwrap_err().0, 404);
        assert!(matches!(route("GET", "/%65xec/default/web/app", "output=1"), Ok(Route::Stream(_))));
    }

    fn web(uid: Option<&str>) -> Target {
        let uid = uid.map(str::to_owned);
        Target { namespace: "default".to_owned(), pod: "web".to_owned(), uid }
    }

    #[test]
    fn commands_and_ports_are_read_as_the_kubelet_reads_them() {
        let stream = |route| Ok(Route::Stream(route));
        let app = || "app".to_owned();
        let streams = CommandStreams { stdin: true, stdout: true, stderr: false, tty: true };
        let exec = |uid, command: &[&str], streams| {
            let command = command.iter().map(|&word| word.to_owned()).collect();
            stream(NodeQuestion::Exec { target: web(uid), container: app(), command, streams })
        };
        assert_eq!(
            route(
                "POST",
                "/exec/default/web/app",
                "command=sh&command=-c&command=a%26b+c%3d%C3%A4&input=1&output=1&error=1&tty=1"
            ),
            exec(None, &["sh", "-c", "a&b c=ä"], streams)
        );
        let out = CommandStreams { stdin: false, stdout: true, stderr: true, tty: false };
        let uid = "/exec/default/web/0-1/app";
        assert_eq!(route("GET", uid, "command=ls&output=1&error=1"), exec(Some("0-1"), &["ls"], out));
        assert_eq!(
            route("POST", "/attach/default/web/app", "output=1&error=1"),
            stream(NodeQuestion::Attach { target: web(None), container: app(), streams: out })
        );
        let (status, why) = route("POST", "/exec/default/web/app", "command=ls").unwrap_err();
        assert_eq!((status, why.as_str()), (400, "you must specify at least 1 of stdin, stdout, stderr"));
        let run = NodeQuestion::Run {
            target: web(None),
            container: app(),
            command: ["ls", "/"].map(str::to_owned).to_vec(),
        };
        assert_eq!(route("POST", "/run/default/web/app", "cmd=ls%20/"), Ok(Route::Run(run)));
        assert_eq!(route("GET", "/run/default/web/app", "cmd=ls").unwrap_err().0, 405);
        let forward = |uid, ports: &[u16]| {
            stream(NodeQuestion::PortForward { target: web(uid), ports: ports.to_vec() })
        };
        assert_eq!(route("POST", "/portForward/default/web", ""), forward(None, &[]));
        assert_eq!(
            route("GET", "/portForward/default/web/0-1", "port=80,81&port=82"),
            forward(Some("0-1"), &[80, 81, 82])
        );
        for ports in ["port=0", "port=x", "port=65536", "port=1,"] {
            assert_eq!(route("GET", "/portForward/default/web", ports).unwrap_err().0, 400, "{ports}");
        }
        let many = "port=1&".repeat(FORWARDED_PORTS_MAX + 1);
        assert_eq!(route("GET", "/portForward/default/web", &many).unwrap_err().0, 400);
    }

    #[test]
    fn options_of_a_log_are_read_as_the_kubelet_reads_them() {
        let log = |query: &str| match route("GET", "/containerLogs/default/web/app", query) {
            Ok(Route::Log(log)) => Ok(log),
            Ok(other) => panic!("{other:?}"),
            Err((status, _)) => Err(status),
        };
        let plain = LogRequest { target: web(None), container: "app".to_owned(), ..LogRequest::default() };
        assert_eq!(log(""), Ok(plain.clone()));
        assert_eq!(
            log("follow=true&previous=1&timestamps=True&tailLines=5&limitBytes=7&sinceSeconds=9"),
            Ok(LogRequest {
                follow: true,
                previous: true,
                timestamps: true,
                tail: Some(5),
                bytes_max: Some(7),
                since: Since::Ago(9),
                ..plain.clone()
            })
        );
        assert_eq!(log("tail=3&tailLines=5"), Ok(LogRequest { tail: Some(3), ..plain.clone() }));
        assert_eq!(log("tail=all&tailLines=5&follow=false&previous=0"), Ok(plain.clone()));
        let at = Since::At(Wall(1_767_225_600_000_000_000));
        assert_eq!(log("sinceTime=2026-01-01T00%3A00%3A00Z"), Ok(LogRequest { since: at, ..plain.clone() }));
        assert_eq!(log("stream=Stderr"), Ok(LogRequest { only: Some(Stream::Err), ..plain }));
        for (query, status) in [
            ("tailLines=x", 400),
            ("tail=x", 400),
            ("limitBytes=99999999999999999999", 400),
            ("sinceTime=yesterday", 400),
            ("tailLines=%ff", 400),
            ("tailLines=%4", 400),
            ("tailLines=-1", 422),
            ("limitBytes=0", 422),
            ("sinceSeconds=0", 422),
            ("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422),
            ("stream=all", 422),
            ("stream=Stdout&tailLines=1", 422),
        ] {
            assert_eq!(log(query), Err(status), "{query}");
        }
        let ago = LogRequest { since: Since::Ago(i64::MAX), ..LogRequest::default() };
        assert_eq!(ago.shown(Wall(5)).since, Some(Wall(5 - i64::MAX)));
    }

    #[test]
    fn what_is_not_there_is_not_found_and_other_methods_are_not_allowed() {
        for path in [
            "/",
            "",
            "/exec",
            "/exec/default/web",
            "/exec/default/web/u/app/more",
            "/exec//web/app",
            "/portForward/default",
            "/containerLogs/default/web",
            "/metrics/cadvisor",
            "/debug/pprof",
            "/%zz",
            "/pods/more",
        ] {
            assert_eq!(route("GET", path, "").unwrap_err().0, 404, "{path}");
        }
        for path in
            ["/pods", "/healthz", "/metrics", "/configz", "/stats/summary", "/containerLogs/a/b/c", "/logs/"]
        {
            assert_eq!(route("POST", path, "").unwrap_err().0, 405, "{path}");
            assert!(route("GET", path, "").is_ok(), "{path}");
        }
        assert!(route("GET", "/runningpods/", "").is_ok());
    }
}
