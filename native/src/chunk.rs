//! The updates of a chunk, read from JSON into columns.

use std::borrow::Cow;

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use crate::json::{Cursor, NotPlain, Plain};

/// Texts by number, in the order in which they appeared.
pub type Texts = IndexSet<Box<str>, RandomState>;

/// The number of a text, drawn where it is new.
pub fn number_of(texts: &mut Texts, text: &str) -> usize {
    texts.get_index_of(text).unwrap_or_else(|| texts.insert_full(text.into()).0)
}

/// A word: an integer, a boolean, the bits of a double, or the number of a text.
pub type Word = i64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Int,
    Float,
    Bool,
}

impl Kind {
    /// The kind of a Python type.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "str" => Some(Self::Text),
            "int" => Some(Self::Int),
            "float" => Some(Self::Float),
            "bool" => Some(Self::Bool),
            _ => None,
        }
    }
}

/// What a field is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Names the type of the message by this text.
    Tag(String),
    Session,
    Sequence,
    Time,
    Rows,
    Key,
    /// The column of this number.
    Column(usize),
    /// Checked, and used by nobody.
    Other,
}

pub struct Field {
    pub name: String,
    pub role: Role,
    pub kind: Kind,
    pub required: bool,
}

/// The fields of a JSON object.
pub struct Object {
    pub fields: Vec<Field>,
    pub forbids_unknown: bool,
}

impl Object {
    /// Reads an object: calls `read` with each field and the cursor at its value.
    fn read<'a>(
        &self,
        cursor: &mut Cursor<'a>,
        mut read: impl FnMut(&Field, &mut Cursor<'a>) -> Plain<()>,
    ) -> Plain<()> {
        let (mut seen, mut next) = (0_u64, 0);
        cursor.object(|name, value| {
            let Some(place) = self.find(name, next) else {
                return if self.forbids_unknown { Err(NotPlain) } else { value.skip() };
            };
            if seen >> place & 1 == 1 {
                return Err(NotPlain);
            }
            (seen, next) = (seen | 1 << place, place + 1);
            read(&self.fields[place], value)
        })?;
        let is_complete =
            self.fields.iter().enumerate().all(|(place, field)| seen >> place & 1 == 1 || !field.required);
        if is_complete { Ok(()) } else { Err(NotPlain) }
    }

    /// The place of a field: mostly the next one, as a producer writes them in one order.
    fn find(&self, name: &str, next: usize) -> Option<usize> {
        if self.fields.get(next).is_some_and(|field| field.name == name) {
            return Some(next);
        }
        self.fields.iter().position(|field| field.name == name)
    }
}

/// The shape of the messages of a stream.
pub struct Shape {
    pub message: Object,
    pub row: Object,
    pub width: usize,
    pub bytes_max: usize,
}

/// The updates of a chunk, by column; a number for each message, or for each change of a row.
#[derive(Default)]
pub struct Chunk {
    /// Messages: the number of the session.
    pub sessions: Vec<usize>,
    /// Messages: the producer's number.
    pub sequences: Vec<i64>,
    /// Messages: the event time; zero without one.
    pub times: Vec<i64>,
    /// Messages: how many changes they have.
    pub sizes: Vec<usize>,
    /// Changes: the key.
    pub keys: Vec<Word>,
    /// Changes: a word a column.
    pub words: Vec<Word>,
    /// Changes: a bit for each column that has a word.
    pub present: Vec<u64>,
}

impl Chunk {
    pub fn clear(&mut self) {
        let Self { sessions, sequences, times, sizes, keys, words, present } = self;
        for numbers in [sequences, times, keys, words] {
            numbers.clear();
        }
        sessions.clear();
        sizes.clear();
        present.clear();
    }

    /// Adds a message. Where it is not plain, the chunk is no longer of use.
    pub fn add(
        &mut self,
        shape: &Shape,
        value: &[u8],
        key: Option<&[u8]>,
        names: &mut Texts,
        texts: &mut Texts,
    ) -> Plain<()> {
        if value.len() > shape.bytes_max {
            return Err(NotPlain);
        }
        let mut cursor = Cursor::new(std::str::from_utf8(value).map_err(|_| NotPlain)?);
        let (mut session, mut sequence, mut time, before) = (None, 0, 0, self.keys.len());
        if let Some(key) = key {
            session = Some(number_of(names, std::str::from_utf8(key).map_err(|_| NotPlain)?));
        }
        shape.message.read(&mut cursor, |field, value| {
            match &field.role {
                Role::Tag(tag) if value.string()? != tag.as_str() => return Err(NotPlain),
                Role::Tag(_) => (),
                Role::Session => session = Some(number_of(names, &value.string()?)),
                Role::Sequence => sequence = value.integer()?,
                Role::Time => time = value.integer()?,
                Role::Rows => value.array(|row| self.add_change(shape, row, texts))?,
                Role::Key | Role::Column(_) | Role::Other => check(field.kind, value)?,
            }
            Ok(())
        })?;
        cursor.end()?;
        self.sessions.push(session.ok_or(NotPlain)?);
        self.sequences.push(sequence);
        self.times.push(time);
        self.sizes.push(self.keys.len() - before);
        Ok(())
    }

    fn add_change(&mut self, shape: &Shape, cursor: &mut Cursor, texts: &mut Texts) -> Plain<()> {
        let (first, mut present) = (self.words.len(), 0);
        self.words.resize(first + shape.width, 0);
        shape.row.read(cursor, |field, value| {
            match field.role {
                Role::Key => self.keys.push(read_word(field.kind, value, texts)?),
                Role::Column(column) => {
                    self.words[first + column] = read_word(field.kind, value, texts)?;
                    present |= 1 << column;
                }
                _ => check(field.kind, value)?,
            }
            Ok(())
        })?;
        self.present.push(present);
        Ok(())
    }
}

fn read_word(kind: Kind, value: &mut Cursor, texts: &mut Texts) -> Plain<Word> {
    Ok(match kind {
        Kind::Text => word_of_text(texts, &value.string()?),
        Kind::Int => value.integer()?,
        Kind::Float => word_of_float(value.float()?),
        Kind::Bool => i64::from(value.boolean()?),
    })
}

/// The word of a text.
pub fn word_of_text(texts: &mut Texts, text: &str) -> Word {
    i64::try_from(number_of(texts, text)).expect("there is no room for 2^63 texts")
}

/// The word of a double.
pub fn word_of_float(value: f64) -> Word {
    Word::from_ne_bytes(value.to_ne_bytes())
}

/// The double of a word.
pub fn float_of_word(word: Word) -> f64 {
    f64::from_ne_bytes(word.to_ne_bytes())
}

fn check(kind: Kind, value: &mut Cursor) -> Plain<()> {
    match kind {
        Kind::Text => value.string().map(|_: Cow<str>| ()),
        Kind::Int => value.integer().map(drop),
        Kind::Float => value.float().map(drop),
        Kind::Bool => value.boolean().map(drop),
    }
}
