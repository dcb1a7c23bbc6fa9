//! The rows that a range has touched, a word a column, and what a chunk changes of them.

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use crate::chunk::{Chunk, Word};

/// Session and key of a row, by number.
pub type Pair = (usize, Word);
pub type Pairs = IndexSet<Pair, RandomState>;

/// The rows of a range.
#[derive(Default)]
pub struct Table {
    /// The rows, by place.
    pub pairs: Pairs,
    /// The newest values, by place: a line a row.
    pub words: Vec<Word>,
    /// The rows that differ from the states of their sessions.
    pub is_changed: Vec<bool>,
}

/// The emitted rows of a chunk: a line of words each.
#[derive(Default)]
pub struct Emitted {
    /// The key.
    pub keys: Vec<Word>,
    /// The session, by number.
    pub sessions: Vec<usize>,
    /// The place of the row in the table.
    pub places: Vec<usize>,
    /// The columns after the change.
    pub after: Vec<Word>,
    /// The columns before it.
    pub before: Vec<Word>,
    /// For each message the number of its rows.
    pub counts: Vec<i64>,
}

impl Table {
    pub fn clear(&mut self) {
        self.pairs.clear();
        self.words.clear();
        self.is_changed.clear();
    }

    /// The places of the rows of a chunk, one for each change; or the rows that are not there, each once.
    pub fn find(&self, chunk: &Chunk) -> Result<Vec<usize>, Pairs> {
        let (mut places, mut missing) = (Vec::with_capacity(chunk.keys.len()), Pairs::default());
        let mut keys = chunk.keys.iter();
        for (&session, &size) in chunk.sessions.iter().zip(&chunk.sizes) {
            for &key in keys.by_ref().take(size) {
                match self.pairs.get_index_of(&(session, key)) {
                    Some(place) => places.push(place),
                    None => _ = missing.insert((session, key)),
                }
            }
        }
        if missing.is_empty() { Ok(places) } else { Err(missing) }
    }

    /// Adds a row as it is in the state of its session.
    pub fn add(&mut self, pair: Pair, words: &[Word]) {
        if self.pairs.insert(pair) {
            self.words.extend_from_slice(words);
            self.is_changed.push(false);
        }
    }

    /// Applies the changes of a chunk one after the other; `places` has the row of each.
    pub fn change(&mut self, chunk: &Chunk, places: &[usize], width: usize, emits_unchanged: bool) -> Emitted {
        let (mut emitted, mut change) = (Emitted::default(), 0);
        for (&session, &size) in chunk.sessions.iter().zip(&chunk.sizes) {
            let mut count = 0;
            for (change, &place) in (change..).zip(&places[change..change + size]) {
                let (line, first) = (&mut self.words[place * width..][..width], emitted.before.len());
                emitted.before.extend_from_slice(line);
                let (new, mut present) = (&chunk.words[change * width..][..width], chunk.present[change]);
                while present != 0 {
                    let column = present.trailing_zeros() as usize;
                    line[column] = new[column];
                    present &= present - 1;
                }
                if !emits_unchanged && *line == emitted.before[first..] {
                    emitted.before.truncate(first);
                    continue;
                }
                self.is_changed[place] = true;
                emitted.after.extend_from_slice(line);
                emitted.keys.push(chunk.keys[change]);
                emitted.sessions.push(session);
                emitted.places.push(place);
                count += 1;
            }
            change += size;
            emitted.counts.push(count);
        }
        emitted
    }

    /// Takes changes back.
    pub fn undo(&mut self, emitted: &Emitted, width: usize) {
        for (row, place) in emitted.places.iter().enumerate().rev() {
            self.words[place * width..][..width].copy_from_slice(&emitted.before[row * width..][..width]);
        }
    }
}
