//! PURE: how a command ended, from and to the status on the server's error stream (client-go `remotecommand/v4.go`).

use serde_json::{Value, json};

/// The command's exit code.
///
/// # Errors
/// Why the command did not run, or that the status cannot be parsed.
pub fn exit_code(status: &[u8]) -> Result<u8, String> {
    let unclear = |what: &str| Err(format!("the runtime does not say how the command ended: {what}"));
    let Ok(status) = serde_json::from_slice::<Value>(status) else { return unclear("no status") };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match status["status"].as_str() {
        Some("Success") => return Ok(0),
        Some("Failure") => {}
        _ => return unclear("neither Success nor Failure"),
    }
    if status["reason"] != "NonZeroExitCode" {
        return Err(text(&status["message"]));
    }
    let causes = status["details"]["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
    match causes.iter().find(|cause| cause["reason"] == "ExitCode") {
        None => unclear("no exit code"),
        Some(cause) => text(&cause["message"]).parse().or_else(|_| unclear("no valid exit code")),
    }
}

/// The status of a command that ended with that code, or did not run (`remotecommand`'s `writeStatus`).
pub fn of_ending(ending: &Result<i32, String>) -> Value {
    match ending {
        Ok(0) => json!({"metadata": {}, "status": "Success"}),
        Ok(code) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: exit code {code}"),
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Err(why) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("Internal error occurred: {why}"),
            "reason": "InternalError",
            "details": {"causes": [{"message": why}]},
            "code": 500,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let read = |ending| exit_code(of_ending(&ending).to_string().as_bytes());
        assert_eq!((read(Ok(0)), read(Ok(42))), (Ok(0), Ok(42)));
        assert_eq!(read(Err("no sh".to_owned())), Err("Internal error occurred: no sh".to_owned()));
    }

    #[test]
    fn the_exit_code_or_the_reason_is_found_in_the_status() {
        let coded = |code: &str| {
            format!(
                r#"{{"metadata":{{}},"status":"Failure","message":"command terminated with non-zero exit code: exit {code}",
                "reason":"NonZeroExitCode","details":{{"causes":[{{"reason":"Other","message":"9"}},
                {{"reason":"ExitCode","message":"{code}"}}]}}}}"#
            )
        };
        let unclear = "the runtime does not say how the command ended: ";
        for (status, expected) in [
            (r#"{"metadata":{},"status":"Success"}"#.to_owned(), Ok(0)),
            (coded("42"), Ok(42)),
            (coded("255"), Ok(255)),
            (coded("256"), Err(format!("{unclear}no valid exit code"))),
            (coded("-1"), Err(format!("{unclear}no valid exit code"))),
            (
                r#"{"status":"Failure","reason":"InternalError","message":"Internal error occurred: no sh","code":500}"#
                    .to_owned(),
                Err("Internal error occurred: no sh".to_owned()),
            ),
            (
                r#"{"status":"Failure","reason":"NonZeroExitCode"}"#.to_owned(),
                Err(format!("{unclear}no exit code")),
            ),
            (r#"{"status":"Maybe"}"#.to_owned(), Err(format!("{unclear}neither Success nor Failure"))),
            ("exec failed".to_owned(), Err(format!("{unclear}no status"))),
            (String::new(), Err(format!("{unclear}no status"))),
        ] {
            assert_eq!(exit_code(status.as_bytes()), expected, "{status}");
        }
    }
}
