//! How often something may happen (`rate`).

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So often a second; not 0.
    pub per_second: u32,
    /// So often at once; not 0.
    pub burst: u32,
}

/// The rates of requests to an API server; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiRates {
    /// `kubeAPIQPS` and `kubeAPIBurst`: all requests but heartbeats and events.
    pub requests: Option<Rate>,
    /// `eventRecordQPS` and `eventBurst`.
    pub events: Option<Rate>,
}
