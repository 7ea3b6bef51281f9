//! The health check of a gRPC server (`pkg/probe/grpc`, gRPC's `health.proto`).

use std::time::Duration;

use super::run::Answer;
use crate::grpc::{Code, GrpcError, Once, unary_once};
use crate::limits::PROBE_ANSWER_BYTES_MAX;
use crate::net::{Address, Lookups};
use crate::stream::stream;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `HealthCheckResponse.ServingStatus`, by number.
const SERVING_STATUS: [&str; 4] = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];

/// Checks the health of a service; the caller enforces the timeout. In the kubelet's wording.
///
/// Differs from the kubelet, which retries the connection until the timeout: an unreachable server fails at once.
pub(super) async fn check(lookups: &Lookups, at: &Address, service: &str, timeout: Duration) -> Answer {
    let authority = at.to_string();
    let socket = match lookups.connect(at).await {
        Ok(socket) => {
            socket.set_ration(PROBE_ANSWER_BYTES_MAX);
            stream(socket)
        }
        Err(error) => {
            return Answer::Failure(format!("error: failed to connect service at \"{authority}\": {error}"));
        }
    };
    let call = Once {
        method: "/grpc.health.v1.Health/Check",
        authority: &authority,
        user_agent: "kube-probe/1.36",
        deadline: timeout,
    };
    let request = HealthCheckRequest { service: service.to_owned() };
    match unary_once::<HealthCheckResponse>(socket, call, &request).await {
        Ok(HealthCheckResponse { status: 1 }) => Answer::Success,
        Ok(HealthCheckResponse { status }) => {
            let name = usize::try_from(status).ok().and_then(|status| SERVING_STATUS.get(status));
            let name = name.map_or_else(|| status.to_string(), |name| (*name).to_owned());
            Answer::Failure(format!("service unhealthy (responded with \"{name}\")"))
        }
        Err(GrpcError::Status { code: Code::UNIMPLEMENTED, message }) => Answer::Failure(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        )),
        Err(GrpcError::Status { code: Code::DEADLINE_EXCEEDED, .. }) => Answer::Failure(late(timeout)),
        Err(error) => Answer::Failure(format!("error: health rpc probe failed: {error}")),
    }
}

/// The error of a check that timed out.
pub(super) fn late(timeout: Duration) -> String {
    format!("timeout: health rpc did not complete within {}s", timeout.as_secs())
}
