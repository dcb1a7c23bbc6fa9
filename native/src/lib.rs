//! The hottest loops of a task of lockstep: the chunks of a `ColumnFold`, the updates of a fold by hand, and rows to Arrow.

mod arrow;
mod chunk;
mod column_table;
mod json;
mod rows;
mod table;
mod updates;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use column_table::ColumnTable;
use rows::{Column, Encoded, Origins};
use updates::UpdateLoop;

/// The columns of rows, which are tuples. `kinds` has the type of each, with a question mark where it may be null; None
/// for one that is left out. Returns None where a value is of another type, or does not fit. Raises `OverflowError`
/// where a column has more bytes of text than `bytes_max`.
#[pyfunction]
fn encode_rows<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyList>,
    kinds: Vec<Option<String>>,
    bytes_max: usize,
) -> PyResult<Option<Vec<Option<Encoded<'py>>>>> {
    let make = |kind: &Option<String>| kind.as_deref().map(|kind| new_column(kind, rows.len(), bytes_max)).transpose();
    let mut columns = kinds.iter().map(make).collect::<PyResult<Vec<_>>>()?;
    if rows::fill(&mut columns, rows).is_err() {
        return if columns.iter().flatten().any(Column::is_over) { Err(too_large(bytes_max)) } else { Ok(None) };
    }
    let encode = |column: &Option<Column>| column.as_ref().map(|column| column.encode(py, rows.len())).transpose();
    columns.iter().map(encode).collect::<PyResult<_>>().map(Some)
}

/// The columns of values. `kinds` and `bytes_max` are as in `encode_rows`, as are the results.
#[pyfunction]
fn encode_columns<'py>(
    py: Python<'py>,
    columns: Vec<Bound<'py, PyAny>>,
    kinds: Vec<String>,
    bytes_max: usize,
) -> PyResult<Option<Vec<Encoded<'py>>>> {
    let mut encoded = Vec::with_capacity(columns.len());
    for (values, kind) in columns.iter().zip(kinds) {
        let mut column = new_column(&kind, values.len()?, bytes_max)?;
        let Ok(size) = rows::fill_one(&mut column, values) else {
            return if column.is_over() { Err(too_large(bytes_max)) } else { Ok(None) };
        };
        encoded.push(column.encode(py, size)?);
    }
    Ok(Some(encoded))
}

/// The origins of messages with a row each, as columns (offsets, sessions, numbers, event times), and the bounds of the
/// event times. Returns None where a message has another number of rows, a value is of another type or does not fit, or
/// a column has more bytes of text than `bytes_max`.
#[pyfunction]
#[allow(clippy::type_complexity)]
fn encode_origins<'py>(
    py: Python<'py>,
    origins: &Bound<'py, PyList>,
    bytes_max: usize,
) -> PyResult<Option<(Vec<Encoded<'py>>, Option<(i64, i64)>)>> {
    let Ok(made) = Origins::read(origins, bytes_max) else { return Ok(None) };
    let columns = made.columns.iter().map(|column| column.encode(py, origins.len())).collect::<PyResult<_>>()?;
    Ok(Some((columns, made.times)))
}

fn new_column(kind: &str, size: usize, bytes_max: usize) -> PyResult<Column> {
    Column::new(kind, size, bytes_max).ok_or_else(|| PyValueError::new_err(format!("unknown type {kind}")))
}

fn too_large(bytes_max: usize) -> PyErr {
    PyOverflowError::new_err(format!("a column of more than {bytes_max} bytes of text"))
}

#[pymodule]
mod lockstep_native {
    /// What lockstep compares with the interface that it calls; raised with each change of a signature or a meaning.
    #[pymodule_export]
    const INTERFACE: u32 = 6;

    #[pymodule_export]
    use super::{ColumnTable, UpdateLoop, encode_columns, encode_origins, encode_rows};
}
