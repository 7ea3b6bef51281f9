//! Parses files of variables for `fileKeyRef` (`kubelet/util/env`). PURE: the caller reads the text.

/// The value of `key` in a file of `NAME='value'` lines; `Ok(None)` when the key is missing or empty.
///
/// Parsing ends at the key: syntax errors after it are ignored. The error includes the line; the kubelet writes it to its
/// log only.
pub(super) fn env_file_value(text: &str, key: &str) -> Result<Option<String>, String> {
    let wrong =
        |line: usize, what: &str| format!("invalid environment variable format at line {line}: {what}");
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or_else(|| wrong(number, "missing '='"))?;
        let trimmed = name.trim_end_matches([' ', '\t']);
        if trimmed.is_empty() {
            return Err(wrong(number, "empty variable name"));
        }
        if trimmed != name {
            return Err(wrong(number, "whitespace before '=' is not allowed"));
        }
        if value.starts_with([' ', '\t']) {
            // As in a shell, a blank after the equals sign assigns nothing.
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let mut rest = value
            .strip_prefix('\'')
            .ok_or_else(|| wrong(number, "value must be enclosed in single quotes"))?;
        let mut line_number = number;
        let mut value = String::new();
        let after = loop {
            if let Some((inside, after)) = rest.split_once('\'') {
                value.push_str(inside);
                break after;
            }
            value.push_str(rest);
            value.push('\n');
            (line_number, rest) = lines.next().ok_or_else(|| {
                format!(
                    "invalid environment variable format starting at line {number}: unclosed single quote"
                )
            })?;
        };
        let after = after.trim_start_matches([' ', '\t']);
        if !after.is_empty() && !after.starts_with('#') {
            return Err(wrong(line_number, "unexpected content after closing quote"));
        }
        if name == key {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stands_in_single_quotes() {
        let text = "# comment\n\n  A='one' # why\nB='two\nlines'\nEMPTY= 'x'\nC=''\nD='$A \\n'\n";
        for (key, value) in [
            ("A", Some("one")),
            ("B", Some("two\nlines")),
            ("EMPTY", None),
            ("C", None),
            ("D", Some("$A \\n")),
            ("NOPE", None),
        ] {
            assert_eq!(env_file_value(text, key).unwrap().as_deref(), value, "{key}");
        }
    }

    #[test]
    fn a_broken_line_is_an_error_until_the_key_is_found() {
        for (text, error) in [
            ("A", "at line 1: missing '='"),
            ("='x'", "at line 1: empty variable name"),
            ("\nA ='x'", "at line 2: whitespace before '=' is not allowed"),
            ("A=x", "at line 1: value must be enclosed in single quotes"),
            ("A='x' y", "at line 1: unexpected content after closing quote"),
            ("A='x\ny", "starting at line 1: unclosed single quote"),
        ] {
            let ours = env_file_value(text, "A").unwrap_err();
            assert!(ours.ends_with(error), "{ours}");
        }
        assert_eq!(env_file_value("A='x'\nbroken", "A"), Ok(Some("x".into())));
    }
}
