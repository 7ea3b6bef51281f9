//! Image names. PURE: splits and completes them as the kubelet does.
