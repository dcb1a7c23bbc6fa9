//! Rows of Python values as Arrow buffers, each value checked: `RowsBuilder` (`lockstep.table.row_encoder`) in one pass.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::arrow::{self, Buffers};
use crate::chunk::{Kind, word_of_float};
use crate::json::{NotPlain, Plain};

/// Integers that a double holds, up to here whatever they are.
const EXACT_MAX: i64 = 1 << 53;

/// A column of Arrow: its validity, the number of its nulls, and its other buffers.
pub type Encoded<'py> = (Option<Bound<'py, PyBytes>>, usize, Buffers<'py>);

/// A column that is being made.
pub struct Column {
    kind: Kind,
    nullable: bool,
    words: Vec<i64>,
    ends: Vec<i32>,
    bytes: Vec<u8>,
    bytes_max: usize,
    is_over: bool,
    nulls: Vec<usize>,
}

impl Column {
    /// A column of a type; a question mark says that it may be null.
    pub fn new(declared: &str, rows: usize, bytes_max: usize) -> Option<Self> {
        let name = declared.strip_suffix('?').unwrap_or(declared);
        let kind = Kind::named(name)?;
        let (numbers, texts) = if kind == Kind::Text { (0, rows) } else { (rows, 0) };
        Some(Self {
            kind,
            nullable: name != declared,
            words: Vec::with_capacity(numbers),
            ends: Vec::with_capacity(texts),
            bytes: Vec::new(),
            bytes_max,
            is_over: false,
            nulls: Vec::new(),
        })
    }

    /// Whether it has refused a text as one byte too many.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Adds a value. It is not plain where it is of another type, or does not fit.
    pub fn push(&mut self, row: usize, value: &Bound<'_, PyAny>) -> Plain<()> {
        if value.is_none() {
            if !self.nullable {
                return Err(NotPlain);
            }
            self.nulls.push(row);
            if self.kind != Kind::Text {
                self.words.push(0);
                return Ok(());
            }
        }
        let word = match self.kind {
            Kind::Text => return self.push_text(value),
            Kind::Int => integer(value)?,
            Kind::Float => word_of_float(float(value)?),
            Kind::Bool => i64::from(value.cast::<PyBool>().map_err(|_| NotPlain)?.is_true()),
        };
        self.words.push(word);
        Ok(())
    }

    fn push_text(&mut self, value: &Bound<'_, PyAny>) -> Plain<()> {
        if !value.is_none() {
            let text = value.cast::<PyString>().map_err(|_| NotPlain)?.to_cow().map_err(|_| NotPlain)?;
            if text.len() > self.bytes_max - self.bytes.len() {
                self.is_over = true;
                return Err(NotPlain);
            }
            self.bytes.extend_from_slice(text.as_bytes());
        }
        self.ends.push(i32::try_from(self.bytes.len()).map_err(|_| NotPlain)?);
        Ok(())
    }

    /// The buffers of Arrow, that of the nulls first, and the number of nulls.
    pub fn encode<'py>(&self, py: Python<'py>, rows: usize) -> PyResult<Encoded<'py>> {
        let buffers = match self.kind {
            Kind::Text => arrow::encode_ends(py, &self.ends, &self.bytes)?,
            Kind::Int | Kind::Float => vec![arrow::encode_words(py, self.words.iter().copied())?],
            Kind::Bool => vec![arrow::encode_bits(py, self.words.iter().copied())?],
        };
        let valid = if self.nulls.is_empty() { None } else { Some(arrow::encode_valid(py, &self.nulls, rows)?) };
        Ok((valid, self.nulls.len(), buffers))
    }
}

fn integer(value: &Bound<'_, PyAny>) -> Plain<i64> {
    let is_integer = value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>();
    if is_integer { value.extract().map_err(|_| NotPlain) } else { Err(NotPlain) }
}

fn float(value: &Bound<'_, PyAny>) -> Plain<f64> {
    if let Ok(float) = value.cast::<PyFloat>() {
        return Ok(float.value());
    }
    let exact = integer(value)?;
    #[allow(clippy::cast_precision_loss)] // within the bounds
    if (-EXACT_MAX..=EXACT_MAX).contains(&exact) { Ok(exact as f64) } else { Err(NotPlain) }
}

/// The origins of messages with a row each, as columns: their offsets, sessions, numbers and event times.
pub struct Origins {
    pub columns: [Column; 4],
    /// The smallest event time and the largest; None without any.
    pub times: Option<(i64, i64)>,
}

impl Origins {
    /// Reads origins, which are tuples of six (`MessageOrigin`). They are not plain where a message has another number
    /// of rows, or its rows were emitted at another offset.
    pub fn read(origins: &Bound<'_, PyList>, bytes_max: usize) -> Plain<Self> {
        let column = |kind| Column::new(kind, origins.len(), bytes_max).ok_or(NotPlain);
        let mut made =
            Self { columns: [column("int")?, column("str")?, column("int?")?, column("int?")?], times: None };
        for (place, origin) in origins.iter().enumerate() {
            let origin = origin.cast::<PyTuple>().map_err(|_| NotPlain)?;
            made.push(place, origin)?;
        }
        Ok(made)
    }

    fn push(&mut self, place: usize, origin: &Bound<'_, PyTuple>) -> Plain<()> {
        let get = |field| origin.get_borrowed_item(field).map_err(|_| NotPlain);
        let (offset, rows, time, emitted) = (get(0)?, get(1)?, get(4)?, get(5)?);
        if integer(&rows)? != 1 || integer(&offset)? != integer(&emitted)? {
            return Err(NotPlain);
        }
        if !time.is_none() {
            let time = integer(&time)?;
            let (first, last) = self.times.unwrap_or((time, time));
            self.times = Some((first.min(time), last.max(time)));
        }
        for (column, value) in self.columns.iter_mut().zip([offset, get(2)?, get(3)?, time]) {
            column.push(place, &value)?;
        }
        Ok(())
    }
}

/// Fills a column with values, which are a list or a tuple.
pub fn fill_one(column: &mut Column, values: &Bound<'_, PyAny>) -> Plain<usize> {
    if let Ok(values) = values.cast::<PyTuple>() {
        values.iter_borrowed().enumerate().try_for_each(|(place, value)| column.push(place, &value))?;
        return Ok(values.len());
    }
    let values = values.cast::<PyList>().map_err(|_| NotPlain)?;
    values.iter().enumerate().try_for_each(|(place, value)| column.push(place, &value))?;
    Ok(values.len())
}

/// Fills columns with rows, which are tuples; `columns` has None for those that somebody else encodes.
pub fn fill(columns: &mut [Option<Column>], rows: &Bound<'_, PyList>) -> Plain<()> {
    for (place, row) in rows.iter().enumerate() {
        let row = row.cast::<PyTuple>().map_err(|_| NotPlain)?;
        if row.len() != columns.len() {
            return Err(NotPlain);
        }
        for (column, value) in columns.iter_mut().zip(row.iter_borrowed()) {
            if let Some(column) = column {
                column.push(place, &value)?;
            }
        }
    }
    Ok(())
}
