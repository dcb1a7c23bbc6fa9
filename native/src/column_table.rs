//! The chunks of a `ColumnFold` (`lockstep.engine.executor.columnar`) without an object a message.
//!
//! Whatever is not the plain case is said to be so, and nothing has changed: lockstep then folds the chunk message by
//! message, so that there is one meaning and one source of verdicts.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyBytesMethods, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::arrow::{self, Buffers};
use crate::chunk::{Chunk, Field, Kind, Object, Role, Shape, Texts, Word, float_of_word, word_of_float, word_of_text};
use crate::table::{Emitted, Pair, Table};

/// Fields of an object: each has a bit in a word.
const FIELDS_MAX: usize = 64;

/// A field as Python declares it: name in JSON, type, and whether it is required.
type FieldDeclaration = (String, String, bool);

/// The shape of updates, as Python declares it (`lockstep.engine.executor.update_shape`).
#[derive(FromPyObject)]
struct Declaration {
    message: Vec<FieldDeclaration>,
    tag_field: String,
    tag: String,
    session: Option<String>,
    sequence: String,
    time: Option<String>,
    rows: String,
    row: Vec<FieldDeclaration>,
    key: String,
    columns: Vec<String>,
    message_forbids_unknown: bool,
    row_forbids_unknown: bool,
    message_bytes_max: usize,
    emits_unchanged: bool,
}

/// The rows of one range, and the chunk that is being folded.
#[pyclass(module = "lockstep_native")]
pub struct ColumnTable {
    shape: Shape,
    kinds: Vec<Kind>,
    key: Kind,
    emits_unchanged: bool,
    names: Texts,
    texts: Texts,
    /// For each session its number in the chunk that `read` has seen last, and the newest of its sequence numbers.
    newest: Vec<(u64, i64)>,
    chunks: u64,
    in_chunk: Vec<usize>,
    chunk: Chunk,
    table: Table,
}

#[pymethods]
impl ColumnTable {
    /// Raises `ValueError` where a shape is not supported.
    #[new]
    fn new(declared: Declaration) -> PyResult<Self> {
        let (shape, kinds, key) = read_shape(&declared)?;
        Ok(Self {
            shape,
            kinds,
            key,
            emits_unchanged: declared.emits_unchanged,
            names: Texts::default(),
            texts: Texts::default(),
            newest: Vec::new(),
            chunks: 0,
            in_chunk: Vec::new(),
            chunk: Chunk::default(),
            table: Table::default(),
        })
    }

