//! The pod that a command is about.

use super::checked_name;
use super::text::harmless;

#[derive(Debug, clap::Args)]
pub(super) struct PodArg {
    /// The pod: NAME, NAMESPACE/NAME or pod/NAME, with or without the node's name behind it
    pod: String,
    /// Its namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

impl PodArg {
    /// `pod=NAME&namespace=NAMESPACE`, for the agent.
    ///
    /// # Errors
    /// A sentence: those are no names, or two namespaces.
    pub(super) fn query(&self) -> Result<String, String> {
        let pod = self.pod.strip_prefix("pod/").unwrap_or(&self.pod);
        let (namespace, name) = match pod.split_once('/') {
            Some((namespace, _)) if self.namespace.as_deref().is_some_and(|given| given != namespace) => {
                return Err(format!("{} and -n name two namespaces; give one", harmless(pod)));
            }
            Some((namespace, name)) => (Some(namespace), name),
            None => (self.namespace.as_deref(), pod),
        };
        let name = checked_name(name)?;
        let namespace = namespace.map(checked_name).transpose()?;
        let namespace = namespace.map(|namespace| format!("&namespace={namespace}"));
        Ok(format!("pod={name}{}", namespace.unwrap_or_default()))
    }
}
