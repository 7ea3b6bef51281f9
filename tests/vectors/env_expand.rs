//! Set `env_expand`: `expansion.Expand` with `MappingFuncFor`.

use serde_json::{Value, json};

use crate::run_set;

#[test]
fn env_expand() {
    run_set("env_expand", |case| {
        let input = match case.input["input"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => bytes(&case.input["inputBytes"]),
        };
        let maps = case.input["maps"].as_array().cloned().unwrap_or_default();
        let lookup = |name: &[u8]| {
            let name = std::str::from_utf8(name).ok()?;
            maps.iter().find_map(|map| map[name].as_str()).map(str::as_bytes)
        };
        let ours = smolet::render::expand(&input, lookup);
        match String::from_utf8(ours) {
            Ok(text) if case.expected.get("resultBytes").is_none() => json!({"result": text}),
            Ok(text) => json!({"resultBytes": text.as_bytes()}),
            Err(error) => json!({"resultBytes": error.as_bytes()}),
        }
    });
}

fn bytes(list: &Value) -> Vec<u8> {
    serde_json::from_value(list.clone()).expect("a list of bytes")
}
