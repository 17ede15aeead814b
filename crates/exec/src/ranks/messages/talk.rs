//! One rank's talk with the others: messages in turn, deadlines, signs of life, faults.

use std::thread;
use std::time::{Duration, Instant};

use super::super::queue::Queue;
use super::wire::{HEAD_BYTES, Wire};

/// Kinds of message, the first byte of each.
const SIGN_OF_LIFE: u8 = 1;
const FAULT: u8 = 2;
pub(super) const PART: u8 = 3;

/// The most bytes of a fault's text.
const MOST_TEXT: usize = 2048;
/// Signs of life in the longest silence that is allowed.
const SIGNS: u32 = 6;
/// Looks in quick succession before the thread sleeps between them.
const QUICK_LOOKS: u32 = 200;
const SHORT_SLEEP: Duration = Duration::from_micros(30);
const LONG_SLEEP: Duration = Duration::from_millis(1);

/// How long a rank waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    Limited,
    /// As long as the other rank gives signs of life.
    Endless,
}

/// The other ranks, over a wire.
pub(super) struct Talk<W> {
    pub(super) wire: W,
    limit: Duration,
    silence: Duration,
    /// When each rank was last heard.
    heard: Vec<Instant>,
    /// Per rank: whether its part of the exchange lies in its inbox.
    arrived: Vec<bool>,
    last_sign: Instant,
    /// When this rank last looked after the others.
    last_look: Instant,
    /// When this process last went on after it had been stopped, or began.
    went_on: Instant,
    /// Exchanges so far.
    pub(super) exchanges: u64,
}

impl<W: Wire> Talk<W> {
    pub(super) fn new(wire: W, limit: Duration, silence: Duration) -> Talk<W> {
        let (now, ranks) = (Instant::now(), wire.ranks());
        let (heard, arrived) = (vec![now; ranks], vec![false; ranks]);
        let [last_sign, last_look, went_on] = [now; 3];
        Talk { wire, limit, silence, heard, arrived, last_sign, last_look, went_on, exchanges: 0 }
    }

