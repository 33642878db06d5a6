//! Who owns an address when several Services name the same one: the first to
//! claim it keeps it, the others wait in line.

use std::hash::Hash;

use hashbrown::{HashMap, hash_map::Entry};

/// Owners of frontends `F`, by their names `N`, and who waits for them.
#[derive(Debug)]
pub struct Claims<F, N> {
    lines: HashMap<F, Line<N>>,
}

/// Those who name the same frontend.
#[derive(Debug)]
struct Line<N> {
    owner: N,
    /// The others, in the order in which they came; mostly nobody.
    waiting: Vec<N>,
}

impl<F, N> Default for Claims<F, N> {
    fn default() -> Self {
        Claims {
            lines: HashMap::new(),
        }
    }
}

impl<F: Copy + Eq + Hash, N: Clone + Eq> Claims<F, N> {
    /// Claims `frontend` for `by`.
    ///
    /// # Errors
    /// With the owner's name, when it is another Service's; `by` then waits.
    pub fn claim(&mut self, frontend: &F, by: &N) -> Result<(), N> {
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
    pub fn owner(&self, frontend: &F) -> Option<&N> {
        self.lines.get(frontend).map(|line| &line.owner)
    }

    /// Everything that is claimed, in no particular order.
    pub fn frontends(&self) -> impl Iterator<Item = &F> {
        self.lines.keys()
    }

    /// Gives up a claim. Answers who owns the frontend now because of that.
    pub fn release(&mut self, frontend: &F, by: &N) -> Option<N> {
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

    #[test]
    fn the_first_claim_holds_until_it_is_released() {
        let frontend = 80;
        let (a, b, c) = ("a", "b", "c");
        let mut claims = Claims::default();
        assert_eq!(claims.claim(&frontend, &a), Ok(()));
        assert_eq!(claims.claim(&frontend, &a), Ok(()), "again is the same");
        assert_eq!(claims.claim(&frontend, &b), Err(a));
        assert_eq!(claims.claim(&frontend, &c), Err(a));
        assert_eq!(claims.release(&frontend, &b), None, "it only waited");
        assert_eq!(claims.release(&frontend, &a), Some(c));
        assert_eq!(claims.claim(&frontend, &c), Ok(()));
        assert_eq!(claims.release(&frontend, &c), None);
        assert!(claims.lines.is_empty());
    }
}
