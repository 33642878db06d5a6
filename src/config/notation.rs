//! Notations of flags that the configuration file writes in another way.

use std::{collections::BTreeMap, time::Duration};

use super::VmoduleItem;
use crate::duration;

/// Reads `Gate=true,Other=false` (`MapStringBool` of
/// `k8s.io/component-base/cli/flag`) into `gates`.
///
/// # Errors
/// When a part is not such a pair; the error names it.
pub fn feature_gates(text: &str, gates: &mut BTreeMap<String, bool>) -> Result<(), String> {
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let wrong = || format!("{pair:?} is not of the form Gate=true or Gate=false");
        let (gate, value) = pair.split_once('=').ok_or_else(wrong)?;
        let value = boolean(value.trim()).ok_or_else(wrong)?;
        gates.insert(gate.trim().to_owned(), value);
    }
    Ok(())
}

/// Reads a boolean as Go's `strconv.ParseBool` does; `None` if it is not one.
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Reads a whole number as Go's `strconv.ParseInt` does with base 0 (also `0x1f`, `0o17`, `017`,
/// `0b1` and `1_000`); `None` if it is not one.
pub fn whole(text: &str) -> Option<i32> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let prefixed = |prefix: [&str; 2]| prefix.iter().find_map(|p| unsigned.strip_prefix(p));
    let (radix, digits) = if let Some(digits) = prefixed(["0x", "0X"]) {
        (16, digits.strip_prefix('_').unwrap_or(digits))
    } else if let Some(digits) = prefixed(["0b", "0B"]) {
        (2, digits.strip_prefix('_').unwrap_or(digits))
    } else if let Some(digits) = prefixed(["0o", "0O"]) {
        (8, digits.strip_prefix('_').unwrap_or(digits))
    } else if let Some(digits) = unsigned.strip_prefix('0').filter(|d| !d.is_empty()) {
        (8, digits.strip_prefix('_').unwrap_or(digits))
    } else {
        (10, unsigned)
    };
    // An underscore stands between digits.
    if digits.split('_').any(str::is_empty) || digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i64::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    i32::try_from(if text.starts_with('-') {
        -number
    } else {
        number
    })
    .ok()
}

/// Reads a list separated by commas, whose items may be in double quotes (pflag reads lists as CSV,
/// RFC 4180); `None` if a quote does not end its item.
pub fn list(text: &str) -> Option<Vec<String>> {
    let mut items = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let item;
        (item, rest) = match rest.trim_start().strip_prefix('"') {
            Some(quoted) => {
                let (item, after) = quoted.split_once('"')?;
                match after.trim_start() {
                    "" => (item, ""),
                    more => (item, more.strip_prefix(',')?),
                }
            }
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        items.push(item.trim().to_owned());
    }
    Some(items)
}

/// Reads `pattern=N,...` of `--vmodule`.
///
/// # Errors
/// When a part is not such a pair; the error names it.
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
/// Those of [`duration::parse`], and for zero.
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
    fn whole_numbers() {
        for (text, number) in [
            ("0", 0),
            ("-999", -999),
            ("+7", 7),
            ("0x1F", 31),
            ("-0x_8000_0000", i32::MIN),
            ("017", 15),
            ("0o17", 15),
            ("0b101", 5),
            ("32_768", 32_768),
            ("2147483647", i32::MAX),
        ] {
            assert_eq!(whole(text), Some(number), "{text}");
        }
        for text in [
            "",
            "-",
            "1.0",
            "1e3",
            "08",
            "0x",
            "0xg",
            "_1",
            "1_",
            "1__0",
            "--1",
            "0x-1",
            "2147483648",
            "99999999999999999999",
        ] {
            assert_eq!(whole(text), None, "{text}");
        }
    }

    #[test]
    fn lists_may_be_quoted() {
        for (text, items) in [
            ("", &[][..]),
            ("a", &["a"]),
            ("a, b", &["a", "b"]),
            ("\"a\"", &["a"]),
            ("\"a,b\",c", &["a,b", "c"]),
            ("c , \"a\" ,b", &["c", "a", "b"]),
            ("a,,b", &["a", "", "b"]),
        ] {
            let items: Vec<String> = items.iter().map(|item| (*item).to_owned()).collect();
            assert_eq!(list(text), Some(items), "{text}");
        }
        for text in ["\"a", "\"a\"b"] {
            assert_eq!(list(text), None, "{text}");
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
