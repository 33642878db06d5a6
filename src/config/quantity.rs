//! Quantities of the Kubernetes API (`k8s.io/apimachinery/pkg/api/resource`), the
//! notation of sizes of log buffers: `0`, `512`, `64Ki`, `1M`, `1e3`.

/// Suffixes, and the factors that they stand for.
const SUFFIXES: [&str; 16] = [
    "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
];

/// Returns whether `text` is a quantity other than zero.
///
/// # Errors
/// When it is not a quantity; the error has an example.
pub fn is_nonzero(text: &str) -> Result<bool, String> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let exponent = || {
        let digits = suffix.strip_prefix(['e', 'E'])?;
        let digits = digits.strip_prefix(['+', '-']).unwrap_or(digits);
        (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(())
    };
    let digits = number.bytes().filter(u8::is_ascii_digit).count();
    let is_number = digits > 0 && number.len() - digits <= 1;
    if is_number && (SUFFIXES.contains(&suffix) || exponent().is_some()) {
        return Ok(number.bytes().any(|b| b.is_ascii_digit() && b != b'0'));
    }
    Err(format!(
        "{text:?} is not a quantity; write it like 0, 512, 64Ki or 1M"
    ))
}

#[cfg(test)]
mod tests {
    use super::is_nonzero;

    #[test]
    fn quantities() {
        for text in [
            "512", "64Ki", "1.5M", ".5", "5.", "1e3", "2E-2", "+3E", "-1",
        ] {
            assert_eq!(is_nonzero(text), Ok(true), "{text}");
        }
        for text in ["0", "0.0", "0Ki"] {
            assert_eq!(is_nonzero(text), Ok(false), "{text}");
        }
        for text in ["", ".", "Ki", "1.2.3", "5 M", "5KB", "1e", "ten"] {
            assert!(is_nonzero(text).is_err(), "{text}");
        }
    }
}