    /// Reads the values of messages, and their keys where these are the sessions. Returns the sessions, each once; None
    /// where a message is not plain, or none changes a row.
    fn read<'py>(
        &mut self,
        py: Python<'py>,
        values: &Bound<'py, PyList>,
        keys: Option<&Bound<'py, PyList>>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        self.chunk.clear();
        for (place, value) in values.iter().enumerate() {
            let (Ok(value), key) = (value.cast_into::<PyBytes>(), keys.map(|keys| keys.get_item(place)).transpose()?)
            else {
                return Ok(None); // a tombstone
            };
            let key = key.map(Bound::cast_into::<PyBytes>).transpose().map_err(PyErr::from)?;
            let key = key.as_ref().map(PyBytesMethods::as_bytes);
            if self.chunk.add(&self.shape, value.as_bytes(), key, &mut self.names, &mut self.texts).is_err() {
                return Ok(None);
            }
        }
        if self.chunk.keys.is_empty() {
            return Ok(None);
        }
        self.list_sessions();
        PyList::new(py, self.in_chunk.iter().map(|&session| &*self.names[session])).map(Some)
    }

    /// Compares the numbers of the sessions that `read` named with the newest ones so far. Returns the newest ones of
    /// the chunk; None where one does not follow.
    fn follow(&mut self, newest: Vec<i64>, largest: i64) -> Option<Vec<i64>> {
        for (&session, newest) in self.in_chunk.iter().zip(newest) {
            self.newest[session].1 = newest;
        }
        for (&session, &sequence) in self.chunk.sessions.iter().zip(&self.chunk.sequences) {
            let newest = &mut self.newest[session].1;
            if *newest == largest || sequence != *newest + 1 {
                return None;
            }
            *newest = sequence;
        }
        Some(self.in_chunk.iter().map(|&session| self.newest[session].1).collect())
    }

    /// The rows of the chunk that `add` has not brought yet, as session and key.
    fn missing<'py>(&self, py: Python<'py>) -> PyResult<Vec<(&str, Bound<'py, PyAny>)>> {
        let missing = self.table.find(&self.chunk).err().unwrap_or_default();
        missing.iter().map(|pair| self.name_row(py, pair)).collect()
    }

    /// Adds the rows that `missing` named, in its order, as tuples of their columns. Raises `TypeError` and the like
    /// where a value is of another type than its column; `ValueError` where equal values might be of unequal words.
    fn add(&mut self, rows: Vec<Bound<'_, PyTuple>>) -> PyResult<()> {
        let pairs = self.table.find(&self.chunk).err().unwrap_or_default();
        let mut words = Vec::with_capacity(rows.len() * self.kinds.len());
        for row in rows {
            if row.len() != self.kinds.len() {
                return Err(PyValueError::new_err("a row of another number of columns"));
            }
            for (kind, value) in self.kinds.iter().zip(row.iter()) {
                words.push(word_of(*kind, &value, &mut self.texts)?);
            }
        }
        self.check_comparable(&words)?;
        for (pair, line) in pairs.into_iter().zip(words.chunks_exact(self.kinds.len())) {
            self.table.add(pair, line);
        }
        Ok(())
    }

    /// Applies the chunk. Returns the Arrow buffers of the emitted rows: for each of `source` (0 the key, then the
    /// columns, then the columns before), then their sessions; and for each message the number of its rows, as words.
    /// Raises `ValueError`, and nothing is changed, where a row is missing or equal values might be of unequal words;
    /// `OverflowError` likewise, where a column has more bytes of text than `bytes_max`.
    fn change<'py>(
        &mut self,
        py: Python<'py>,
        source: Vec<usize>,
        bytes_max: usize,
    ) -> PyResult<(Vec<Buffers<'py>>, Bound<'py, PyBytes>)> {
        self.check_comparable(&self.chunk.words)?;
        let places = self.table.find(&self.chunk).map_err(|_| PyValueError::new_err("rows are missing"))?;
        let emitted = self.table.change(&self.chunk, &places, self.kinds.len(), self.emits_unchanged);
        self.encode(py, &emitted, source, bytes_max).inspect_err(|_| self.table.undo(&emitted, self.kinds.len()))
    }

    /// Of each message its sequence number, as words.
    fn sequences<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        arrow::encode_words(py, self.chunk.sequences.iter().copied())
    }

    /// Of each message its event time, as words.
    fn times<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        arrow::encode_words(py, self.chunk.times.iter().copied())
    }

    /// The changed rows as session, key and a tuple of columns; forgets all rows.
    #[allow(clippy::type_complexity)]
    fn take_changed<'py>(
        &mut self,
        py: Python<'py>,
    ) -> PyResult<Vec<(String, Bound<'py, PyAny>, Bound<'py, PyTuple>)>> {
        let mut taken = Vec::new();
        for (place, pair) in self.table.pairs.iter().enumerate().filter(|(place, _)| self.table.is_changed[*place]) {
            let line = &self.table.words[place * self.kinds.len()..][..self.kinds.len()];
            let values = self.kinds.iter().zip(line).map(|(kind, word)| self.value_of(py, *kind, *word));
            let (session, key) = self.name_row(py, pair)?;
            taken.push((session.to_owned(), key, PyTuple::new(py, values.collect::<PyResult<Vec<_>>>()?)?));
        }
        self.table.clear();
        Ok(taken)
    }
}

