//! Port ranges as `--proxy-port-range` writes them (`portRange` of
//! KubeProxyConfiguration): `first-last`, `first+count` or a single port.

use std::ops::RangeInclusive;

/// Reads a range; empty, `0` and `0-0` mean: any port.
///
/// # Errors
/// When it is not a range; the error has an example.
pub fn parse(text: &str) -> Result<Option<RangeInclusive<u16>>, String> {
    let port = |digits: &str| {
        digits.trim().parse::<u16>().map_err(|_| {
            format!("{digits:?} is not a port from 0 to 65535; write it like 20000-21999")
        })
    };
    let text = text.trim();
    let (first, last) = if text.is_empty() {
        return Ok(None);
    } else if let Some((first, last)) = text.split_once('-') {
        (port(first)?, port(last)?)
    } else if let Some((first, count)) = text.split_once('+') {
        let first = port(first)?;
        let last = first.checked_add(port(count)?);
        (
            first,
            last.ok_or_else(|| format!("{text:?} ends above port 65535"))?,
        )
    } else {
        (port(text)?, port(text)?)
    };
    match (first, last) {
        (0, 0) => Ok(None),
        (0, _) => Err(format!(
            "{text:?} begins at port 0, which cannot be listened on"
        )),
        (first, last) if first > last => Err(format!(
            "{text:?} ends before it begins; write it like 20000-21999"
        )),
        (first, last) => Ok(Some(first..=last)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for (text, range) in [
            ("", None),
            ("0", None),
            ("0-0", None),
            ("20000-21999", Some(20000..=21999)),
            ("20000 - 21999", Some(20000..=21999)),
            ("20000+99", Some(20000..=20099)),
            ("8080", Some(8080..=8080)),
            ("1-65535", Some(1..=65535)),
        ] {
            assert_eq!(parse(text), Ok(range), "{text}");
        }
        for text in ["a", "1-", "-1", "9-8", "0-5", "70000", "65535+1", "1-2-3"] {
            let error = parse(text).expect_err(text);
            assert!(!error.is_empty());
        }
    }
}
