//! The page for people at `/` of the metrics address: one file without outside assets,
//! which reads the API of the running proxy.

use std::sync::LazyLock;

use data_encoding::BASE64;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use sha2::{Digest, Sha256};

use super::http::Answer;

const PAGE: &str = include_str!("page.html");

/// Allows the page to load only its own content, and to send requests only to this address (Content
/// Security Policy Level 3).
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let script = hash(PAGE, "script");
    let style = hash(PAGE, "style");
    format!(
        "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

pub(super) fn answer() -> Answer {
    let policy = HeaderValue::from_str(&POLICY);
    // It consists of ASCII characters only.
    let policy = policy.unwrap_or(HeaderValue::from_static("default-src 'none'"));
    Answer::html(PAGE).with_header(CONTENT_SECURITY_POLICY, policy)
}

/// Returns the hash source for the content of the only element of that name.
fn hash(page: &str, element: &str) -> String {
    let inner = page.split_once(&format!("<{element}>"));
    let inner = inner.and_then(|(_, rest)| rest.split_once(&format!("</{element}>")));
    let (inner, _) = inner.unwrap_or_default();
    format!("sha256-{}", BASE64.encode(&Sha256::digest(inner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_in_itself() {
        for element in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{element}")).count(), 1, "{element}");
            assert_eq!(
                PAGE.matches(&format!("<{element}>")).count(),
                1,
                "{element}"
            );
        }
        for outside in [
            "src=",
            "url(",
            "@import",
            "//cdn",
            "style=\"",
            "onclick",
            "innerHTML",
        ] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
        // The hash of an empty text: there is no such element.
        let nothing = hash("", "script");
        assert!(!POLICY.contains(&nothing), "{}", *POLICY);
        assert_eq!(
            nothing,
            "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
        );
    }
}
