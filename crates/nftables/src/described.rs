//! How user data describe the fields that a set was declared with (`typeof`):
//! `nft` prints the declaration from it. Numbers are those of nft's
//! `expression.h` and `proto.h`, which it writes to the kernel and so keeps.

use net::Family;

use super::{
    field::{Fib, Field},
    userdata::UserData,
};

// NFTNL_UDATA_SET_TYPEOF_*
const KIND: u8 = 0;
const DATA: u8 = 1;
// enum expr_types
pub(super) const VERDICT: u32 = 1;
const PAYLOAD: u32 = 7;
const META: u32 = 9;
const CT: u32 = 12;
const CONCAT: u32 = 13;
const NUMGEN: u32 = 23;
const FIB: u32 = 26;
/// Any direction of a `ct` key, and none.
const ANY: u32 = u32::MAX;

/// Returns the user data of a verdict, or of a concatenation of which only the types are
/// known.
pub(super) fn bare(kind: u32) -> UserData {
    let empty = UserData::default();
    empty.number(KIND, kind).nested(DATA, UserData::default())
}

pub(super) fn bare_concat() -> UserData {
    bare(CONCAT)
}

/// Returns the user data of these fields; `None` where one cannot be described.
pub(super) fn write(fields: &[Field]) -> Option<UserData> {
    let (kind, data) = match fields {
        [one] => field(one)?,
        many => {
            let mut parts = UserData::default();
            for (at, part) in many.iter().enumerate() {
                let (kind, data) = field(part)?;
                let part = UserData::default().number(KIND, kind).nested(DATA, data);
                parts = parts.nested(u8::try_from(at).ok()?, part);
            }
            (CONCAT, parts)
        }
    };
    Some(UserData::default().number(KIND, kind).nested(DATA, data))
}

fn field(field: &Field) -> Option<(u32, UserData)> {
    let numbers = |numbers: &[u32]| {
        let each = (0u8..).zip(numbers);
        each.fold(UserData::default(), |data, (kind, number)| {
            data.number(kind, *number)
        })
    };
    if let Some((header, part)) = payload(field) {
        return Some((PAYLOAD, numbers(&[header, part])));
    }
    Some(match field {
        Field::Meta(meta) => (META, numbers(&[*meta as u32])),
        Field::Ct(ct, direction) => {
            let direction = direction.map_or(ANY, |d| d as u32);
            (CT, numbers(&[ct.number(), direction]))
        }
        Field::Fib(fib) => (FIB, numbers(&[Fib::TYPE, *fib as u32])),
        Field::Numgen(n) => (NUMGEN, numbers(&[n.random.into(), n.modulus, n.offset])),
        _ => return None,
    })
}

/// Number of the header (`enum proto_desc_id`) and of the part of it.
fn payload(field: &Field) -> Option<(u32, u32)> {
    Some(match field {
        Field::SourceAddress(Family::V4) => (12, 11),
        Field::DestinationAddress(Family::V4) => (12, 12),
        Field::SourceAddress(Family::V6) => (13, 8),
        Field::DestinationAddress(Family::V6) => (13, 9),
        Field::SourcePort => (11, 1),
        Field::DestinationPort => (11, 2),
        _ => return None,
    })
}
