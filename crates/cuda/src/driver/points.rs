//! The points between the parts of a schedule whose times are taken.
//!
//! They are made before the arena is mapped, so a run that times some of its schedules takes no memory for it. Parts are
//! queued one by one, and the GPU may run out of queued work. The time of such a part is the host's and is left out.
#![allow(unsafe_code, reason = "events move between threads")]

use std::sync::Arc;

use plimsoll_exec::ExecError;

use super::event::Event;
use super::{Context, Stream};

/// Points in a stream, used again for each schedule.
#[derive(Debug)]
pub(crate) struct Points {
    context: Arc<Context>,
    /// One more than a schedule has parts.
    events: Vec<Event>,
    /// Whether each part was queued as a whole before the GPU came to it.
    ahead: Vec<bool>,
}

// SAFETY: an event may be used from any thread in whose context it is; every use enters the context first.
unsafe impl Send for Points {}

impl Points {
    pub(crate) fn new(context: &Arc<Context>) -> Points {
        Points { context: Arc::clone(context), events: Vec::new(), ahead: Vec::new() }
    }

    /// Makes the points for schedules of up to `parts` parts. Each is used once, so that the driver takes now what it needs.
    pub(crate) fn make(&mut self, parts: usize, stream: &Stream) -> Result<(), ExecError> {
        self.context.enter()?;
        while self.events.len() <= parts {
            let event = Event::new()?;
            event.record(stream.raw())?;
            self.events.push(event);
        }
        self.ahead.clear();
        self.ahead.reserve(parts);
        Ok(())
    }

    /// Queues `parts` parts and waits for them. Tells the seconds of each part for which the GPU never waited.
    pub(crate) fn time(
        &mut self,
        parts: usize,
        stream: &Stream,
        queue: impl Fn(usize) -> Result<(), ExecError>,
        mut tell: impl FnMut(usize, f64),
    ) -> Result<(), ExecError> {
        self.make(parts, stream)?;
        self.events[0].record(stream.raw())?;
        for part in 0..parts {
            queue(part)?;
            self.events[part + 1].record(stream.raw())?;
            self.ahead.push(!self.events[part].is_passed()?);
        }
        stream.wait()?;
        for (part, _) in self.ahead.iter().enumerate().filter(|(_, ahead)| **ahead) {
            tell(part, self.events[part].until(&self.events[part + 1])?);
        }
        Ok(())
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        // Events are destroyed in their context; a driver that is gone has destroyed them.
        let _ = self.context.enter();
    }
}
