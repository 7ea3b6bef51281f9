//! Every field of a pod and what becomes of it: what `smolet check --explain-fields` prints. PURE.
//!
//! `fields.txt` has a line for each field, in the API's order, indented below the field it belongs to:
//!
//! ```text
//! NAME              honoured
//! NAME: WORDS       honoured, and what is to be known of it
//! NAME - WHY        not applicable
//! NAME = PATH       the same fields as PATH has, with the same answers; the lines below it are exceptions
//! ```
//!
//! What is refused, and why, stands in `unsupported` alone, which the check goes by: a row there overrides the lines
//! that it covers. So the table says what the check does, and a row that leaves leaves a line that answers.

use super::unsupported;

const LINES: &str = include_str!("fields.txt");

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It does what the API says.
    Honoured,
    /// A manifest that has it is refused.
    Refused,
    /// It is accepted and has no effect: nothing on a node without an API server could heed it.
    NotApplicable,
    /// It has the fields, and the answers, of the field that the words name.
    As,
}

impl Answer {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Honoured => "honoured",
            Self::Refused => "refused",
            Self::NotApplicable => "not applicable",
            Self::As => "as",
        }
    }
}

/// One line of the table. It answers for everything below the field that has no line of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// `spec.containers[*].image`; `[*]` stands for each item of a list of objects.
    pub path: String,
    /// What becomes of it.
    pub answer: Answer,
    /// Why, or what to do instead; may be empty.
    pub words: &'static str,
}

/// True when `below` is the field `above` or belongs to it: a field of its, an item, a key.
pub fn covers(above: &str, below: &str) -> bool {
    below.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The whole table, in the API's order.
pub fn fields() -> Vec<Field> {
    let refused = unsupported::table();
    let refusal = |(path, why): &(String, &'static str)| Field {
        path: path.clone(),
        answer: Answer::Refused,
        words: why,
    };
    let mut fields: Vec<Field> = Vec::new();
    let mut path = String::new();
    // Where in `path` each field above the line ends.
    let mut ends: Vec<usize> = Vec::new();
    let mut lines = LINES.lines().peekable();
    while let Some(line) = lines.next() {
        let depth = depth(line);
        ends.truncate(depth);
        path.truncate(ends.last().copied().unwrap_or_default());
        let (name, answer, words) = read(&line[depth..]);
        if depth > 0 {
            path.push('.');
        }
        path.push_str(name);
        ends.push(path.len());
        let has_lines_below = lines.peek().is_some_and(|next| self::depth(next) > depth);
        if has_lines_below && answer != Answer::As {
            continue;
        }
        if let Some(row) = refused.iter().find(|(row, _)| covers(row, &path)) {
            // Once for all that it covers.
            if fields.last().is_none_or(|last| last.path != row.0) {
                fields.push(refusal(row));
            }
            continue;
        }
        fields.push(Field { path: path.clone(), answer, words });
        fields.extend(refused.iter().filter(|(row, _)| covers(&path, row)).map(refusal));
    }
    fields
}

fn depth(line: &str) -> usize {
    line.bytes().take_while(|byte| *byte == b' ').count()
}

/// A line behind its indentation: name, answer, words.
fn read(line: &'static str) -> (&'static str, Answer, &'static str) {
    let (name, rest) = line.split_at(line.find([':', ' ']).unwrap_or(line.len()));
    for (mark, answer) in [(": ", Answer::Honoured), (" - ", Answer::NotApplicable), (" = ", Answer::As)] {
        if let Some(words) = rest.strip_prefix(mark) {
            return (name, answer, words);
        }
    }
    (name, Answer::Honoured, "")
}
