//! The generated part of a page: between its two comments, of which the first says from what and how.

/// Compares that part with what it should be, or writes it (`SMOLET_DOCS=write`).
pub(crate) fn compare(page: &str, from: &str, wanted: &str) {
    let begin =
        format!("<!-- generated from {from}: SMOLET_DOCS=write cargo test --locked --test fields -->\n");
    let end = "<!-- end of the generated part -->\n";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let Some((above, rest)) = text.split_once(&begin) else { panic!("{page} has no line {begin}") };
    let Some((found, below)) = rest.split_once(end) else { panic!("{page} has no line {end}") };
    let wanted = format!("\n{wanted}\n");
    if std::env::var_os("SMOLET_DOCS").is_some_and(|what| what == "write") {
        std::fs::write(&path, format!("{above}{begin}{wanted}{end}{below}")).unwrap();
    } else {
        assert!(found == wanted, "{page} is not what {from} says: {begin}");
    }
}
