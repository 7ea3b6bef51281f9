//! Finds pods by the names that users give.

use super::Pods;
use super::record::Record;
use crate::cri::Runtime;
use crate::printers::text::harmless;
use crate::server::PodCursor;
use crate::sync::worker::Life;

impl<R: Runtime + 'static> Pods<R> {
    /// The records of a namespace or of all, in the order of the output.
    pub(in crate::node) fn sorted(&self, namespace: Option<&str>) -> Vec<&Record> {
        let of_namespace = |record: &&Record| namespace.is_none_or(|n| n == &*record.worker.key().namespace);
        let mut records: Vec<&Record> = self.records.values().filter(of_namespace).collect();
        records.sort_by_key(|record| PodCursor::of(record.worker.key()));
        records
    }

    /// The pod of that name, with or without the suffix `-NODENAME`.
    ///
    /// # Errors
    /// No pod or several pods match; the text is one sentence.
    pub(in crate::node) fn find_record(
        &self,
        name: &str,
        namespace: Option<&str>,
    ) -> Result<&Record, String> {
        let full_name = format!("{name}-{}", self.identity.node_name());
        let named = |record: &&Record| {
            let key = record.worker.key();
            (*key.name == *name || *key.name == *full_name) && namespace.is_none_or(|n| n == &*key.namespace)
        };
        let mut found: Vec<&Record> = self.records.values().filter(named).collect();
        // A pod that waits for its name shares it with the terminating one, which is shown first.
        found.sort_by_key(|record| record.worker.life() == Life::Waiting);
        let Some(record) = found.first() else { return Err(self.not_found_reason(name, namespace)) };
        if let Some(other) = found.iter().find(|r| r.worker.key().namespace != record.worker.key().namespace)
        {
            return Err(format!(
                "{name} stands in several namespaces ({}, {}); say which with -n\n",
                record.worker.key().namespace,
                other.worker.key().namespace
            ));
        }
        Ok(record)
    }

    /// The message for an unknown pod, with the related errors in manifests.
    fn not_found_reason(&self, name: &str, namespace: Option<&str>) -> String {
        let mut out = match namespace {
            Some(namespace) => format!("there is no pod {name} in namespace {namespace}"),
            None => format!("there is no pod {name}"),
        };
        let named = |pod: &str| pod.rsplit('/').next() == Some(name);
        let about = self.desired.problems().filter(|p| p.pod.as_deref().is_none_or(named));
        for (index, problem) in about.enumerate() {
            out.push_str(if index == 0 { "; the manifests have problems:\n" } else { "\n" });
            out.push_str(&harmless(&problem.to_string()));
        }
        out.push('\n');
        out
    }
}
