//! Rates (`rate`).

/// A token bucket's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens added per second; not 0.
    pub per_second: u32,
    /// Capacity of the bucket; not 0.
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
