//! The pod argument of a command.

use super::checked_name;
use crate::printers::text::harmless;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct PodArg {
    /// The pod: NAME, NAMESPACE/NAME or pod/NAME, with or without the node's name behind it
    pod: String,
    /// Its namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

impl PodArg {
    /// The pod with the full name that the agent has for it.
    pub(super) fn of(namespace: &str, name: &str) -> Self {
        Self { pod: name.to_owned(), namespace: Some(namespace.to_owned()) }
    }

    /// `pod=NAME&namespace=NAMESPACE`, for the agent.
    ///
    /// # Errors
    /// Invalid names, or two namespaces.
    pub(super) fn query(&self) -> Result<String, String> {
        query(&self.pod, self.namespace.as_deref())
    }
}

/// The same for a pod and a namespace.
///
/// # Errors
/// As [`PodArg::query`].
pub(super) fn query(pod: &str, namespace: Option<&str>) -> Result<String, String> {
    let (namespace, name) = parse(pod, namespace)?;
    let namespace = namespace.map(|namespace| format!("&namespace={namespace}"));
    Ok(format!("pod={name}{}", namespace.unwrap_or_default()))
}

/// The namespace, if given, and the name in `pod`: NAME, NAMESPACE/NAME or pod/NAME.
///
/// # Errors
/// As [`PodArg::query`].
pub(super) fn parse<'a>(
    pod: &'a str,
    namespace: Option<&'a str>,
) -> Result<(Option<&'a str>, &'a str), String> {
    let pod = pod.strip_prefix("pod/").unwrap_or(pod);
    let (namespace, name) = match pod.split_once('/') {
        Some((of_pod, _)) if namespace.is_some_and(|given| given != of_pod) => {
            return Err(format!("{} and -n name two namespaces; give one", harmless(pod)));
        }
        Some((of_pod, name)) => (Some(of_pod), name),
        None => (namespace, pod),
    };
    Ok((namespace.map(checked_name).transpose()?, checked_name(name)?))
}
