//! Validation of static pods. PURE.
use super::decode::FieldError;
use super::identity::NodeName;
use k8s_openapi::api::core::v1::Pod;
/// a
pub fn as_written(_: &Pod, _: &NodeName) -> Vec<FieldError> {
    Vec::new()
}
/// a
pub fn pod(_: &Pod) -> Vec<FieldError> {
    Vec::new()
}
