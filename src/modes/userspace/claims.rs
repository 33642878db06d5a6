//! Who owns an address when several Services name the same one: the first to
//! claim it keeps it, the others wait in line.

use hashbrown::{HashMap, hash_map::Entry};

use super::{capture::Frontend, plan::PortalName};

/// Owners of frontends, and who waits for them.
#[derive(Debug, Default)]
pub struct Claims {
    lines: HashMap<Frontend, Line>,
}

/// Those who name the same frontend.
#[derive(Debug)]
struct Line {
    owner: PortalName,
    /// The others, in the order in which they came; mostly nobody.
    waiting: Vec<PortalName>,
}

impl Claims {
    /// Claims `frontend` for `by`.
    ///
    /// # Errors
    /// With the owner's name, when it is another Service's; `by` then waits.
    pub fn claim(&mut self, frontend: &Frontend, by: &PortalName) -> Result<(), PortalName> {
        match self.lines.entry(*frontend) {
            Entry::Vacant(place) => {
                place.insert(Line {
                    owner: by.clone(),
                    waiting: Vec::new(),
                });
                Ok(())
            }
            Entry::Occupied(line) if line.get().owner == *by => Ok(()),
            Entry::Occupied(mut line) => {
                let line = line.get_mut();
                if !line.waiting.contains(by) {
                    line.waiting.push(by.clone());
                }
                Err(line.owner.clone())
            }
        }
    }

    /// Who owns `frontend`.
    pub fn owner(&self, frontend: &Frontend) -> Option<&PortalName> {
        self.lines.get(frontend).map(|line| &line.owner)
    }

    /// Gives up a claim. Answers who owns the frontend now because of that.
    pub fn release(&mut self, frontend: &Frontend, by: &PortalName) -> Option<PortalName> {
        let line = self.lines.get_mut(frontend)?;
        if line.owner != *by {
            line.waiting.retain(|name| name != by);
            return None;
        }
        if line.waiting.is_empty() {
            self.lines.remove(frontend);
            return None;
        }
        line.owner = line.waiting.remove(0);
        Some(line.owner.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        modes::userspace::plan::Kind,
        services::{IpFamily, Protocol, ServiceName, ServicePortName},
    };

    fn portal(name: &str) -> PortalName {
        PortalName {
            port: ServicePortName {
                service: ServiceName {
                    namespace: "default".into(),
                    name: name.into(),
                },
                port: "".into(),
                protocol: Protocol::Tcp,
                family: IpFamily::V4,
            },
            kind: Kind::External,
        }
    }

    #[test]
    fn the_first_claim_holds_until_it_is_released() {
        let frontend = Frontend {
            protocol: Protocol::Tcp,
            family: IpFamily::V4,
            address: Some([192, 0, 2, 1].into()),
            port: 80,
        };
        let (a, b, c) = (portal("a"), portal("b"), portal("c"));
        let mut claims = Claims::default();
        assert_eq!(claims.claim(&frontend, &a), Ok(()));
        assert_eq!(claims.claim(&frontend, &a), Ok(()), "again is the same");
        assert_eq!(claims.claim(&frontend, &b), Err(a.clone()));
        assert_eq!(claims.claim(&frontend, &c), Err(a.clone()));
        assert_eq!(claims.release(&frontend, &b), None, "it only waited");
        assert_eq!(claims.release(&frontend, &a), Some(c.clone()));
        assert_eq!(claims.claim(&frontend, &c), Ok(()));
        assert_eq!(claims.release(&frontend, &c), None);
        assert!(claims.lines.is_empty());
    }
}
