//! Drawing the next token from its scores.

use plimsoll_exec::random::{Stream, name_hash};

/// How the next token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Above 1 more daring, below 1 less; 0 always takes the likeliest.
    pub temperature: f32,
    /// Tokens are drawn only from this many likeliest ones; from all if absent.
    pub top_k: Option<usize>,
    /// The next token is drawn from the likeliest tokens that together have this probability.
    pub top_p: f32,
    /// Makes the draws repeatable.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// The token drawn at `position`.
    pub fn draw(&self, logits: &[f32], position: usize) -> i32 {
        let mut ids: Vec<usize> = (0..logits.len()).collect();
        ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let Some(&likeliest) = ids.first() else { return 0 };
        if self.temperature <= 0.0 {
            return likeliest as i32;
        }
        ids.truncate(self.top_k.unwrap_or(ids.len()).max(1));
        let weight = |id: usize| f64::from((logits[id] - logits[likeliest]) / self.temperature).exp();
        let whole: f64 = ids.iter().map(|&id| weight(id)).sum();
        let mut kept = 0.0;
        let enough = ids.iter().position(|&id| {
            kept += weight(id);
            kept >= f64::from(self.top_p) * whole
        });
        ids.truncate(enough.map_or(ids.len(), |last| last + 1));
        let kept: f64 = ids.iter().map(|&id| weight(id)).sum();
        let stream = Stream::new(self.seed, name_hash("generate"), position as u32);
        let mut left = f64::from(stream.uniform(0, 0)) * kept;
        let drawn = ids.iter().find(|&&id| {
            left -= weight(id);
            left < 0.0
        });
        *drawn.unwrap_or(&likeliest) as i32
    }
}
