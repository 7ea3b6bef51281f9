//! PURE: escapes text for a terminal, and formats columns and times as kubectl.

use std::borrow::Cow;
use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::fmt::strtime;

use super::style::{Style, Tone};
use crate::limits::KIB;
use crate::model::Wall;

/// Placeholder of an empty value.
pub const NONE: &str = "<none>";

/// Blanks between two columns, as kubectl.
const GAP: usize = 3;
/// Least width of a column with its gap.
const COLUMN_MIN: usize = 6;

/// Whether the character moves the cursor, changes colours, hides or reorders text, or ends a line: names, messages and
/// annotations are untrusted, and an escape sequence in one must not reach the terminal.
pub fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text on one line, with every hostile character escaped (`\n`, `\u{1b}`).
pub fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::new();
    push_harmless(&mut safe, text);
    Cow::Owned(safe)
}

/// Appends the escaped text to `out`.
pub(super) fn push_harmless(out: &mut String, text: &str) {
    let width = |c: char| if is_hostile(c) { c.escape_default().len() } else { c.len_utf8() };
    make_room(out, text.chars().map(width).sum());
    for c in text.chars() {
        if is_hostile(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
}

/// Reserves the bytes and a little more, where doubling the string would take twice the memory: a manifest's text may consist of
/// characters to escape.
pub(super) fn make_room(out: &mut String, bytes: usize) {
    const LONG: usize = 64 * KIB;
    if bytes >= LONG && out.capacity() - out.len() < bytes {
        out.reserve_exact(bytes + LONG);
    }
}

/// A duration in kubectl's format (`duration.HumanDuration`). More than a second in the future is `<invalid>`: the clock was set
/// back since.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    let two = |a: i64, unit: char, b: i64, small: char| {
        if b == 0 { format!("{a}{unit}") } else { format!("{a}{unit}{b}{small}") }
    };
    if seconds < -1 {
        "<invalid>".to_owned()
    } else if seconds < 0 {
        "0s".to_owned()
    } else if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, 'm', seconds % 60, 's')
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        two(days, 'd', hours % 24, 'h')
    } else if days < 365 * 2 {
        format!("{days}d")
    } else if days < 365 * 8 {
        two(days / 365, 'y', days % 365, 'd')
    } else {
        format!("{}y", days / 365)
    }
}

/// Age of `then` at `now`; `<unknown>` without a time.
pub fn age(then: Option<Wall>, now: Wall) -> String {
    match then {
        None => "<unknown>".to_owned(),
        Some(then) => human_duration(now.0.saturating_sub(then.0) / 1_000_000_000),
    }
}

/// `Thu, 01 Jan 2026 00:00:00 +0000`, as kubectl describe formats times.
pub fn long_time(time: &Time) -> String {
    strtime::format("%a, %d %b %Y %H:%M:%S +0000", time.0).unwrap_or_else(|_| "<invalid>".to_owned())
}

/// A cell: its text and its colour.
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell in a tone; the text is escaped.
    pub fn toned(text: &str, tone: Tone) -> Self {
        Self { text: harmless(text).into_owned(), tone }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

/// Formats rows of cells as aligned columns; the last column is not padded. Each row is indented by `indent` blanks.
pub fn columns(rows: &[Vec<Cell>], indent: usize, style: Style) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows.iter().filter(|_| !style.tabs()) {
        for (column, cell) in row.iter().enumerate() {
            let width = (cell.text.chars().count() + GAP).max(COLUMN_MIN);
            match widths.get_mut(column) {
                Some(widest) => *widest = width.max(*widest),
                None => widths.push(width),
            }
        }
    }
    let mut out = String::new();
    for row in rows {
        let _ = write!(out, "{:indent$}", "");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(out, "{}", style.paint(cell.tone, &cell.text));
            if column + 1 < row.len() && style.tabs() {
                out.push('\t');
            } else if column + 1 < row.len() {
                let blanks = widths[column].saturating_sub(cell.text.chars().count());
                let _ = write!(out, "{:blanks$}", "");
            }
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_kubectl_writes_them() {
        const DAY: i64 = 86_400;
        for (seconds, shown) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (179 * 60 + 59, "179m"),
            (3 * 3600, "3h"),
            (7 * 3600 + 59 * 60, "7h59m"),
            (8 * 3600 + 59 * 60, "8h"),
            (47 * 3600, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 3 * 3600, "2d3h"),
            (8 * DAY, "8d"),
            (729 * DAY, "729d"),
            (730 * DAY, "2y"),
            (731 * DAY, "2y1d"),
            (8 * 365 * DAY + 5 * DAY, "8y"),
        ] {
            assert_eq!(human_duration(seconds), shown, "{seconds}");
        }
        assert_eq!(age(None, Wall(0)), "<unknown>");
        assert_eq!(age(Some(Wall(i64::MIN)), Wall(i64::MAX)), "292y", "no overflow");
    }

    #[test]
    fn nothing_hostile_reaches_the_terminal() {
        for (text, safe) in [
            ("plain ä 漢", "plain ä 漢"),
            ("\x1b[2J", "\\u{1b}[2J"),
            ("a\r\nb\tc", "a\\r\\nb\\tc"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}evil", "\\u{202e}evil"),
            ("x\u{7f}\0", "x\\u{7f}\\u{0}"),
            ("a\u{2028}b", "a\\u{2028}b"),
        ] {
            assert_eq!(harmless(text), safe);
            assert!(!harmless(text).contains(is_hostile));
        }
        let every: String = (0..=0xff_u32).filter_map(char::from_u32).collect();
        assert!(!harmless(&every).contains(is_hostile));
    }

    #[test]
    fn columns_are_straight_with_and_without_colours() {
        let rows = || {
            vec![
                vec!["A".into(), "LONG HEADER".into(), "END".into()],
                vec![Cell::toned("longer cell", Tone::Good), "b".into(), "".into()],
            ]
        };
        assert_eq!(columns(&rows(), 0, Style::PLAIN), "A             LONG HEADER   END\nlonger cell   b\n");
        assert_eq!(
            columns(&rows(), 2, Style::for_output(true, None)),
            "  A             LONG HEADER   END\n  \x1b[32mlonger cell\x1b[0m   b\n"
        );
    }
}
