//! README.md and the pages of `docs/`: every page is linked from README.md, every link leads somewhere, and what a page names of the
//! source is there. With `SMOLET_DOCS=write` the files in `docs/kubelet-map.md` are corrected where a name has moved.

#![cfg(target_arch = "x86_64")]
#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// README.md is what somebody reads before he has a problem; the pages are for him who has one.
const README_LINES_MAX: usize = 150;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages below `docs/`, relative to the repository, in order.
fn pages() -> Vec<String> {
    let mut pages: Vec<String> = fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| format!("docs/{}", entry.unwrap().file_name().into_string().unwrap()))
        .collect();
    pages.sort();
    pages
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// The lines of a page with their numbers, without code: neither indented or fenced blocks nor comments.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !line.starts_with("    ") && !line.starts_with("<!--") {
            lines.push((at + 1, line));
        }
    }
    lines
}

/// `[text](target)` of a line, outside of `code`.
fn links(line: &str) -> Vec<&str> {
    let plain = line.split('`').step_by(2);
    plain.flat_map(|part| part.split("](").skip(1).filter_map(|rest| rest.split(')').next())).collect()
}

/// The anchors that a page's headings have: GitHub's rule.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).into_iter().filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_ascii_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut wrong = String::new();
    for page in pages().iter().map(String::as_str).chain(["README.md", "CHANGELOG.md"]) {
        let text = read(page);
        for (line, target) in prose(&text)
            .into_iter()
            .flat_map(|(at, line)| links(line).into_iter().map(move |link| (at, link)))
        {
            if target.starts_with("https://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let beside = root().join(page).parent().unwrap().join(file);
            let to = if file.is_empty() { root().join(page) } else { beside };
            if !to.exists() {
                let _ = writeln!(wrong, "{page}:{line}: {target}: no such file");
            } else if !anchor.is_empty()
                && !anchors(&fs::read_to_string(&to).unwrap()).iter().any(|is| is == anchor)
            {
                let _ = writeln!(wrong, "{page}:{line}: {target}: no such heading");
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{wrong}");
}

#[test]
fn the_readme_is_short_and_links_every_page() {
    let readme = read("README.md");
    let lines = readme.lines().count();
    assert!(
        lines <= README_LINES_MAX,
        "README.md has {lines} lines, of at most {README_LINES_MAX}: details belong in docs/"
    );
    for page in pages() {
        assert!(readme.contains(&format!("({page}")), "README.md has no link to {page}");
    }
}

/// A heading first, and what is generated says from what.
#[test]
fn every_page_has_a_title_and_generated_parts_say_from_what() {
    for page in pages() {
        let text = read(&page);
        let title = text.lines().find(|line| !line.starts_with("<!--") && !line.is_empty());
        assert!(title.is_some_and(|line| line.starts_with("# ")), "{page}: begins with its title");
        for line in text.lines().filter(|line| line.starts_with("<!--") && !line.starts_with("<!-- end")) {
            assert!(
                line.contains("SMOLET_DOCS=write") && line.contains(" from src/"),
                "{page}: {line}: says from which file it is generated, and how"
            );
        }
    }
}

#[test]
fn the_page_on_configuration_has_every_flag_and_that_on_commands_every_command() {
    let mut whole = smolet::cli::command();
    whole.build();
    let (flags, commands) = (read("docs/configuration.md"), read("docs/commands.md"));
    let mut missing = Vec::new();
    for command in whole.get_subcommands() {
        let name = command.get_name();
        if !commands.contains(&format!("`smolet {name}")) {
            missing.push(format!("docs/commands.md: `smolet {name}`"));
        }
        let page = if name == "run" { &flags } else { &commands };
        let places = if name == "run" { "docs/configuration.md" } else { "docs/commands.md" };
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let Some(long) = argument.get_long().filter(|long| *long != "help") else { continue };
            // Those of `run` are told once.
            let is_told = name == "doctor" && flags.contains(&format!("`--{long}"));
            if !is_told && !page.contains(&format!("--{long}")) {
                missing.push(format!("{places}: --{long} of smolet {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "not described:\n{}", missing.join("\n"));
}

/// What a promise names as held by is a file or a target of the Makefile.
#[test]
fn what_holds_a_promise_is_there() {
    let makefile = read("Makefile");
    let page = read("docs/promises.md");
    let mut named = 0;
    for (line, text) in prose(&page) {
        for name in text.split('`').skip(1).step_by(2) {
            if let Some(target) = name.strip_prefix("make ") {
                let target = target.split(' ').next().unwrap();
                assert!(makefile.contains(&format!("\n{target}:")), "docs/promises.md:{line}: make {target}");
                named += 1;
            } else if ["tests/", "src/", "benches/"].iter().any(|start| name.starts_with(start)) {
                assert!(root().join(name).exists(), "docs/promises.md:{line}: {name}: no such file");
                named += 1;
            }
        }
    }
    assert!(named > 20, "{named} names only");
}

/// The packages take the pages from where they are.
#[test]
fn the_packages_have_every_page() {
    let build = read("dist/build.sh");
    for part in ["\"$repo\"/docs/*.md", "$repo/README.md", "$repo/CHANGELOG.md"] {
        assert!(build.contains(part), "dist/build.sh: {part}");
    }
}

/// Whether that text of a source file defines the name, as an item.
fn defines(text: &str, name: &str) -> bool {
    ["fn", "struct", "enum", "trait", "type", "const", "static", "mod"].iter().any(|kind| {
        let item = format!("{kind} {name}");
        text.match_indices(&item).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            let after = text[at + item.len()..].chars().next();
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    })
}

/// The source, file by file; without comments, which name much that is elsewhere.
fn source() -> BTreeMap<String, String> {
    fn walk(dir: &Path, all: &mut BTreeMap<String, String>) {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                walk(&path, all);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                all.insert(name, code.collect::<Vec<_>>().join("\n"));
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(&root().join("src"), &mut all);
    all
}

/// A row of the map: the kubelet's name, our file and our name.
fn row(line: &str) -> Option<(&str, &str, &str)> {
    let mut cells = line.strip_prefix("| `")?.strip_suffix(" |")?.split(" | ");
    let kubelet = cells.next()?.strip_suffix('`')?;
    let (file, name) = (cells.nth(1)?, cells.next()?);
    file.starts_with("src/").then_some((kubelet, file, name.trim_matches('`')))
}

#[test]
fn the_map_of_the_kubelet_names_what_is_there() {
    let path: PathBuf = root().join("docs/kubelet-map.md");
    let source = source();
    let corrects = std::env::var_os("SMOLET_DOCS").is_some_and(|what| what == "write");
    let (mut rows, mut wrong, mut corrected) = (0, String::new(), String::new());
    for (at, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
        let mut kept = line.to_owned();
        if let Some((kubelet, file, name)) = row(line) {
            rows += 1;
            if !source.get(file).is_some_and(|text| defines(text, name)) {
                let mut others: Vec<&str> = source
                    .iter()
                    .filter(|(other, text)| !other.starts_with("src/proto/") && defines(text, name))
                    .map(|(other, _)| other.as_str())
                    .collect();
                // A file that was moved as a whole has its name still.
                let moved = |other: &&str| other.rsplit('/').next() == file.rsplit('/').next();
                if !source.contains_key(file) && others.iter().filter(|other| moved(other)).count() == 1 {
                    others.retain(moved);
                }
                let what = if source.contains_key(file) {
                    "does not define"
                } else {
                    "is no file, nor the place of"
                };
                match others[..] {
                    [only] if corrects => kept = line.replace(&format!("| {file} |"), &format!("| {only} |")),
                    [] => {
                        let _ = writeln!(
                            wrong,
                            "docs/kubelet-map.md:{}: {kubelet}: {file} {what} `{name}`, nor does any other file: it was \
                             renamed or removed",
                            at + 1
                        );
                    }
                    _ => {
                        let shown = others.iter().take(4).copied().collect::<Vec<_>>().join(", ");
                        let _ = writeln!(
                            wrong,
                            "docs/kubelet-map.md:{}: {kubelet}: {file} {what} `{name}`; defined in {shown}",
                            at + 1
                        );
                    }
                }
            }
        }
        corrected.push_str(&kept);
        corrected.push('\n');
    }
    if corrects {
        fs::write(&path, corrected).unwrap();
    }
    assert!(rows > 500, "{rows} rows only");
    assert!(
        wrong.is_empty(),
        "{wrong}SMOLET_DOCS=write cargo test --locked --test repository docs:: corrects the file of a name that one file alone defines"
    );
}

#[test]
fn rows_and_links_are_read_as_they_are_written() {
    assert_eq!(
        row("| `startContainer` | `kuberuntime_container.go` | src/sync/start.rs | `start_container` |"),
        Some(("startContainer", "src/sync/start.rs", "start_container"))
    );
    assert_eq!(row("| cAdvisor | statistics come from the runtime |"), None);
    assert!(defines("    pub(super) async fn start(\n", "start") && !defines("fn started(", "start"));
    assert_eq!(links("a [b](c.md#d), `[no](x)` and [e](f.md)"), ["c.md#d", "f.md"]);
    assert_eq!(
        anchors("# A node of k3s\n\n## `evictionHard`: what, when?\n"),
        ["a-node-of-k3s", "evictionhard-what-when"]
    );
}

/// Numbers of pages that are sums or names of limits.
#[cfg(feature = "tls")]
#[test]
fn numbers_are_those_of_the_limits() {
    use smolet::limits;
    let mib = |bytes: usize| {
        let tenths = (bytes * 10 + limits::MIB / 2) / limits::MIB;
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    let tunnels = limits::CLUSTER_BOUNDS.iter().filter(|bound| bound.name.starts_with("tunnel"));
    let tunnels: usize = tunnels.map(|bound| bound.bytes_max).sum();
    let seconds = |time: std::time::Duration| time.as_secs();
    for (page, words) in [
        (
            "docs/cluster.md",
            format!("{} MiB more than one alone, {} of them", mib(limits::KUBE_MEMORY_MAX), mib(tunnels)),
        ),
        ("docs/cluster.md", format!("{} ConfigMaps and Secrets are watched", limits::KUBE_WATCHES_MAX)),
        (
            "docs/cluster.md",
            format!(
                "{} objects of {} MiB together",
                limits::KUBE_OBJECTS_MAX,
                limits::KUBE_OBJECTS_BYTES_MAX / limits::MIB
            ),
        ),
        (
            "docs/cluster.md",
            format!(
                "{} s after the first failure to reach it, or {} s after the start",
                seconds(limits::OFFLINE_PATIENCE),
                seconds(limits::OFFLINE_PATIENCE_MAX)
            ),
        ),
        ("docs/cluster.md", format!("at most {} MiB", limits::OFFLINE_BYTES_MAX / limits::MIB)),
        (
            "docs/cluster.md",
            format!(
                "{} connections at a time, {} of them logs",
                limits::NODE_CONNECTIONS_MAX,
                limits::NODE_STREAMS_MAX
            ),
        ),
        ("docs/commands.md", format!("the last {} entries", limits::EVENTS_MAX)),
        ("docs/commands.md", format!("after {} different\nmessages", limits::EVENTS_SIMILAR_MAX)),
        (
            "docs/install.md",
            format!(
                "{} pods, {} manifest files of {} MiB, {} containers in each list of a pod, {} KiB of variables",
                limits::PODS_MAX,
                limits::MANIFEST_FILES_MAX,
                limits::MANIFEST_BYTES_MAX / limits::MIB,
                limits::CONTAINERS_PER_LIST_MAX,
                limits::ENVIRONMENT_BYTES_MAX / limits::KIB
            ),
        ),
        ("docs/install.md", format!("{} MiB for all pods", limits::PODS_BYTES_MAX / limits::MIB)),
        ("docs/eviction.md", format!("every {} seconds", seconds(limits::EVICTION_PERIOD))),
        (
            "docs/services.md",
            format!("counted with each of their ports, in {} MiB", limits::SERVICES_BYTES_MAX / limits::MIB),
        ),
        ("docs/hand-over.md", format!("At most {} pods", limits::PODS_MAX)),
    ] {
        let text = read(page);
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(plain(&text).contains(&plain(&words)), "{page} does not say: {words}");
    }
}

/// Every metric that the agent's own page has is on the page about them, and no other.
#[test]
fn the_page_on_metrics_has_every_metric() {
    let page = read("docs/metrics.md");
    let code = read("src/metrics.rs");
    let code = code.split("#[cfg(test)]").next().unwrap();
    let names = |text: &str, quote: char| -> std::collections::BTreeSet<String> {
        let starts = ["kubelet_", "smolet_", "prober_", "process_"];
        let is_name = |name: &str| {
            starts.iter().any(|start| name.starts_with(start))
                && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        };
        text.split(quote).skip(1).step_by(2).filter(|name| is_name(name)).map(str::to_owned).collect()
    };
    let there: Vec<String> =
        names(code, '"').into_iter().filter(|name| !name.ends_with("_limit") && name != "smolet_").collect();
    let shown = names(&page, '`');
    let missing: Vec<&String> = there.iter().filter(|name| !shown.contains(*name)).collect();
    assert!(there.len() > 30, "{there:?}");
    assert!(missing.is_empty(), "docs/metrics.md does not have {missing:?}");
    let gone: Vec<&String> =
        shown.iter().filter(|name| !there.contains(name) && !name.ends_with("_limit")).collect();
    assert!(gone.is_empty(), "docs/metrics.md has {gone:?}, which src/metrics.rs has not");
}

/// The layers of docs/design.md are those that tests/repository/tidy.rs holds.
#[test]
fn the_layers_are_those_that_are_held() {
    let page = read("docs/design.md");
    let (_, table) = page.split_once("| layer | modules |").expect("docs/design.md has the table of layers");
    let shown: Vec<Vec<&str>> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('`').skip(1).step_by(2).collect())
        .collect();
    let tidy = read("tests/repository/tidy.rs");
    let (_, layers) = tidy.split_once("const LAYERS").expect("tests/repository/tidy.rs has the layers");
    let layers = layers.split_once("];\n").expect("and their end").0;
    // Of the texts in quotes every second one has modules.
    let held: Vec<Vec<&str>> = layers
        .split('"')
        .skip(1)
        .step_by(2)
        .skip(1)
        .step_by(2)
        .map(|names| names.split(' ').collect())
        .collect();
    assert_eq!(shown, held, "docs/design.md, \"Layers\", beside tests/repository/tidy.rs");
}
