//! The table of fields (`smolet check --explain-fields`): it has every field of the API and no other, what it calls
//! refused is refused, what it calls honoured makes a difference, and docs/fields.md says the same.

#![allow(missing_docs, unreachable_pub, clippy::expect_used, clippy::unwrap_used, clippy::print_stdout)]

mod configuration;
mod effects;
mod honoured;
mod page;
mod pod_fields;
mod probes;
mod refused;
mod schema;

use std::process::Command;

use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schema::{SchemaField, Shape, schema};
use serde_json::{Value, json};
use smolet::source::validate::fields::{Answer, Field, covers, fields};

/// Every field of a pod, and a pod in which every field is set.
fn api() -> (Vec<SchemaField>, Value) {
    let (mut all, metadata) = schema::<ObjectMeta>("metadata");
    let (spec, full) = schema::<PodSpec>("spec");
    all.extend(spec);
    (all, json!({"metadata": metadata, "spec": full}))
}

/// Sets what `path` names, in the first item of each list on its way that has what the rest of the path needs; null
/// removes it. False when nothing has it.
fn set(at: &mut Value, path: &str, to: &Value) -> bool {
    let (step, rest) = path.split_once('.').map_or((path, None), |(step, rest)| (step, Some(rest)));
    let key = step.trim_end_matches("[*]");
    let Value::Object(map) = at else { return false };
    match rest {
        None if to.is_null() => {
            map.remove(key);
            true
        }
        None => {
            map.insert(key.to_owned(), to.clone());
            true
        }
        Some(rest) => match map.get_mut(key) {
            Some(Value::Array(items)) => items.iter_mut().any(|item| set(item, rest, to)),
            Some(next) => set(next, rest, to),
            None => false,
        },
    }
}

/// The line that answers for a field of the API, through the lines that refer to others.
fn line_of<'a>(table: &'a [Field], path: &str) -> Option<&'a Field> {
    // The longest: a line below an "as" line is an exception from it.
    let line = table.iter().filter(|line| covers(&line.path, path)).max_by_key(|line| line.path.len())?;
    if line.answer == Answer::As {
        return line_of(table, &path.replacen(&line.path, line.words, 1));
    }
    Some(line)
}

#[test]
fn every_field_of_the_api_has_a_line_and_every_line_a_field() {
    let (table, (api, _)) = (fields(), api());
    let mut wrong = Vec::new();
    // What is below is answered for by its fields.
    for field in api.iter().filter(|field| field.shape != Shape::Object) {
        if line_of(&table, &field.path).is_none() {
            wrong.push(format!("{} is not in the table", field.path));
        }
    }
    let mut last = 0;
    for line in &table {
        let first = api.iter().position(|field| match field.shape {
            Shape::Map => covers(&line.path, &field.path) || covers(&field.path, &line.path),
            Shape::Object | Shape::Leaf => covers(&line.path, &field.path),
        });
        match first {
            None => wrong.push(format!("{} is not in the API", line.path)),
            Some(first) if first < last => wrong.push(format!("{} is not in the API's order", line.path)),
            Some(first) => last = first,
        }
        let of_its_own = |field: &&SchemaField| field.path == line.path && field.shape != Shape::Object;
        if line.answer == Answer::Honoured && !api.iter().any(|field| of_its_own(&field)) {
            wrong.push(format!("{} has fields; each needs a line", line.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let mut paths: Vec<&str> = table.iter().map(|line| line.path.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), table.len(), "a line is there twice");
    let count = |answer| table.iter().filter(|line| line.answer == answer).count();
    println!(
        "fields: {} of the API, {} lines: {} honoured, {} refused, {} not applicable",
        api.len(),
        table.len(),
        count(Answer::Honoured),
        count(Answer::Refused),
        count(Answer::NotApplicable)
    );
}

#[test]
fn the_command_prints_the_table() {
    let out =
        Command::new(env!("CARGO_BIN_EXE_smolet")).args(["check", "--explain-fields"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let table = fields();
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["FIELD", "ANSWER", "WORDS"]);
    let answers = lines[0].find("ANSWER").unwrap();
    for (line, field) in lines[1..].iter().zip(&table) {
        assert_eq!(line[..answers].trim_end(), field.path);
        let rest = format!("{}   {}", field.answer.as_str(), field.words);
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&line[answers..]), squeezed(&rest));
    }
    assert_eq!(lines.len(), table.len() + 4, "a blank line and two of counts stand below it");
    let with_path =
        Command::new(env!("CARGO_BIN_EXE_smolet")).args(["check", "--explain-fields", "x"]).output().unwrap();
    assert!(!with_path.status.success(), "it checks nothing");
}
