//! Numbers of attributes of `linux/netfilter/nf_tables.h`, one module an enum.

#![allow(missing_docs, reason = "the names are those of the header")]

// enum nft_expr_attributes
pub const NAME: u16 = 1;
pub const DATA: u16 = 2;

pub mod payload {
    pub const TO: u16 = 1;
    pub const BASE: u16 = 2;
    pub const OFFSET: u16 = 3;
    pub const LEN: u16 = 4;
}
pub mod meta {
    pub const TO: u16 = 1;
    pub const KEY: u16 = 2;
    pub const FROM: u16 = 3;
}
pub mod ct {
    pub const TO: u16 = 1;
    pub const KEY: u16 = 2;
    pub const DIRECTION: u16 = 3;
}
pub mod cmp {
    pub const FROM: u16 = 1;
    pub const OP: u16 = 2;
    pub const WITH: u16 = 3;
}
pub mod bitwise {
    pub const FROM: u16 = 1;
    pub const TO: u16 = 2;
    pub const LEN: u16 = 3;
    pub const MASK: u16 = 4;
    pub const XOR: u16 = 5;
}
pub mod byteorder {
    pub const FROM: u16 = 1;
    pub const TO: u16 = 2;
    pub const OP: u16 = 3;
    pub const LEN: u16 = 4;
    pub const SIZE: u16 = 5;
    /// `NFT_BYTEORDER_HTON` of `linux/netfilter/nf_tables.h`.
    pub const HOST_TO_NETWORK: u32 = 1;
}
pub mod lookup {
    pub const SET: u16 = 1;
    pub const FROM: u16 = 2;
    pub const TO: u16 = 3;
    pub const FLAGS: u16 = 5;
    /// `NFT_LOOKUP_F_INV` of `linux/netfilter/nf_tables.h`.
    pub const INVERTED: u32 = 1;
}
pub mod immediate {
    pub const TO: u16 = 1;
    pub const DATA: u16 = 2;
}
pub mod numgen {
    pub const TO: u16 = 1;
    pub const MODULUS: u16 = 2;
    pub const KIND: u16 = 3;
    pub const OFFSET: u16 = 4;
}
pub mod hash {
    pub const FROM: u16 = 1;
    pub const TO: u16 = 2;
    pub const LEN: u16 = 3;
    pub const MODULUS: u16 = 4;
    pub const SEED: u16 = 5;
    pub const OFFSET: u16 = 6;
    pub const KIND: u16 = 7;
}
pub mod fib {
    pub const TO: u16 = 1;
    pub const RESULT: u16 = 2;
    pub const FLAGS: u16 = 3;
}
pub mod nat {
    pub const KIND: u16 = 1;
    pub const FAMILY: u16 = 2;
    pub const ADDRESS: u16 = 3;
    pub const LAST_ADDRESS: u16 = 4;
    pub const PORT: u16 = 5;
    pub const LAST_PORT: u16 = 6;
    pub const FLAGS: u16 = 7;
    /// `NFT_NAT_DNAT` of `linux/netfilter/nf_tables.h`.
    pub const DESTINATION: u32 = 1;
    /// `NF_NAT_RANGE_MAP_IPS` and `NF_NAT_RANGE_PROTO_SPECIFIED`: the kernel sets them where
    /// registers are given.
    pub const GIVEN: u64 = 1 | 2;
}
pub mod masq {
    pub const FLAGS: u16 = 1;
    /// `NF_NAT_RANGE_PROTO_RANDOM_FULLY` of `linux/netfilter/nf_nat.h`.
    pub const FULLY_RANDOM: u32 = 16;
}
pub mod reject {
    pub const KIND: u16 = 1;
    pub const CODE: u16 = 2;
}
pub mod dynset {
    pub const SET: u16 = 1;
    pub const OP: u16 = 3;
    pub const KEY: u16 = 4;
    pub const DATA: u16 = 5;
    pub const TIMEOUT: u16 = 6;
    pub const EXPRESSION: u16 = 7;
    /// `NFT_DYNSET_OP_ADD` and `NFT_DYNSET_OP_UPDATE` of `linux/netfilter/nf_tables.h`.
    pub const ADD: u32 = 0;
    pub const UPDATE: u32 = 1;
}
pub mod connlimit {
    pub const COUNT: u16 = 1;
    pub const FLAGS: u16 = 2;
    /// `NFT_CONNLIMIT_F_INV` of `linux/netfilter/nf_tables.h`.
    pub const OVER: u32 = 1;
}
pub mod counter {
    pub const BYTES: u16 = 1;
    pub const PACKETS: u16 = 2;
}
pub mod limit {
    pub const RATE: u16 = 1;
    pub const UNIT: u16 = 2;
    pub const BURST: u16 = 3;
    pub const KIND: u16 = 4;
    pub const FLAGS: u16 = 5;
    /// The unit of time, in seconds.
    pub const SECOND: u64 = 1;
}
