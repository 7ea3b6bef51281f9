//! Image garbage collection (`ValidateKubeletConfiguration`: `imageGC*`, `imageMinimumGCAge`, `imageMaximumGCAge`), and that of
//! dead containers (the kubelet's flags `--minimum-container-ttl-duration`, `--maximum-dead-containers*`).

use super::kubelet::{GoDuration, parse_go_duration};
use super::{ConfigError, FileSettings, Flags};
use crate::gc::GcPolicy;
use crate::image::gc::ImageGcPolicy;
use crate::model::quantity::Quantity;

/// The image garbage collection of the flags and the file.
pub(super) fn image_gc(flags: &Flags, file: &FileSettings) -> Result<ImageGcPolicy, ConfigError> {
    of_images(
        [file.int("imageGCHighThresholdPercent"), file.int("imageGCLowThresholdPercent")],
        [file.time("imageMinimumGCAge"), file.time("imageMaximumGCAge")],
        flags.image_gc_min_available.as_deref(),
    )
}

/// The garbage collection of dead containers of the flags.
pub(super) fn dead_containers(flags: &Flags) -> Result<GcPolicy, ConfigError> {
    of_containers(
        flags.minimum_container_ttl_duration.as_deref(),
        [flags.maximum_dead_containers_per_container, flags.maximum_dead_containers],
    )
}

/// High and low threshold, least and greatest age, and the flag's bytes; `None` = not set. A greatest age of 0 means none.
fn of_images(
    [high, low]: [Option<i32>; 2],
    [min_age, max_age]: [Option<GoDuration>; 2],
    available_min: Option<&str>,
) -> Result<ImageGcPolicy, ConfigError> {
    let default = ImageGcPolicy::default();
    let percent = |name: &str, given: Option<i32>, default: u8| match given {
        None => Ok(default),
        Some(given) => match u8::try_from(given) {
            Ok(percent) if percent <= 100 => Ok(percent),
            Ok(_) | Err(_) => Err(ConfigError(format!("{name}: {given}: must be between 0 and 100"))),
        },
    };
    let high_percent = percent("imageGCHighThresholdPercent", high, default.high_percent)?;
    let low_percent = percent("imageGCLowThresholdPercent", low, default.low_percent)?;
    if low_percent >= high_percent {
        return Err(ConfigError(format!(
            "imageGCLowThresholdPercent: {low_percent}: must be less than imageGCHighThresholdPercent {high_percent}"
        )));
    }
    let min_age = GoDuration::or(min_age, default.min_age);
    let max_age = max_age.map(|age| age.0).filter(|age| !age.is_zero());
    if let Some(max) = max_age.filter(|max| *max <= min_age) {
        return Err(ConfigError(format!(
            "imageMaximumGCAge: {} s: must be greater than imageMinimumGCAge {} s",
            max.as_secs_f64(),
            min_age.as_secs_f64()
        )));
    }
    let bytes = |text: &str| Quantity::parse(text).ok().and_then(|bytes| u64::try_from(bytes.value()).ok());
    let available_min = match available_min {
        None => default.available_min,
        Some(text) => bytes(text).ok_or_else(|| {
            ConfigError(format!("--image-gc-min-available: {text:?}: must be a quantity such as 512Mi, or 0"))
        })?,
    };
    Ok(ImageGcPolicy { high_percent, low_percent, available_min, min_age, max_age })
}

/// Least age, and the greatest number of each container and of all; a negative number means no limit.
fn of_containers(
    min_age: Option<&str>,
    [of_each, of_all]: [Option<i32>; 2],
) -> Result<GcPolicy, ConfigError> {
    let default = GcPolicy::default();
    let min_age = match min_age {
        None => default.min_age,
        Some(text) => parse_go_duration(text).ok_or_else(|| {
            ConfigError(format!(
                "--minimum-container-ttl-duration: {text:?}: must be a duration such as 10s or 2h45m"
            ))
        })?,
    };
    let most = |given: Option<i32>, default| given.map_or(default, |count| usize::try_from(count).ok());
    Ok(GcPolicy {
        min_age,
        per_container_max: most(of_each, default.per_container_max),
        containers_max: most(of_all, default.containers_max),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn thresholds_and_ages_are_checked_as_the_kubelet_checks_them() {
        let seconds = |age: Option<u64>| age.map(|age| GoDuration(Duration::from_secs(age)));
        for (percents, ages, floor, wanted) in [
            ([None, None], [None, None], None, Ok((85, 80, 512 << 20, 120, None))),
            ([Some(60), Some(50)], [Some(1), Some(3600)], Some("0"), Ok((60, 50, 0, 1, Some(3600)))),
            ([None, None], [Some(0), None], None, Ok((85, 80, 512 << 20, 120, None))),
            ([Some(100), None], [None, Some(0)], Some("1Gi"), Ok((100, 80, 1 << 30, 120, None))),
            ([Some(101), None], [None, None], None, Err("imageGCHighThresholdPercent: 101: must be between")),
            ([None, Some(-1)], [None, None], None, Err("imageGCLowThresholdPercent: -1: must be between")),
            ([Some(80), None], [None, None], None, Err("imageGCLowThresholdPercent: 80: must be less than")),
            ([None, None], [None, Some(120)], None, Err("imageMaximumGCAge: 120 s: must be greater")),
            ([None, None], [None, None], Some("-1"), Err("--image-gc-min-available: \"-1\": must be")),
            ([None, None], [None, None], Some("much"), Err("--image-gc-min-available: \"much\": must be")),
        ] {
            let found = of_images(percents, ages.map(seconds), floor).map(|p| {
                let ages = (p.min_age.as_secs(), p.max_age.map(|age| age.as_secs()));
                (p.high_percent, p.low_percent, p.available_min, ages.0, ages.1)
            });
            match (found, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
                (Err(found), Err(wanted)) => assert!(found.0.starts_with(wanted), "{found}"),
                (found, _) => panic!("{percents:?} {ages:?} {floor:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn dead_containers_are_kept_as_the_flags_say() {
        let default = of_containers(None, [None; 2]).expect("valid");
        assert_eq!(default, GcPolicy::default());
        let all = of_containers(Some("1m30s"), [Some(-1), Some(-1)]).expect("valid");
        let min_age = Duration::from_secs(90);
        assert_eq!(all, GcPolicy { min_age, per_container_max: None, containers_max: None });
        let few = of_containers(Some("0"), [Some(0), Some(7)]).expect("valid");
        let min_age = Duration::ZERO;
        assert_eq!(few, GcPolicy { min_age, per_container_max: Some(0), containers_max: Some(7) });
        let error = of_containers(Some("soon"), [None; 2]).expect_err("no duration");
        assert!(error.0.starts_with("--minimum-container-ttl-duration: \"soon\": must be"), "{error}");
    }
}
