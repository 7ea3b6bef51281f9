//! `smolet doctor`: whether this machine can run pods, and the remedies if it cannot.
//!
//! ```text
//!     the machine, the runtime ──► facts (I/O) ──► judge (PURE) ──► findings ──► lines or JSON (PURE)
//! ```
//!
//! Works with a running agent and without one: it reads the machine and the runtime, of the agent only its embedded runtime, and changes nothing.

mod announcements;
pub mod facts;
mod forward;
pub mod judge;
mod modules;

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::printers::style::{Style, Tone};
use crate::printers::text::{Cell, columns};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No problem.
    Ok,
    /// Pods run, but something may fail later or could not be checked.
    Warning,
    /// Pods do not run, not all of them, or not safely.
    Problem,
}

impl Level {
    /// Its name in the output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Self::Ok => Tone::Good,
            Self::Warning => Tone::Wait,
            Self::Problem => Tone::Bad,
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub level: Level,
    /// The name of the check; stable, for scripts.
    pub check: &'static str,
    /// The result in a sentence.
    pub message: String,
    /// The remedy; empty when none is needed, or when the message has it.
    pub mend: String,
}

impl Finding {
    /// A finding without a problem.
    pub(crate) fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Ok, check, message: message.into(), mend: String::new() }
    }

    /// A finding that may become a problem.
    pub(crate) fn warning(check: &'static str, message: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { level: Level::Warning, check, message: message.into(), mend: mend.into() }
    }

    /// A problem.
    pub(crate) fn problem(check: &'static str, message: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { level: Level::Problem, check, message: message.into(), mend: mend.into() }
    }
}

/// Whether any finding is a problem.
pub fn has_problems(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.level == Level::Problem)
}

/// A line for each finding, and the count of each severity. PURE.
pub fn lines(findings: &[Finding], style: Style) -> String {
    let row = |finding: &Finding| {
        let mut text = finding.message.clone();
        if !finding.mend.is_empty() {
            text.push_str(": ");
            text.push_str(&finding.mend);
        }
        vec![Cell::toned(finding.level.as_str(), finding.level.tone()), finding.check.into(), text.into()]
    };
    let rows: Vec<Vec<Cell>> = findings.iter().map(row).collect();
    let mut out = columns(&rows, 0, style);
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, warnings) = (count(Level::Problem), count(Level::Warning));
    let plural = |count| if count == 1 { "" } else { "s" };
    let _ = writeln!(out, "\n{problems} problem{}, {warnings} warning{}", plural(problems), plural(warnings));
    out
}

/// `-o json`: `{"findings": [{"level", "check", "message", "mend"}]}`. PURE.
pub fn json(findings: &[Finding]) -> String {
    let one = |finding: &Finding| {
        json!({
            "level": finding.level.as_str(),
            "check": finding.check,
            "message": finding.message,
            "mend": finding.mend,
        })
    };
    let all: Vec<Value> = findings.iter().map(one).collect();
    format!("{}\n", json!({"findings": all}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::ok("cgroups", "version 2"),
            Finding::warning("swap", "/swapfile\x1b[2J is on", "swapoff -a"),
            Finding::problem("cni", "no configuration", "put one into /etc/cni/net.d"),
        ]
    }

    #[test]
    fn each_finding_is_one_harmless_line_with_its_mend() {
        assert_eq!(
            lines(&findings(), Style::PLAIN),
            "ok        cgroups   version 2\n\
             warning   swap      /swapfile\\u{1b}[2J is on: swapoff -a\n\
             problem   cni       no configuration: put one into /etc/cni/net.d\n\
             \n\
             1 problem, 1 warning\n"
        );
        assert!(has_problems(&findings()));
        assert!(!has_problems(&findings()[..2]));
    }

    #[test]
    fn for_scripts_it_is_json() {
        let read: Value = serde_json::from_str(&json(&findings())).unwrap();
        assert_eq!(read["findings"][2]["level"], "problem");
        assert_eq!(read["findings"][2]["mend"], "put one into /etc/cni/net.d");
        assert_eq!(read["findings"][0]["mend"], "");
    }
}