    /// The ranks other than this one.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<W> {
        let own = self.wire.rank();
        (0..self.wire.ranks()).filter(move |&rank| rank != own)
    }

    /// Hears messages that are no part of an exchange, gives a sign of life when one is due, and looks for ranks that give
    /// none.
    pub(super) fn look_after(&mut self, queue: &Queue) -> Result<(), String> {
        if let Some(why) = queue.leaving() {
            return Err(format!("rank {} ended: {why}", self.wire.rank()));
        }
        let now = Instant::now();
        if now.duration_since(self.last_look) >= self.silence / 2 {
            // This process itself was stopped for a while, so neither silence of the others nor their absence proves anything.
            self.heard.fill(now);
            self.went_on = now;
        }
        self.last_look = now;
        if now.duration_since(self.last_sign) >= self.silence / SIGNS {
            self.last_sign = now;
            for rank in self.others() {
                self.wire.send(rank, &head(SIGN_OF_LIFE), &[])?;
            }
        }
        self.others().try_for_each(|rank| self.hear(rank, now))
    }

    /// Hears one rank, unless a part of an exchange waits in its inbox: it is alive, and messages come in their order.
    fn hear(&mut self, rank: usize, now: Instant) -> Result<(), String> {
        while !self.arrived[rank] && self.wire.receive(rank)? {
            self.heard[rank] = now;
            let message = self.wire.inbox(rank);
            match message.first() {
                Some(&SIGN_OF_LIFE) => {}
                Some(&PART) if message.len() >= HEAD_BYTES => self.arrived[rank] = true,
                Some(&FAULT) if message.len() >= HEAD_BYTES => {
                    return Err(String::from_utf8_lossy(&message[HEAD_BYTES..]).into_owned());
                }
                _ => return Err(format!("rank {rank} sent a message that nobody understands")),
            }
        }
        let silent = now.duration_since(self.heard[rank]);
        if !self.arrived[rank] && silent >= self.silence {
            let limit = self.silence.as_secs_f64();
            return Err(format!("rank {rank} has given no sign of life for {limit} s"));
        }
        Ok(())
    }

    /// Waits for the next part of an exchange from a rank. It stays in the inbox until it is [taken](Self::taken): a rank that
    /// is ahead may have sent the next one.
    pub(super) fn part_of(
        &mut self,
        queue: &Queue,
        rank: usize,
        waiting: Waiting,
        exchange: &str,
    ) -> Result<(), String> {
        self.until(queue, waiting, exchange, |talk| Ok((!talk.arrived[rank]).then_some(rank)))
    }

    /// Makes room in the inbox of a rank.
    pub(super) fn taken(&mut self, rank: usize) {
        self.arrived[rank] = false;
        self.heard[rank] = Instant::now();
    }

    /// Waits until all that was sent has been taken.
    pub(super) fn all_sent(&mut self, queue: &Queue, exchange: &str) -> Result<(), String> {
        self.until(queue, Waiting::Limited, exchange, |talk| talk.wire.sending_to())
    }

    /// Waits until no rank is late any more.
    fn until(
        &mut self,
        queue: &Queue,
        waiting: Waiting,
        exchange: &str,
        late: impl Fn(&mut Talk<W>) -> Result<Option<usize>, String>,
    ) -> Result<(), String> {
        let (begin, mut looks) = (Instant::now(), 0);
        while let Some(rank) = late(self)? {
            self.look_after(queue)?;
            // Time counts up to the last look only. A process that was itself stopped since then learns of it at its next look.
            let waited = self.last_look.saturating_duration_since(begin.max(self.went_on));
            if waiting == Waiting::Limited && waited >= self.limit {
                let limit = self.limit.as_secs_f64();
                return Err(format!("rank {rank} has not come to {exchange} within {limit} s"));
            }
            rest(looks, begin);
            looks += 1;
        }
        Ok(())
    }

    /// Tells all ranks of a fault, as far as they take it in the time that is given.
    pub(super) fn tell(&mut self, fault: &str, time: Duration) {
        let text = &fault.as_bytes()[..fault.floor_char_boundary(MOST_TEXT)];
        // An error of the transport itself is not reported here: the other ranks will notice that this one is silent.
        let told = self.others().try_for_each(|rank| self.wire.send(rank, &head(FAULT), text));
        let begin = Instant::now();
        while told.is_ok() && begin.elapsed() < time && matches!(self.wire.sending_to(), Ok(Some(_))) {
            thread::sleep(LONG_SLEEP);
        }
    }

    /// Ends the transport; the run has ended well.
    pub(super) fn close(self) {
        self.wire.close();
    }
}

/// The head of a message of this kind.
pub(super) fn head(kind: u8) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0] = kind;
    head
}

/// Lets other threads run: ranks of one machine may have fewer cores than threads.
fn rest(looks: u32, begin: Instant) {
    if looks < QUICK_LOOKS {
        thread::yield_now();
    } else if begin.elapsed() < Duration::from_millis(20) {
        thread::sleep(SHORT_SLEEP);
    } else {
        thread::sleep(LONG_SLEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    /// The wire of a process that is stopped for longer than the limit when it first listens; the other rank comes after that.
    struct Stopped {
        looks: usize,
        message: [u8; HEAD_BYTES],
    }

    impl Wire for Stopped {
        fn rank(&self) -> usize {
            0
        }

        fn ranks(&self) -> usize {
            2
        }

        fn arenas_ahead(&self) -> usize {
            1
        }

        fn send(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<(), String> {
            Ok(())
        }

        fn sending_to(&mut self) -> Result<Option<usize>, String> {
            Ok(None)
        }

        fn receive(&mut self, _: usize) -> Result<bool, String> {
            self.looks += 1;
            if self.looks == 1 {
                thread::sleep(2 * LIMIT);
            }
            Ok(self.looks == 3)
        }

        fn inbox(&self, _: usize) -> &[u8] {
            &self.message
        }

        fn close(self) {}
    }

    #[test]
    fn a_rank_that_was_stopped_itself_blames_no_other_for_the_time() {
        let mut talk = Talk::new(Stopped { looks: 0, message: head(PART) }, LIMIT, LIMIT);
        talk.part_of(&Queue::new(), 1, Waiting::Limited, "all_reduce").unwrap();
        assert_eq!(talk.wire.looks, 3);
    }
}
