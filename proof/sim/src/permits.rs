//! [`Permits`]: the numbers of permits that a semaphore may have had, and when.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use lockkeeper::{Client, LockError, Semaphore};

use crate::world::World;

/// The numbers of permits of a semaphore.
///
/// A change with unknown outcome may be executed at any later time, so its number stays possible. An acknowledged
/// change ends all earlier numbers that are known to have been stored.
pub(crate) struct Permits {
    numbers: RefCell<Vec<Number>>,
    /// Only one change at a time. The last of several concurrent changes would be unknown.
    is_changing: Cell<bool>,
}

struct Number {
    permits: u32,
    is_acknowledged: bool,
    ended: Option<Duration>,
}

impl Permits {
    pub(crate) fn new(first: u32) -> Self {
        Self {
            numbers: RefCell::new(vec![Number {
                permits: first,
                is_acknowledged: true,
                ended: None,
            }]),
            is_changing: Cell::new(false),
        }
    }

    /// Records that a backup has restored an earlier number, which may be any of them.
    pub(crate) fn forget(&self) {
        for number in &mut *self.numbers.borrow_mut() {
            number.ended = None;
        }
    }

    /// Returns the largest number that the semaphore may have had since then.
    pub(crate) fn most_since(&self, since: Duration) -> u32 {
        let numbers = self.numbers.borrow();
        let possible = numbers
            .iter()
            .filter(|number| number.ended.is_none_or(|ended| ended >= since));
        possible.map(|number| number.permits).max().unwrap_or(0)
    }

    /// Changes the number regardless of holders and waiters. Faults explain its errors, which are those of
    /// [`Semaphore::set_permits`].
    pub(crate) async fn change(
        &self,
        world: &World,
        (client, path): (&Client, &str),
        permits: u32,
    ) -> Result<(), LockError> {
        if self.is_changing.replace(true) {
            return Ok(());
        }
        let _change = Change(&self.is_changing);
        let place = self.begin(permits);
        world.tell(format_args!("{path} is to have {permits} permits"));
        Semaphore::open(client, path)?.set_permits(permits).await?;
        world.count("semaphore: numbers changed");
        self.acknowledge(place, world.time().elapsed());
        Ok(())
    }

    fn begin(&self, permits: u32) -> usize {
        let mut numbers = self.numbers.borrow_mut();
        numbers.push(Number {
            permits,
            is_acknowledged: false,
            ended: None,
        });
        numbers.len() - 1
    }

    fn acknowledge(&self, place: usize, now: Duration) {
        let mut numbers = self.numbers.borrow_mut();
        for number in numbers.iter_mut().filter(|number| number.is_acknowledged) {
            number.ended.get_or_insert(now);
        }
        numbers[place].is_acknowledged = true;
    }
}

/// A change in progress. It ends with its future, even if that is dropped.
struct Change<'a>(&'a Cell<bool>);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_change_ends_the_numbers_before_it() {
        let permits = Permits::new(3);
        let seconds = Duration::from_secs;
        let lowered = permits.begin(1);
        assert_eq!(permits.most_since(seconds(5)), 3);
        permits.acknowledge(lowered, seconds(6));
        assert_eq!(permits.most_since(seconds(6)), 3);
        assert_eq!(permits.most_since(seconds(7)), 1);
        let unknown = permits.begin(2);
        let known = permits.begin(0);
        permits.acknowledge(known, seconds(8));
        assert_eq!(permits.most_since(seconds(9)), 2, "{unknown} may come yet");
        permits.forget();
        assert_eq!(permits.most_since(seconds(9)), 3);
    }
}