impl ColumnTable {
    fn encode<'py>(
        &self,
        py: Python<'py>,
        emitted: &Emitted,
        source: Vec<usize>,
        bytes_max: usize,
    ) -> PyResult<(Vec<Buffers<'py>>, Bound<'py, PyBytes>)> {
        let width = self.kinds.len();
        let column = |at: usize| match at.checked_sub(1) {
            None => arrow::encode(py, self.key, emitted.keys.iter().copied(), &self.texts, bytes_max),
            Some(at) => {
                let lines = if at < width { &emitted.after } else { &emitted.before };
                let words = lines.iter().skip(at % width).step_by(width).copied();
                arrow::encode(py, self.kinds[at % width], words, &self.texts, bytes_max)
            }
        };
        let mut columns = source.into_iter().map(column).collect::<PyResult<Vec<_>>>()?;
        let sessions = emitted.sessions.iter().map(|&session| &*self.names[session]);
        columns.push(arrow::encode_texts(py, sessions, bytes_max)?);
        Ok((columns, arrow::encode_words(py, emitted.counts.iter().copied())?))
    }

    /// Sets `in_chunk`: the sessions of the chunk, in the order of their first messages.
    fn list_sessions(&mut self) {
        self.chunks += 1;
        self.in_chunk.clear();
        self.newest.resize(self.names.len(), (0, 0));
        for &session in &self.chunk.sessions {
            if self.newest[session].0 != self.chunks {
                self.newest[session].0 = self.chunks;
                self.in_chunk.push(session);
            }
        }
    }

    fn name_row<'py>(&self, py: Python<'py>, pair: &Pair) -> PyResult<(&str, Bound<'py, PyAny>)> {
        Ok((&self.names[pair.0], self.value_of(py, self.key, pair.1)?))
    }

    fn value_of<'py>(&self, py: Python<'py>, kind: Kind, word: Word) -> PyResult<Bound<'py, PyAny>> {
        Ok(match kind {
            Kind::Text => PyString::new(py, arrow::text_of(&self.texts, word)).into_any(),
            Kind::Int => word.into_pyobject(py)?.into_any(),
            Kind::Float => PyFloat::new(py, float_of_word(word)).into_any(),
            Kind::Bool => PyBool::new(py, word != 0).to_owned().into_any(),
        })
    }

    /// Where only changed rows are emitted, equal values have to be equal words: not so NaN, nor -0.0.
    fn check_comparable(&self, words: &[Word]) -> PyResult<()> {
        if self.emits_unchanged {
            return Ok(());
        }
        let floats = self.kinds.iter().cycle().zip(words).filter(|(kind, _)| **kind == Kind::Float);
        let mut values = floats.map(|(_, word)| float_of_word(*word));
        match values.find(|value| value.is_nan() || (*value == 0.0 && value.is_sign_negative())) {
            None => Ok(()),
            Some(value) => Err(PyValueError::new_err(format!("{value} cannot be compared by its bits"))),
        }
    }
}

/// The word of a value of exactly its column's type.
fn word_of(kind: Kind, value: &Bound<'_, PyAny>, texts: &mut Texts) -> PyResult<Word> {
    match kind {
        Kind::Text if value.is_exact_instance_of::<PyString>() => {
            Ok(word_of_text(texts, value.cast::<PyString>()?.to_cow()?.as_ref()))
        }
        Kind::Int if value.is_exact_instance_of::<PyInt>() => value.extract(),
        Kind::Float if value.is_exact_instance_of::<PyFloat>() => Ok(word_of_float(value.extract()?)),
        Kind::Bool if value.is_exact_instance_of::<PyBool>() => Ok(i64::from(value.extract::<bool>()?)),
        _ => Err(PyTypeError::new_err("a value of another type than its column")),
    }
}

/// The shape of updates, the types of their columns, and that of their key.
fn read_shape(declared: &Declaration) -> PyResult<(Shape, Vec<Kind>, Kind)> {
    let of_message = |name: &str| match name {
        _ if name == declared.tag_field => Role::Tag(declared.tag.clone()),
        _ if Some(name) == declared.session.as_deref() => Role::Session,
        _ if name == declared.sequence => Role::Sequence,
        _ if Some(name) == declared.time.as_deref() => Role::Time,
        _ if name == declared.rows => Role::Rows,
        _ => Role::Other,
    };
    let of_row = |name: &str| match declared.columns.iter().position(|column| column == name) {
        _ if name == declared.key => Role::Key,
        Some(column) => Role::Column(column),
        None => Role::Other,
    };
    let message = read_object(&declared.message, of_message, declared.message_forbids_unknown)?;
    let row = read_object(&declared.row, of_row, declared.row_forbids_unknown)?;
    let kind_of = |name: &String| {
        let found = row.fields.iter().find(|field| field.name == *name).map(|field| field.kind);
        found.ok_or_else(|| PyValueError::new_err(format!("{name} is no field of a row")))
    };
    let kinds: Vec<Kind> = declared.columns.iter().map(kind_of).collect::<PyResult<_>>()?;
    let key = kind_of(&declared.key)?;
    let shape = Shape { message, row, width: kinds.len(), bytes_max: declared.message_bytes_max };
    Ok((shape, kinds, key))
}

fn read_object(
    declared: &[FieldDeclaration],
    role_of: impl Fn(&str) -> Role,
    forbids_unknown: bool,
) -> PyResult<Object> {
    if declared.len() > FIELDS_MAX {
        return Err(PyValueError::new_err(format!("more than {FIELDS_MAX} fields")));
    }
    let read = |(name, kind, required): &FieldDeclaration| {
        let kind = Kind::named(kind).ok_or_else(|| PyValueError::new_err(format!("{name}: unknown type {kind}")))?;
        Ok(Field { name: name.clone(), role: role_of(name), kind, required: *required })
    };
    Ok(Object { fields: declared.iter().map(read).collect::<PyResult<_>>()?, forbids_unknown })
}
