//! Adding members to sets and removing them, many at a time, and making room for
//! more.

use std::sync::Arc;

use netlink::{Error, Request};
use nix::errno::Errno;

use super::{
    Element, IpSets, Set,
    client::{ADT, DATA, NAME, explained, is_for_want_of_room},
};

// Commands of the subsystem (`IPSET_CMD_*`).
const ADD: u16 = 9;
const DEL: u16 = 10;
/// The attribute for a line number (`IPSET_ATTR_LINENO`).
const LINE: u16 = 9;
/// Members in one message: they stay below the size of a datagram.
const IN_A_MESSAGE: usize = 100;

/// The name of the set that [`IpSets::enlarge`] fills. It is there for a moment,
/// unless the process is killed.
pub const TEMPORARY: &str = "TRIPOD-TEMPORARY";

/// A member that the kernel refused.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The member, as it was sent to the kernel.
    pub element: Element,
    /// Why the kernel refused it. Members that were refused for lack of room have the reason in
    /// common, which names one of them.
    pub error: Arc<Error>,
}

impl IpSets {
    /// Adds members; those that are there already are fine. Returns those that
    /// the kernel refused; the others are in.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn add(&mut self, set: &Set, members: &[Element]) -> Result<Vec<Refused>, Error> {
        self.change_members(ADD, "add", set, members)
    }

    /// Takes members out; those that are gone already are fine. Returns as
    /// [`IpSets::add`].
    ///
    /// # Errors
    /// When the socket fails.
    pub fn remove(&mut self, set: &Set, members: &[Element]) -> Result<Vec<Refused>, Error> {
        self.change_members(DEL, "remove", set, members)
    }

    /// Sends many members in one message, at whose first refusal the kernel stops: the members of a
    /// refused message are sent again one by one. If the set is full or memory is short, this is
    /// done only for the first such message, since the others would all be refused. Without
    /// `NLM_F_EXCL`, the kernel does not refuse to add an existing member, or to remove a missing
    /// one.
    fn change_members(
        &mut self,
        command: u16,
        operation: &'static str,
        set: &Set,
        members: &[Element],
    ) -> Result<Vec<Refused>, Error> {
        let chunks: Vec<&[Element]> = members.chunks(IN_A_MESSAGE).collect();
        let requests: Vec<Request> = chunks
            .iter()
            .map(|chunk| self.request_for_many(command, operation, set, chunk))
            .collect();
        let outcomes = self.socket.batch(&requests, &[])?;
        let (mut again, mut without_room) = (Vec::new(), Vec::new());
        let mut is_full = false;
        for (chunk, outcome) in chunks.into_iter().zip(outcomes) {
            let Err(error) = outcome else { continue };
            let lacks_room = is_for_want_of_room(&error);
            let place = if lacks_room && is_full {
                &mut without_room
            } else {
                &mut again
            };
            is_full |= lacks_room;
            place.extend_from_slice(chunk);
        }
        let requests: Vec<Request> = again
            .iter()
            .map(|member| self.request_for_one(command, operation, set, member))
            .collect();
        let mut refused: Vec<Refused> = Vec::new();
        let mut reason: Option<Arc<Error>> = None;
        for (member, outcome) in again.into_iter().zip(self.socket.batch(&requests, &[])?) {
            let Err(error) = outcome else { continue };
            let error = match &reason {
                Some(known) if is_for_want_of_room(&error) => Arc::clone(known),
                _ => {
                    let full = is_for_want_of_room(&error);
                    let error = Arc::new(explained(error));
                    if full {
                        reason = Some(Arc::clone(&error));
                    }
                    error
                }
            };
            refused.push(Refused {
                element: member,
                error,
            });
        }
        if without_room.is_empty() {
            return Ok(refused);
        }
        match reason {
            Some(reason) => {
                let others = without_room.into_iter();
                refused.extend(others.map(|element| Refused {
                    element,
                    error: Arc::clone(&reason),
                }));
            }
            // There is room now.
            None => refused.extend(self.change_members(command, operation, set, &without_room)?),
        }
        Ok(refused)
    }

    fn request_for_many(
        &self,
        command: u16,
        operation: &'static str,
        set: &Set,
        members: &[Element],
    ) -> Request {
        let object = format!("members of set {}", set.name);
        self.request(command, set.family_number(), 0, operation, object)
            .text(NAME, &set.name)
            // The kernel expects a line number with a list, to tell where it stopped.
            .u32(LINE, 0)
            .nested(ADT, |list| members.iter().fold(list, filled))
    }

    fn request_for_one(
        &self,
        command: u16,
        operation: &'static str,
        set: &Set,
        member: &Element,
    ) -> Request {
        let object = format!("{member} in set {}", set.name);
        let request = self.request(command, set.family_number(), 0, operation, object);
        filled(request.text(NAME, &set.name), member)
    }

    /// Makes room for `set.max_members` members in a set: a larger set is filled with the same
    /// members, and swapped in at once. Rules that refer to the set then refer to the larger one.
    ///
    /// # Errors
    /// When there is no such set or no room for a larger one; then the set is unchanged.
    pub fn enlarge(&mut self, set: &Set) -> Result<(), Error> {
        let members = self.members(&set.name)?;
        let larger = Set {
            name: TEMPORARY.into(),
            ..set.clone()
        };
        // Left by a process that was killed.
        self.destroy(TEMPORARY)?;
        self.create(&larger)?;
        let swapped = self.fill_and_swap(&larger, &members, &set.name);
        let destroyed = self.destroy(TEMPORARY);
        swapped.and(destroyed)
    }

    fn fill_and_swap(
        &mut self,
        larger: &Set,
        members: &[Element],
        name: &str,
    ) -> Result<(), Error> {
        let refused = self.add(larger, members)?;
        match refused.into_iter().next() {
            None => self.swap(TEMPORARY, name),
            Some(Refused { error, .. }) => {
                let errno = error.errno().unwrap_or(Errno::ENOMEM);
                let enlarged = Error::new("enlarge", format!("set {name}"), errno);
                Err(enlarged.hinted(error.to_string()))
            }
        }
    }
}

/// Adds `member` to a request, or to a list in one.
fn filled(request: Request, member: &Element) -> Request {
    request.nested(DATA, |data| member.write(data))
}
