//! Panics in other people's code, as errors. A file that a library did not expect must not end the program.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread becomes an error, so that its message is not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; the message of a panic inside it is returned and not printed. State that `work` has half changed must
/// not be used after that.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    // One hook for the whole process, which checks the thread: a hook that is installed and removed would swallow other
    // threads' panics meanwhile.
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.try_with(Cell::get).unwrap_or(false) {
                usual(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    done.map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_comes_back_as_its_message() {
        assert_eq!(caught(|| 1 + 1), Ok(2));
        assert_eq!(caught(|| panic!("at\n  {}", 7)), Err::<(), _>("at 7".to_owned()));
        let empty: [u8; 0] = [];
        assert_eq!(
            caught(|| empty.iter().max().unwrap()).unwrap_err(),
            "called `Option::unwrap()` on a `None` value"
        );
    }
}
