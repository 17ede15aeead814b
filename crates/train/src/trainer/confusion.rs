//! How well texts are sorted into classes: accuracy and macro F1, from counts.
//!
//! F1 of a class is the harmonic mean of precision and recall. Macro F1 is its mean over the classes that occur, among the
//! labels or among the guesses; both as scikit-learn's `f1_score(average="macro")` has it. A class that is guessed and
//! never right counts as 0.

/// Guesses and labels, counted by class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Confusion {
    classes: Vec<Class>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    right: u64,
    guessed: u64,
    labelled: u64,
}

impl Confusion {
    /// Counts for this many classes, all zero.
    pub(crate) fn new(classes: usize) -> Confusion {
        Confusion { classes: vec![Class::default(); classes] }
    }

    /// Counts one text. A class that does not exist counts for nothing.
    pub(crate) fn add(&mut self, guess: usize, label: usize) {
        let mut count = |class: usize, count: fn(&mut Class)| {
            if let Some(class) = self.classes.get_mut(class) {
                count(class);
            }
        };
        count(guess, |class| class.guessed += 1);
        count(label, |class| class.labelled += 1);
        if guess == label {
            count(label, |class| class.right += 1);
        }
    }

    /// Share of the texts whose guess is right; `None` if there are no texts.
    pub(crate) fn accuracy(&self) -> Option<f64> {
        let sum = |count: fn(&Class) -> u64| self.classes.iter().map(count).sum::<u64>();
        let texts = sum(|class| class.labelled);
        (texts > 0).then(|| sum(|class| class.right) as f64 / texts as f64)
    }

    /// Mean F1 of the classes that occur; `None` if there are no texts.
    pub(crate) fn macro_f1(&self) -> Option<f64> {
        let f1 = |class: &Class| {
            let both = class.guessed + class.labelled;
            (both > 0).then(|| 2.0 * class.right as f64 / both as f64)
        };
        let each: Vec<f64> = self.classes.iter().filter_map(f1).collect();
        (!each.is_empty()).then(|| each.iter().sum::<f64>() / each.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(classes: usize, guesses: &[usize], labels: &[usize]) -> (Option<f64>, Option<f64>) {
        let mut confusion = Confusion::new(classes);
        guesses.iter().zip(labels).for_each(|(&guess, &label)| confusion.add(guess, label));
        (confusion.accuracy(), confusion.macro_f1())
    }

    fn close(found: Option<f64>, expected: f64) {
        assert!((found.unwrap() - expected).abs() < 1e-12, "{found:?} is not {expected}");
    }

    #[test]
    fn accuracy_and_f1_are_those_of_scikit_learn() {
        // accuracy_score and f1_score(average="macro") of scikit-learn 1.9, the last with a class that never occurs.
        type Case<'a> = (usize, &'a [usize], &'a [usize], f64, f64);
        let cases: [Case; 4] = [
            (2, &[0, 1, 1, 0], &[0, 1, 0, 0], 0.75, 0.733_333_333_333_333_4),
            (3, &[0, 2, 1, 2, 2, 0], &[0, 1, 1, 2, 0, 0], 0.666_666_666_666_666_6, 0.655_555_555_555_555_6),
            (2, &[0, 0, 0, 0], &[0, 0, 1, 0], 0.75, 0.428_571_428_571_428_55),
            (4, &[2, 2, 0], &[2, 0, 0], 0.666_666_666_666_666_6, 0.666_666_666_666_666_6),
        ];
        for (classes, guesses, labels, accuracy, f1) in cases {
            let (found_accuracy, found_f1) = measured(classes, guesses, labels);
            close(found_accuracy, accuracy);
            close(found_f1, f1);
        }
    }

    #[test]
    fn without_texts_there_is_nothing_to_say() {
        assert_eq!(measured(3, &[], &[]), (None, None));
    }
}
