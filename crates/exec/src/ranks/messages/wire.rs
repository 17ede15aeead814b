//! Messages between processes, as a transport offers them.

/// Carries messages between ranks. All calls come from one thread, and none of them blocks. Messages of one rank to another
/// arrive in the order in which they were sent.
pub trait Wire {
    /// The number of this rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// Arenas that this machine must still have room for when this rank takes its own: those of all its ranks for the
    /// first rank of a machine.
    fn arenas_ahead(&self) -> usize;

    /// Begins to send a message in two parts, which are copied first.
    ///
    /// # Errors
    ///
    /// When the transport fails.
    fn send(&mut self, to: usize, head: &[u8], body: &[u8]) -> Result<(), String>;

    /// A rank that has not yet taken everything sent to it, if there is one.
    ///
    /// # Errors
    ///
    /// When the transport fails.
    fn sending_to(&mut self) -> Result<Option<usize>, String>;

    /// Whether the next message of a rank has come. It stays in the [`inbox`](Self::inbox) until the next call for that
    /// rank.
    ///
    /// # Errors
    ///
    /// When the transport fails.
    fn receive(&mut self, from: usize) -> Result<bool, String>;

    /// The message of a rank that was [received](Self::receive) last, aligned for eight bytes.
    fn inbox(&self, from: usize) -> &[u8];

    /// Ends the transport in order, together with all other ranks.
    fn close(self);
}

/// Bytes in front of every message. They hold its kind and, in a part of an exchange, the place of the part and a
/// text that describes the exchange.
pub(super) const HEAD_BYTES: usize = 128;
/// Bytes of the longest body of a message.
const MOST_BYTES: usize = 512 << 10;
/// Bytes that one rank sends to all others at a time, unless there are very many.
const AT_A_TIME: usize = 2 << 20;
const LEAST_BYTES: usize = 16 << 10;

/// Bytes of the longest body of a message in a world of so many ranks: the buffers of all ranks stay small.
pub(super) fn body_bytes(ranks: usize) -> usize {
    (AT_A_TIME / ranks.max(2)).clamp(LEAST_BYTES, MOST_BYTES).next_multiple_of(64)
}

/// Bytes of the longest message in a world of so many ranks. The text of a fault is shorter than any body.
pub fn message_bytes(ranks: usize) -> usize {
    HEAD_BYTES + body_bytes(ranks)
}
