//! PURE: colours and column layout.

use std::fmt::{self, Display};

/// The style of output. Text is measured before it is coloured, so columns stay aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    colour: bool,
    /// Fields are separated by one tab instead of aligned.
    tabs: bool,
}

/// The meaning of a word, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As desired.
    Good,
    /// In progress, or worth attention.
    Wait,
    /// An error.
    Bad,
    /// A heading.
    Heading,
    /// No meaning.
    Plain,
}

impl Style {
    /// No colours, ever: for files, pipes and tests.
    pub const PLAIN: Self = Self { colour: false, tabs: false };

    /// Colours only on a terminal, and only when `NO_COLOR` is unset or empty (no-color.org).
    pub fn for_output(is_terminal: bool, no_color: Option<&str>) -> Self {
        Self { colour: is_terminal && no_color.unwrap_or("").is_empty(), tabs: false }
    }

    /// The same for another program: fields separated by one tab, because a field may contain blanks (`2 (5m ago)`).
    #[must_use]
    pub fn with_tabs(self) -> Self {
        Self { tabs: true, ..self }
    }

    /// Fields are separated by one tab.
    pub fn tabs(self) -> bool {
        self.tabs
    }

    /// `text` in the tone's colour, if colours are on. The text must be escaped already.
    pub fn paint(self, tone: Tone, text: &str) -> impl Display + use<'_> {
        Painted { code: if self.colour { code(tone) } else { "" }, text }
    }
}

fn code(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "32",
        Tone::Wait => "33",
        Tone::Bad => "31",
        Tone::Heading => "1",
        Tone::Plain => "",
    }
}

struct Painted<'a> {
    code: &'static str,
    text: &'a str,
}

impl Display for Painted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            "" => f.write_str(self.text),
            code => write!(f, "\x1b[{code}m{}\x1b[0m", self.text),
        }
    }
}

/// The tone of a pod's STATUS.
pub fn status_tone(status: &str) -> Tone {
    match status.strip_prefix("Init:").unwrap_or(status) {
        "Running" | "Completed" | "Succeeded" => Tone::Good,
        "Pending" | "ContainerCreating" | "PodInitializing" | "Terminating" | "NotReady" | "Unknown" => {
            Tone::Wait
        }
        // `Init:1/2`: in progress.
        other if other.split_once('/').is_some_and(|(n, of)| is_number(n) && is_number(of)) => Tone::Wait,
        _ => Tone::Bad,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_need_a_terminal_and_no_objection() {
        for (is_terminal, no_color, shown) in [
            (true, None, "\x1b[32mRunning\x1b[0m"),
            (true, Some(""), "\x1b[32mRunning\x1b[0m"),
            (true, Some("1"), "Running"),
            (false, None, "Running"),
        ] {
            let style = Style::for_output(is_terminal, no_color);
            assert_eq!(style.paint(Tone::Good, "Running").to_string(), shown);
        }
        let coloured = Style::for_output(true, None);
        assert_eq!(coloured.paint(Tone::Plain, "x").to_string(), "x");
        assert_eq!(Style::default(), Style::PLAIN);
    }

    #[test]
    fn statuses_have_the_tone_they_deserve() {
        for (status, tone) in [
            ("Running", Tone::Good),
            ("Completed", Tone::Good),
            ("Pending", Tone::Wait),
            ("Init:0/2", Tone::Wait),
            ("Init:CrashLoopBackOff", Tone::Bad),
            ("CrashLoopBackOff", Tone::Bad),
            ("Signal:9", Tone::Bad),
            ("Terminating", Tone::Wait),
            ("Init:a/b", Tone::Bad),
        ] {
            assert_eq!(status_tone(status), tone, "{status}");
        }
    }
}
