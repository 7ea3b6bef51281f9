//! Defaults.
/// a
pub fn set(_: &mut k8s_openapi::api::core::v1::Pod) {}
