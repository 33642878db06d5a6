//! The features of nf_tables that may be missing.

use enumset::EnumSetType;

/// A feature of nf_tables that rules use.
#[derive(Debug, EnumSetType, Hash, PartialOrd, Ord)]
pub enum NftPart {
    /// Tables of the family, with maps of concatenations. The others are tried only where these are
    /// there.
    Tables,
    /// Conditions on connections.
    Ct,
    /// Translation of destinations by a map.
    Nat,
    /// Translation of sources to the node's address.
    Masquerade,
    /// Sets whose elements are concatenations with ranges.
    Ranges,
    /// Random or consecutive numbers.
    Numgen,
    /// Hashes of packets.
    Hash,
    /// The type of an address according to the routes, such as `local`.
    Fib,
    /// Rejecting packets with an answer.
    Reject,
    /// Maps that rules update, with timeouts.
    DynamicMaps,
    /// Sets whose elements count packets and bytes.
    Counters,
    /// Counts of connections, of a rule or of the elements of a set.
    ConnectionCounts,
}

impl NftPart {
    /// Returns the part in one word.
    pub(super) fn word(self) -> &'static str {
        match self {
            NftPart::Tables => "nft",
            NftPart::Ct => "nft-ct",
            NftPart::Nat => "nft-nat",
            NftPart::Masquerade => "nft-masquerade",
            NftPart::Ranges => "nft-ranges",
            NftPart::Numgen => "nft-numgen",
            NftPart::Hash => "nft-hash",
            NftPart::Fib => "nft-fib",
            NftPart::Reject => "nft-reject",
            NftPart::DynamicMaps => "nft-dynset",
            NftPart::Counters => "nft-counters",
            NftPart::ConnectionCounts => "nft-connlimit",
        }
    }

    /// Its description, the module and the kernel option (`net/netfilter/Kconfig`).
    pub(super) fn facts(self) -> (&'static str, &'static str) {
        match self {
            NftPart::Tables => (
                "nf_tables",
                "modprobe nf_tables, or a kernel with CONFIG_NF_TABLES",
            ),
            NftPart::Ct => (
                "nf_tables ct",
                "modprobe nft_ct, or a kernel with CONFIG_NFT_CT",
            ),
            NftPart::Nat => (
                "nf_tables nat by maps",
                "modprobe nft_chain_nat nft_nat, or a kernel with CONFIG_NFT_NAT",
            ),
            NftPart::Masquerade => (
                "nf_tables masquerade",
                "modprobe nft_masq, or a kernel with CONFIG_NFT_MASQ",
            ),
            NftPart::Ranges => ("nf_tables ranges in concatenations", "Linux 5.6 or later"),
            NftPart::Numgen => (
                "nf_tables numgen",
                "modprobe nft_numgen, or a kernel with CONFIG_NFT_NUMGEN",
            ),
            NftPart::Hash => (
                "nf_tables hash",
                "modprobe nft_hash, or a kernel with CONFIG_NFT_HASH",
            ),
            NftPart::Fib => (
                "nf_tables fib",
                "modprobe nft_fib_ipv4 nft_fib_ipv6, or a kernel with CONFIG_NFT_FIB_IPV4 and \
                 CONFIG_NFT_FIB_IPV6",
            ),
            NftPart::Reject => (
                "nf_tables reject",
                "modprobe nft_reject_ipv4 nft_reject_ipv6, or a kernel with CONFIG_NFT_REJECT",
            ),
            NftPart::DynamicMaps => ("nf_tables dynamic maps with timeouts", "Linux 4.3 or later"),
            NftPart::Counters => (
                "nf_tables sets that count",
                "Linux 5.7 or later; before 5.18 with CONFIG_NFT_COUNTER",
            ),
            NftPart::ConnectionCounts => (
                "nf_tables ct count",
                "modprobe nft_connlimit, or a kernel with CONFIG_NFT_CONNLIMIT",
            ),
        }
    }
}
