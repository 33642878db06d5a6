//! Names of objects that belong to one ServicePort.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::services::{ServiceName, ServicePortName};

/// Maximum number of characters that a name of ours ends with: a name of nf_tables has at most 255
/// (`NFT_NAME_MAXLEN` of `linux/netfilter/nf_tables.h`). An API server accepts no ServicePort with
/// a longer name, but a manifest may have one.
const LONGEST: usize = 180;

/// A name for an object of one ServicePort, of characters that `nft` takes.
pub(super) fn own(port: &ServicePortName) -> String {
    let protocol = port.protocol.to_string().to_lowercase();
    let whole = format!("{}/{protocol}/{}", port.service, port.port);
    if whole.len() <= LONGEST {
        return whole;
    }
    format!("{protocol}/{}", hash(&whole))
}

/// A name for an object of one Service.
pub(super) fn of_service(service: &ServiceName) -> String {
    let whole = service.to_string();
    if whole.len() <= LONGEST {
        return whole;
    }
    hash(&whole)
}

fn hash(whole: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::service_ports::port_name;

    #[test]
    fn no_name_is_too_long_for_nf_tables() {
        let named = |name: &str| own(&port_name(name));
        assert_eq!(named("shop/web:http"), "shop/web/tcp/http");
        let long = |end: &str| named(&format!("{0}/{0}{end}:http", "a".repeat(252)));
        assert!(long("b").len() <= LONGEST && long("b") != long("c"));
        let service = |name: &str| of_service(&port_name(name).service);
        assert_eq!(service("shop/web:http"), "shop/web");
        let long = |end: &str| service(&format!("{0}/{0}{end}:http", "a".repeat(252)));
        assert!(long("b").len() <= LONGEST && long("b") != long("c"));
    }
}
