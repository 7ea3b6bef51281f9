//! Selects the container of a command (kubectl `podcmd`). PURE.

use crate::model::ContainerKind;

/// The annotation with the default container.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The index in `all` of the named or default container, and the message for the user, a line each
/// (`FindOrDefaultContainerByName`). `all` are the pod's containers, in the spec's order within each list; `annotated` is the
/// value of [`DEFAULT_CONTAINER`].
///
/// # Errors
/// There is no such container, or none at all; with the existing names.
pub fn choose(
    pod: &str,
    all: &[(ContainerKind, &str)],
    wanted: Option<&str>,
    annotated: Option<&str>,
) -> Result<(usize, Option<String>), String> {
    let at = |name: &str| all.iter().position(|(_, known)| *known == name);
    if let Some(name) = wanted.filter(|name| !name.is_empty()) {
        let none = || format!("container {name} is not valid for pod {pod} out of: {}", names(all));
        return at(name).map(|place| (place, None)).ok_or_else(none);
    }
    let annotated = annotated.filter(|name| !name.is_empty());
    if let Some(place) = annotated.and_then(at) {
        return Ok((place, None));
    }
    let first = all.iter().position(|(kind, _)| *kind == ContainerKind::App);
    let first = first.ok_or_else(|| format!("pod {pod} has no containers yet"))?;
    let missing = annotated.map(|name| format!("Default container name {name:?} not found in pod {pod}"));
    let defaulted =
        (all.len() > 1).then(|| format!("Defaulted container {:?} out of: {}", all[first].1, names(all)));
    let note = missing.into_iter().chain(defaulted).collect::<Vec<_>>().join("\n");
    Ok((first, (!note.is_empty()).then_some(note)))
}

/// `AllContainerNames`.
fn names(all: &[(ContainerKind, &str)]) -> String {
    let of = |wanted: ContainerKind, suffix: &'static str| {
        let of_kind = all.iter().filter(move |(kind, _)| *kind == wanted);
        of_kind.map(move |(_, name)| format!("{name}{suffix}"))
    };
    let apps = of(ContainerKind::App, "");
    let all = apps.chain(of(ContainerKind::Ephemeral, " (ephem)")).chain(of(ContainerKind::Init, " (init)"));
    all.collect::<Vec<_>>().join(", ")
}
