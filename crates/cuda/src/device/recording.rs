//! Schedules recorded once, so that each is queued with one call.

use super::CudaDevice;
use crate::bound_schedule::BoundSchedule;
use crate::driver::Captured;

impl CudaDevice {
    /// Records every schedule. If the driver or a library refuses, its steps are queued one by one.
    pub(super) fn capture(&mut self) {
        let (mut schedules, mut refused) = (std::mem::take(&mut self.schedules), None);
        for form in schedules.iter_mut().flat_map(BoundSchedule::forms_mut) {
            let steps = || self.queue_all(&form.steps);
            match Captured::new(&self.context, self.stream.raw(), steps) {
                Ok(captured) => form.captured = Some(captured),
                Err(why) => refused = refused.or_else(|| Some(why.to_string())),
            }
        }
        (self.schedules, self.unrecorded) = (schedules, refused);
    }

    /// The reason why steps are queued one by one, where they are.
    pub(super) fn not_recorded(&self) -> Option<String> {
        let why = self.unrecorded.as_ref()?;
        Some(format!(
            "a schedule could not be recorded, so each of its steps is queued by itself, which takes time: {why}"
        ))
    }
}
