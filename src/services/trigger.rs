//! The time of the change that caused an EndpointSlice to be written.

use std::{collections::BTreeMap, time::SystemTime};

use k8s_openapi::jiff::Timestamp;

/// Annotation with the time of the change for which the endpoints controller
/// wrote the slice (`core/v1 EndpointsLastChangeTriggerTime`).
const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The time of the change that caused a slice to be written, if its author gave one. It says
/// nothing about endpoints, so all values are equal: a slice in which only this differs did not
/// change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trigger(Option<SystemTime>);

impl Trigger {
    /// Reads the annotation. A malformed one counts as missing: it is only for statistics.
    pub(super) fn of(annotations: Option<&BTreeMap<String, String>>) -> Trigger {
        let annotation = annotations.and_then(|a| a.get(ANNOTATION));
        Trigger(annotation.and_then(|text| Some(text.parse::<Timestamp>().ok()?.into())))
    }

    /// When the change happened; `None` if unknown.
    pub fn time(self) -> Option<SystemTime> {
        self.0
    }
}

impl PartialEq for Trigger {
    fn eq(&self, _: &Trigger) -> bool {
        true
    }
}

impl Eq for Trigger {}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn rfc_3339_is_read_and_anything_else_is_none() {
        let of = |text: &str| {
            let annotations = BTreeMap::from([(ANNOTATION.to_owned(), text.to_owned())]);
            Trigger::of(Some(&annotations)).time()
        };
        let expected = UNIX_EPOCH + Duration::from_millis(1_800_000_000_250);
        assert_eq!(of("2027-01-15T08:00:00.25Z"), Some(expected));
        assert_eq!(of("2027-01-15T09:00:00.25+01:00"), Some(expected));
        for malformed in ["", "yesterday", "2027-13-01T00:00:00Z"] {
            assert_eq!(of(malformed), None, "{malformed}");
        }
        assert_eq!(Trigger::of(None).time(), None);
    }
}
