//! Arrow buffers of columns without nulls: of numbers their values, of texts their offsets and bytes.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::chunk::{Kind, Texts, Word};

pub type Buffers<'py> = Vec<Bound<'py, PyBytes>>;

/// The buffers of a column of words.
pub fn encode<'py>(
    py: Python<'py>,
    kind: Kind,
    words: impl ExactSizeIterator<Item = Word>,
    texts: &Texts,
    bytes_max: usize,
) -> PyResult<Buffers<'py>> {
    match kind {
        Kind::Text => encode_texts(py, words.map(|word| text_of(texts, word)), bytes_max),
        Kind::Int | Kind::Float => Ok(vec![encode_words(py, words)?]),
        Kind::Bool => encode_bits(py, words).map(|bits| vec![bits]),
    }
}

/// Words of 64 bits, which numbers and doubles are.
pub fn encode_words(py: Python<'_>, words: impl ExactSizeIterator<Item = Word>) -> PyResult<Bound<'_, PyBytes>> {
    PyBytes::new_with(py, words.len() * size_of::<Word>(), |bytes| {
        for (place, word) in bytes.chunks_exact_mut(size_of::<Word>()).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    })
}

/// Texts: where each ends, and their bytes. Raises `OverflowError` where they have more bytes than `bytes_max`.
pub fn encode_texts<'a, 'py>(
    py: Python<'py>,
    texts: impl ExactSizeIterator<Item = &'a str>,
    bytes_max: usize,
) -> PyResult<Buffers<'py>> {
    let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(texts.len()));
    for text in texts {
        if text.len() > bytes_max - bytes.len() {
            return Err(PyOverflowError::new_err(format!("a column of more than {bytes_max} bytes of text")));
        }
        bytes.extend_from_slice(text.as_bytes());
        ends.push(i32::try_from(bytes.len())?);
    }
    encode_ends(py, &ends, &bytes)
}

/// Texts of which it is known where each ends.
pub fn encode_ends<'py>(py: Python<'py>, ends: &[i32], bytes: &[u8]) -> PyResult<Buffers<'py>> {
    let offsets: Vec<u8> = std::iter::once(&0).chain(ends).flat_map(|end| end.to_le_bytes()).collect();
    Ok(vec![copy_bytes(py, &offsets)?, copy_bytes(py, bytes)?])
}

/// Bytes as an object of Python. Raises `MemoryError` for want of memory, where `PyBytes::new` panics.
fn copy_bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, bytes.len(), |copy| {
        copy.copy_from_slice(bytes);
        Ok(())
    })
}

/// A bit for each row, which is not set for the nulls.
pub fn encode_valid<'py>(py: Python<'py>, nulls: &[usize], rows: usize) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, rows.div_ceil(8), |bytes| {
        bytes.fill(u8::MAX);
        for row in nulls {
            bytes[row / 8] &= !(1 << (row % 8));
        }
        Ok(())
    })
}

/// The text of a word.
pub fn text_of(texts: &Texts, word: Word) -> &str {
    usize::try_from(word).ok().and_then(|number| texts.get_index(number)).expect("each word of a text is its number")
}

/// Booleans, a bit each.
pub fn encode_bits(py: Python<'_>, words: impl ExactSizeIterator<Item = Word>) -> PyResult<Bound<'_, PyBytes>> {
    PyBytes::new_with(py, words.len().div_ceil(8), |bytes| {
        for (place, word) in words.enumerate() {
            let byte = bytes.get_mut(place / 8).ok_or_else(|| PyValueError::new_err("more words than said"))?;
            *byte |= u8::from(word != 0) << (place % 8);
        }
        Ok(())
    })
}
