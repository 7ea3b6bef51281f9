//! `smolet check FILE|DIR...`: manifests read and validated as the agent would, without an agent; and the table of what
//! becomes of each field.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use super::print;
use crate::clock::{Clock as _, SystemClock};
use crate::printers::style::{Style, Tone};
use crate::printers::text::{Cell, columns};
use crate::source::validate::fields::{Answer, Field, fields};
use crate::source::{NodeName, check};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Files, directories, or - for standard input
    #[arg(required_unless_present = "explain_fields", value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Instead: list every field of a pod, and whether it is honoured, refused or not applicable
    #[arg(long, conflicts_with = "paths")]
    explain_fields: bool,
    /// The node's name, as the agent has it [default: this host's name]
    #[arg(long, value_name = "NAME", visible_alias = "hostname-override")]
    node_name: Option<String>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    if args.explain_fields {
        let no_color = std::env::var("NO_COLOR").ok();
        let style = Style::for_output(std::io::stdout().is_terminal(), no_color.as_deref());
        return print(Ok(explained(&fields(), style)));
    }
    let node = args.node_name.clone().unwrap_or_else(|| crate::facts::hostname().to_ascii_lowercase());
    let report = check(&args.paths, &NodeName::new(&node), SystemClock.now().wall);
    let printed = print(Ok(report.to_string()));
    if report.is_good() { printed } else { ExitCode::FAILURE }
}

/// The table of fields, and how many there are of each answer.
fn explained(fields: &[Field], style: Style) -> String {
    let heading = |text| Cell::toned(text, Tone::Heading);
    let mut rows = vec![vec![heading("FIELD"), heading("ANSWER"), heading("WORDS")]];
    rows.extend(fields.iter().map(|Field { path, answer, words }| {
        let tone = if *answer == Answer::Refused { Tone::Bad } else { Tone::Plain };
        vec![path.as_str().into(), Cell::toned(answer.as_str(), tone), (*words).into()]
    }));
    let count = |answer| fields.iter().filter(|field| field.answer == answer).count();
    let (honoured, refused) = (count(Answer::Honoured), count(Answer::Refused));
    let without = count(Answer::NotApplicable);
    format!(
        "{}\n{honoured} honoured, {refused} refused, {without} not applicable: accepted, without effect on a node \
         without an API server.\nas: the fields of that one, with the same answers.\n",
        columns(&rows, 0, style)
    )
}
