//! [`Deck`]: the order of the faults, determined by a seed. Does no I/O.

use testkit::Random;

/// Kinds of faults. Each is drawn once before any is repeated.
pub(crate) struct Deck {
    kinds: Vec<&'static str>,
    left: Vec<&'static str>,
}

impl Deck {
    pub(crate) fn new(kinds: Vec<&'static str>) -> Self {
        Self {
            kinds,
            left: Vec::new(),
        }
    }

    pub(crate) fn draw(&mut self, random: &mut Random) -> &'static str {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
        }
        let place = random.within(0..self.left.len() as u64) as usize;
        self.left.swap_remove(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_comes_once_before_any_comes_again() {
        let (mut deck, mut random) = (Deck::new(vec!["a", "b", "c"]), Random(7));
        for _ in 0..20 {
            let mut round: Vec<_> = (0..3).map(|_| deck.draw(&mut random)).collect();
            round.sort_unstable();
            assert_eq!(round, ["a", "b", "c"]);
        }
    }
}
