//! Notations of flags that the configuration file writes in another way.

use std::{collections::BTreeMap, time::Duration};

use super::{VmoduleItem, duration};

/// Reads `Gate=true,Other=false` (`MapStringBool` of
/// `k8s.io/component-base/cli/flag`) into `gates`.
///
/// # Errors
/// Names the part that is no such pair.
pub fn feature_gates(text: &str, gates: &mut BTreeMap<String, bool>) -> Result<(), String> {
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let wrong = || format!("{pair:?} is not of the form Gate=true or Gate=false");
        let (gate, value) = pair.split_once('=').ok_or_else(wrong)?;
        let value = boolean(value.trim()).ok_or_else(wrong)?;
        gates.insert(gate.trim().to_owned(), value);
    }
    Ok(())
}

/// Reads a boolean as Go's `strconv.ParseBool` does.
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Reads `pattern=N,...` of `--vmodule`.
///
/// # Errors
/// Names the part that is no such pair.
pub fn vmodule(text: &str) -> Result<Vec<VmoduleItem>, String> {
    let items = text.split(',').filter(|item| !item.is_empty());
    items
        .map(|item| {
            let pair = item.split_once('=');
            let read = pair.and_then(|(pattern, level)| {
                let verbosity = level.parse::<u32>().ok().filter(|v| *v <= i32::MAX as u32);
                Some((pattern, verbosity?))
            });
            match read {
                Some((pattern, verbosity)) if !pattern.is_empty() => Ok(VmoduleItem {
                    file_pattern: pattern.to_owned(),
                    verbosity,
                }),
                _ => Err(format!("{item:?} is not of the form pattern=N")),
            }
        })
        .collect()
}

/// Reads a duration that must not be zero.
///
/// # Errors
/// As [`duration::parse`], and for zero.
pub fn positive(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("it must be greater than 0".to_owned()),
        positive => Ok(positive),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_gates_are_read_one_after_the_other() {
        let mut gates = BTreeMap::new();
        feature_gates("A=true, B=f,", &mut gates).expect("valid");
        feature_gates("A=0", &mut gates).expect("valid");
        let read: Vec<_> = gates
            .iter()
            .map(|(gate, on)| (gate.as_str(), *on))
            .collect();
        assert_eq!(read, [("A", false), ("B", false)]);
        for text in ["A", "A=", "A=yes", "A=true,B"] {
            assert!(feature_gates(text, &mut gates).is_err(), "{text}");
        }
    }

    #[test]
    fn vmodule_items() {
        let items = vmodule("proxier=5,ipset*=2").expect("valid");
        assert_eq!(items.len(), 2);
        assert_eq!(
            (items[1].file_pattern.as_str(), items[1].verbosity),
            ("ipset*", 2)
        );
        assert_eq!(vmodule(""), Ok(Vec::new()));
        for text in ["a", "a=", "=1", "a=-1", "a=x", "a=2147483648"] {
            assert!(vmodule(text).is_err(), "{text}");
        }
    }
}
