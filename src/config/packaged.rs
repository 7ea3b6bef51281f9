//! Tests of the packages' configuration file (`dist/config.yaml`): the defaults in its comments are the real ones, and none is
//! missing.

use super::*;

const FILE: &str = include_str!("../../dist/config.yaml");

/// The file with every setting behind a `#` without a space enabled.
fn in_force() -> String {
    let mut text = String::new();
    for line in FILE.lines() {
        let line = match line.strip_prefix('#') {
            Some(prose) if prose.is_empty() || prose.starts_with(' ') && !prose.starts_with("  ") => continue,
            Some(setting) => setting,
            None => line,
        };
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn config_of(text: &str) -> Config {
    let settings = FileSettings::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Config::join(&Flags::default(), None, settings).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn it_sets_nothing_and_its_defaults_are_the_agents() {
    let default = Config::join(&Flags::default(), None, FileSettings::default()).expect("defaults are valid");
    assert_eq!(config_of(FILE), default);
    let explicit = config_of(&in_force());
    // Only settings that are given change the process.
    assert!(explicit.process.oom_score_adj == Some(-999) && explicit.process.open_files == Some(1_000_000));
    let (given, process) = (FileSettings::default(), default.process);
    assert_eq!(Config { process, given, ..explicit }, default);
}

#[test]
fn every_field_that_is_honoured_stands_in_it() {
    let settings = FileSettings::parse(in_force().as_bytes()).expect("valid");
    let honoured = fields::fields().filter(|field| field.answer == fields::Answer::Honoured);
    let missing: Vec<&str> =
        honoured.map(|field| field.path).filter(|path| settings.node(path).is_none()).collect();
    assert_eq!(missing, [""; 0], "fields that dist/config.yaml does not name");
}
