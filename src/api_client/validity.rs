//! The period in which a certificate is valid, which the TLS library does not report for our own
//! certificate.

use jiff::Timestamp;
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};

/// Tags of DER (X.690, section 8.1.2).
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Number of elements of a certificate between its version and its validity: serial
/// number, signature algorithm, issuer (RFC 5280, section 4.1).
const BEFORE_VALIDITY: usize = 3;

/// The period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

impl Validity {
    /// Reads the validity of the first certificate in `pem`; `None` if there is none that can be
    /// read.
    pub(super) fn of_pem(pem: &str) -> Option<Validity> {
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        Validity::of_der(&certificate)
    }

    fn of_der(mut der: &[u8]) -> Option<Validity> {
        let mut certificate = inner(&mut der)?;
        let mut signed = inner(&mut certificate)?;
        if signed.first() == Some(&VERSION) {
            element(&mut signed)?;
        }
        for _ in 0..BEFORE_VALIDITY {
            element(&mut signed)?;
        }
        let mut validity = inner(&mut signed)?;
        let (from, until) = (time(&mut validity)?, time(&mut validity)?);
        Some(Validity { from, until })
    }
}

/// Takes the next element from `der`. Returns its tag and its content.
fn element<'a>(der: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&[tag, first], rest) = der.split_first_chunk()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        // The low bits give the number of bytes of the length.
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        let few = bytes.len() <= size_of::<u32>();
        let length = few.then(|| {
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        });
        (length?, rest)
    };
    let (inner, rest) = rest.split_at_checked(length)?;
    *der = rest;
    Some((tag, inner))
}

/// Takes the next element, a sequence, from `der`. Returns its content.
fn inner<'a>(der: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (tag, inner) = element(der)?;
    (tag == SEQUENCE).then_some(inner)
}

/// Takes the next element, a time in seconds of UTC, from `der` (RFC 5280, section 4.1.2.5).
fn time(der: &mut &[u8]) -> Option<Timestamp> {
    let (tag, text) = element(der)?;
    let text = str::from_utf8(text).ok().filter(|text| text.is_ascii())?;
    let (century, text) = match tag {
        UTC_TIME if text < "5" => ("20", text),
        UTC_TIME => ("19", text),
        GENERALIZED_TIME => text.split_at_checked(2)?,
        _ => return None,
    };
    let digits = text.strip_suffix('Z').filter(|digits| digits.len() == 12)?;
    let part = |at: usize| digits.get(at..at + 2).unwrap_or_default();
    let [year, month, day, hour, minute, second] = [0, 2, 4, 6, 8, 10].map(part);
    let text = format!("{century}{year}-{month}-{day}T{hour}:{minute}:{second}Z");
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn der(from: i32, until: i32) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["node".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 2, 3);
        params.not_after = date_time_ymd(until, 11, 30);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    /// Until 2049 times have a two-digit year.
    #[test]
    fn both_forms_of_time_are_read() {
        for (from, until) in [(1999, 2049), (2000, 2050), (2050, 3000)] {
            let at = |year, day| format!("{year}-{day}T00:00:00Z").parse().unwrap();
            let expected = Validity {
                from: at(from, "02-03"),
                until: at(until, "11-30"),
            };
            assert_eq!(Validity::of_der(&der(from, until)), Some(expected));
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_validity() {
        let whole = der(2020, 2060);
        for length in 0..whole.len() {
            assert_eq!(Validity::of_der(&whole[..length]), None, "{length}");
        }
        for at in 0..whole.len().min(200) {
            for byte in [0, 0x7f, 0x80, 0x84, 0x88, 0xff] {
                let mut other = whole.clone();
                other[at] = byte;
                let _ = Validity::of_der(&other);
            }
        }
        for pem in ["", "no certificate", "-----BEGIN CERTIFICATE-----\n"] {
            assert_eq!(Validity::of_pem(pem), None, "{pem:?}");
        }
    }
}
