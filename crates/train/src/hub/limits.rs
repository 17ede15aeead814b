//! Limits on a server's answers: times, sizes, counts. No server may make a run wait or write without end.

use std::time::Duration;

/// Limits on a server. The defaults suit a slow line; tests set them low.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubLimits {
    /// The most time to look up a server's address, and the most time to connect to it.
    pub connect: Duration,
    /// Time without a single byte after which a connection counts as broken. Another process that downloads the same
    /// file is given the same time.
    pub stall: Duration,
    /// Bytes that a file's connection must bring in each [`window`](Self::window), so that a byte now and then does not
    /// keep a run waiting.
    pub least: u64,
    /// The time within which these bytes must arrive.
    pub window: Duration,
    /// Time for a whole answer that is not a file, redirects included; also for the headers of a file.
    pub metadata: Duration,
    /// Tries after a broken connection or a busy server; each continues where the last one stopped.
    pub retries: u32,
    /// Pause before the first further try; each later one is twice as long.
    pub pause: Duration,
    /// The longest pause, even if the server asks for a longer one.
    pub longest_pause: Duration,
    /// Redirects of one request.
    pub redirects: u32,
    /// Bytes of the list of a model's files.
    pub listing_bytes: u64,
    /// Bytes of a file that is not weights: configuration, tokenizer, index.
    pub text_bytes: u64,
}

impl Default for HubLimits {
    fn default() -> HubLimits {
        HubLimits {
            connect: Duration::from_secs(15),
            stall: Duration::from_secs(30),
            // A tenth of the speed of a telephone line.
            least: 60 << 10,
            window: Duration::from_mins(1),
            metadata: Duration::from_secs(30),
            retries: 5,
            pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            redirects: 8,
            listing_bytes: 8 << 20,
            text_bytes: 256 << 20,
        }
    }
}
