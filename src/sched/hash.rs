//! The hash functions of IPVS's hashing schedulers, so that equal addresses hash to equal buckets.

use std::net::IpAddr;

/// Returns an address as one word: IPv6 is folded by exclusive or of its four words
/// (`ip_vs_sh_hashkey`, `ip_vs_mh_hashkey`). An IPv4 address has the same hash whether it is given
/// as such or mapped into IPv6 by a dual-stack socket.
pub(super) fn fold(address: IpAddr) -> u32 {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_bits(),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            [96, 64, 32, 0]
                .into_iter()
                .fold(0, |word, shift| word ^ (bits >> shift) as u32)
        }
    }
}

/// Multiplicative hash to `bits` bits, 1 to 32 (`hash_32` in the kernel's
/// `include/linux/hash.h`).
pub(super) fn hash_32(word: u32, bits: u32) -> u32 {
    const GOLDEN_RATIO: u32 = 0x61c8_8647;
    word.wrapping_mul(GOLDEN_RATIO) >> (32 - bits)
}

/// Mixes a word with the finalizer of SplitMix64 (G. L. Steele, D. Lea, C. H.
/// Flood, "Fast splittable pseudorandom number generators", 2014): every bit of
/// the result depends on every bit of `word`.
pub(super) fn mix(word: u64) -> u64 {
    let mut z = word;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Keys of [`hsiphash`].
pub(super) type Key = [u64; 2];

/// SipHash-1-3 of one word, cut to 32 bits (`hsiphash_1u32` on 64-bit machines,
/// kernel `lib/siphash.c`; the algorithm: J.-P. Aumasson, D. J. Bernstein,
/// "SipHash: a fast short-input PRF", 2012).
pub(super) fn hsiphash(word: u32, key: Key) -> u32 {
    // The only block: the length in the top byte, the word in the lowest four.
    let block = 4 << 56 | u64::from(word);
    let mut v = [
        key[0] ^ u64::from_be_bytes(*b"somepseu"),
        key[1] ^ u64::from_be_bytes(*b"dorandom"),
        key[0] ^ u64::from_be_bytes(*b"lygenera"),
        key[1] ^ u64::from_be_bytes(*b"tedbytes"),
    ];
    v[3] ^= block;
    sip_round(&mut v);
    v[0] ^= block;
    v[2] ^= 0xff;
    for _ in 0..3 {
        sip_round(&mut v);
    }
    (v[0] ^ v[1] ^ v[2] ^ v[3]) as u32
}

fn sip_round(v: &mut [u64; 4]) {
    let mut half = |a: usize, b: usize, by: u32| {
        v[a] = v[a].wrapping_add(v[b]);
        v[b] = v[b].rotate_left(by) ^ v[a];
    };
    half(0, 1, 13);
    half(2, 3, 16);
    v[0] = v[0].rotate_left(32);
    let mut half = |a: usize, b: usize, by: u32| {
        v[a] = v[a].wrapping_add(v[b]);
        v[b] = v[b].rotate_left(by) ^ v[a];
    };
    half(0, 3, 21);
    half(2, 1, 17);
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hsiphash_gives_the_kernels_test_vector() {
        // lib/tests/siphash_kunit.c, input 00 01 02 03.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(hsiphash(0x0302_0100, key), 0x88d3_8328);
    }

    #[test]
    fn hash_32_keeps_the_top_bits() {
        assert_eq!(hash_32(1, 8), 0x61);
        assert_eq!(hash_32(1, 16), 0x61c8);
        assert_eq!(hash_32(2, 8), 0xc3);
    }

    #[test]
    fn addresses_fold_to_one_word() {
        for (address, word) in [
            ("10.1.2.3", 0x0a01_0203),
            ("::ffff:10.1.2.3", 0x0a01_0203),
            ("fd00:1::2:3", 0xfd00_0001 ^ 0x0002_0003),
            (
                "1:2:3:4:5:6:7:8",
                0x0001_0002 ^ 0x0003_0004 ^ 0x0005_0006 ^ 0x0007_0008,
            ),
        ] {
            assert_eq!(fold(address.parse().unwrap()), word, "{address}");
        }
    }
}
