//! docs/fields.md's lists are the table's. `SMOLET_DOCS=write` writes them.

use std::fmt::Write as _;

use smolet::source::validate::fields::{Answer, Field, fields};

const COLUMNS: usize = 118;

/// What the page says of the fields.
fn text(table: &[Field]) -> String {
    let mut out =
        String::from("| lines of the table | honoured | refused | not applicable |\n|---|--:|--:|--:|\n");
    let parts = [
        ("`metadata`", "metadata."),
        ("`spec.containers[*]` (init containers have the same)", "spec.containers[*]."),
        ("`spec.volumes[*]`", "spec.volumes[*]."),
        ("the rest of `spec`", "spec."),
        ("all", ""),
    ];
    // The first part that a line belongs to; all of them to the last.
    let is_in = |line: &Field, part: usize| {
        let first = parts.iter().position(|(_, below)| line.path.starts_with(below));
        part + 1 == parts.len() || first == Some(part)
    };
    for (part, (name, _)) in parts.iter().enumerate() {
        let _ = write!(out, "| {name} |");
        for answer in [Answer::Honoured, Answer::Refused, Answer::NotApplicable] {
            let count = table.iter().filter(|line| line.answer == answer && is_in(line, part)).count();
            let _ = write!(out, " {count} |");
        }
        out.push('\n');
    }
    out.push_str("\n## Refused\n\n");
    out.push_str(&list(table, Answer::Refused));
    out.push_str("\n## Not applicable\n\nAccepted, and without effect on a node without an API server:\n\n");
    out.push_str(&list(table, Answer::NotApplicable));
    out
}

/// The fields with that answer, one item for all that have the same reason.
fn list(table: &[Field], answer: Answer) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in table.iter().filter(|line| line.answer == answer) {
        match groups.iter_mut().find(|(words, _)| *words == line.words) {
            Some((_, paths)) => paths.push(&line.path),
            None => groups.push((line.words, vec![&line.path])),
        }
    }
    let mut out = String::new();
    for (words, paths) in groups {
        let mut above = "";
        let names = paths.iter().map(|path| {
            let (parent, name) = path.rsplit_once('.').filter(|_| !path.ends_with(']')).unwrap_or(("", path));
            let known = std::mem::replace(&mut above, parent) == parent;
            if known && !parent.is_empty() { format!("`.{name}`") } else { format!("`{path}`") }
        });
        let item = format!("- {}: {words}", names.collect::<Vec<_>>().join(", "));
        wrap(&item, &mut out);
    }
    out
}

fn wrap(item: &str, out: &mut String) {
    let mut column = 0;
    for word in item.split(' ') {
        if column > 0 && column + 1 + word.len() > COLUMNS {
            out.push_str("\n ");
            column = 1;
        }
        if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
    }
    out.push('\n');
}

#[test]
fn the_page_says_what_the_table_says() {
    crate::page::compare("docs/fields.md", "src/source/validate/fields.txt", &text(&fields()));
}
