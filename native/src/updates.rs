//! The plain updates of a fold by hand (`lockstep.engine.executor.plain_updates`): envelope by names of fields, gate,
//! entry and origin here, Python to decode and to apply.
//!
//! A message that is not plain is left to lockstep, and nothing has changed: one meaning, one source of verdicts.

use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString, PyType};

/// What a message is found to be.
enum Found {
    Applied,
    NotPlain,
}

/// A stream, as Python declares it (`PlainUpdates`).
#[derive(FromPyObject)]
struct Declaration {
    decode: Py<PyAny>,
    on_update: Py<PyAny>,
    updates: Vec<Py<PyType>>,
    session: Option<Py<PyString>>,
    sequence: Option<Py<PyString>>,
    time: Option<Py<PyString>>,
    id: Option<Py<PyString>>,
    envelope: Py<PyAny>,
    update: Py<PyAny>,
    accept: Py<PyAny>,
    message_bytes_max: usize,
    rows_max: usize,
    earliest_us: i64,
    latest_us: i64,
    unnumbered: Py<PyType>,
}

/// A range, as Python declares it (`UpdateRange`).
#[derive(FromPyObject)]
struct Range {
    record: Py<PyAny>,
    topic: Py<PyAny>,
    topic_id: Py<PyAny>,
    partition: Py<PyAny>,
    load: Py<PyAny>,
    flush_part: Py<PyAny>,
    rows: Py<PyList>,
    proofs: Py<PyList>,
}

/// Messages, as Python reads them (`Messages`); keys only where these are the sessions.
#[derive(FromPyObject)]
struct Messages<'py> {
    offsets: Bound<'py, PyList>,
    values: Bound<'py, PyList>,
    keys: Option<Bound<'py, PyList>>,
    sources: Bound<'py, PyList>,
}

/// The updates of one range.
#[pyclass(module = "lockstep_native")]
pub struct UpdateLoop {
    stream: Declaration,
    range: Range,
    gate: Py<PyString>,
    state: Py<PyString>,
    record: Option<Py<PyAny>>,
    body: Option<Py<PyAny>>,
}

#[pymethods]
impl UpdateLoop {
    #[new]
    fn new(py: Python<'_>, stream: Declaration, range: Range) -> Self {
        let (gate, state) = (PyString::intern(py, "gate").unbind(), PyString::intern(py, "state").unbind());
        Self { stream, range, gate, state, record: None, body: None }
    }

    /// Folds messages from a place on, up to one that is not plain, or one after which the rows are to be encoded.
    /// Returns the place after the last one that it has folded. Raises what `on_update` raises.
    fn fold(
        &mut self,
        py: Python<'_>,
        messages: Messages<'_>,
        from: usize,
        entries: &Bound<'_, PyDict>,
        check: Option<Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        self.body = None;
        for place in from..messages.offsets.len() {
            match self.apply(py, &messages, place, entries, check.as_ref())? {
                Found::NotPlain => return Ok(place),
                Found::Applied if self.is_full(py) => return Ok(place + 1),
                Found::Applied => {}
            }
        }
        Ok(messages.offsets.len())
    }

    /// Whether the rows are to be encoded.
    fn is_full(&self, py: Python<'_>) -> bool {
        let sizes = [self.range.rows.bind(py).len(), self.range.proofs.bind(py).len()];
        sizes.into_iter().any(|size| size >= self.stream.rows_max)
    }

    /// The record of the message at which it has ended; None before the first.
    fn last_record(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.record.as_ref().map(|record| record.clone_ref(py))
    }

    /// The message that is not plain, where it is decoded already; forgets it.
    fn take_body(&mut self) -> Option<Py<PyAny>> {
        self.body.take()
    }
}

impl UpdateLoop {
    fn apply(
        &mut self,
        py: Python<'_>,
        messages: &Messages<'_>,
        place: usize,
        entries: &Bound<'_, PyDict>,
        check: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Found> {
        let (stream, range) = (&self.stream, &self.range);
        let (at, value) = (messages.offsets.get_item(place)?, messages.values.get_item(place)?);
        let origin = (&range.topic, &range.topic_id, &range.partition, &at, messages.sources.get_item(place)?);
        let record = range.record.bind(py).call1(origin)?;
        self.record = Some(record.clone().unbind());
        if !value.cast::<PyBytes>().is_ok_and(|bytes| bytes.as_bytes().len() <= stream.message_bytes_max) {
            return Ok(Found::NotPlain);
        }
        let body = match stream.decode.bind(py).call1((value,)) {
            Ok(body) => body,
            Err(error) if is_of_message(py, &error) => return Ok(Found::NotPlain), // decoded again, it fails again
            Err(error) => return Err(error),
        };
        let Some((session, number, time)) = self.read(py, &body, messages, place) else {
            self.body = Some(body.unbind());
            return Ok(Found::NotPlain);
        };
        let entry = match entries.get_item(&session)? {
            Some(entry) => entry,
            None => range.load.bind(py).call1((&session,))?, // None where the session is unknown
        };
        let gate = match check {
            Some(check) if !entry.is_none() => {
                let envelope = self.make_envelope(py, &body, &session, number.as_ref(), time.as_ref())?;
                self.check(py, check, &entry, envelope, &record)?
            }
            _ => self.follow(py, &entry, number.as_ref()),
        };
        let Some(gate) = gate else {
            self.body = Some(body.unbind());
            return Ok(Found::NotPlain);
        };
        let mut before = range.rows.bind(py).len();
        let state = entry.getattr(self.state.bind(py))?;
        let emitted = stream.on_update.bind(py).call1((state, body, record))?;
        let origin = (at.clone(), session.clone(), number.clone(), time.clone(), at.clone());
        if let Ok(emitted) = emitted.cast_exact::<PyList>() {
            let rows = range.rows.bind(py);
            emitted.iter().try_for_each(|row| rows.append(row))?;
        } else {
            before = self.emit(py, &emitted, before, &origin)?;
        }
        entry.setattr(self.gate.bind(py), gate)?;
        let rows = range.rows.bind(py).len() - before;
        range.proofs.bind(py).append((&at, rows, session, number, time, &at))?;
        Ok(Found::Applied)
    }

    /// Session, number and event time of an update; None where it is another message, or one of them is not plain.
    #[allow(clippy::type_complexity)]
    fn read<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyAny>,
        messages: &Messages<'py>,
        place: usize,
    ) -> Option<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>)> {
        let stream = &self.stream;
        let kind = body.get_type();
        if !stream.updates.iter().any(|update| kind.is(update)) {
            return None;
        }
        let session = if let Some(name) = &stream.session {
            body.getattr(name.bind(py)).ok()?
        } else {
            let key = messages.keys.as_ref()?.get_item(place).ok()?.cast_into::<PyBytes>().ok()?;
            PyString::new(py, std::str::from_utf8(key.as_bytes()).ok()?).into_any()
        };
        session.cast_exact::<PyString>().ok()?;
        let read = |name: &Option<Py<PyString>>| match name {
            Some(name) => body.getattr(name.bind(py)).map(|value| (!value.is_none()).then_some(value)).ok(),
            None => Some(None),
        };
        let (number, time) = (read(&stream.sequence)?, read(&stream.time)?);
        if let Some(time) = &time {
            let time = word(time)?;
            if time < stream.earliest_us || time > stream.latest_us {
                return None;
            }
        }
        Some((session, number, time))
    }

    /// The state of the gate of a session after an update; None where the update does not follow.
    fn follow<'py>(
        &self,
        py: Python<'py>,
        entry: &Bound<'py, PyAny>,
        number: Option<&Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyAny>> {
        if entry.is_none() {
            return None;
        }
        let gate = entry.getattr(self.gate.bind(py)).ok()?;
        match number {
            None => gate.is_exact_instance(self.stream.unnumbered.bind(py)).then_some(gate),
            Some(number) => (word(&gate)?.checked_add(1)? == word(number)?).then(|| number.clone()),
        }
    }

    fn make_envelope<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyAny>,
        session: &Bound<'py, PyAny>,
        number: Option<&Bound<'py, PyAny>>,
        time: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let id = self.stream.id.as_ref().map(|name| body.getattr(name.bind(py))).transpose()?;
        self.stream.envelope.bind(py).call1((session, &self.stream.update, number, py.None(), time, id))
    }

    /// The state of the gate of a session after an update that it accepts; None where it does not, and is unchanged.
    fn check<'py>(
        &self,
        py: Python<'py>,
        check: &Bound<'py, PyAny>,
        entry: &Bound<'py, PyAny>,
        envelope: Bound<'py, PyAny>,
        record: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let gate = entry.getattr(self.gate.bind(py))?;
        if gate.is_none() {
            return Ok(None);
        }
        let (gate, verdict): (Bound<'py, PyAny>, Bound<'py, PyAny>) =
            check.call1((gate, envelope, record))?.extract()?;
        Ok(verdict.is(&self.stream.accept).then_some(gate))
    }

    /// Takes rows that come one by one, of which a bounded number is in memory. Returns the first that is not encoded.
    fn emit<'py>(
        &self,
        py: Python<'py>,
        emitted: &Bound<'py, PyAny>,
        mut before: usize,
        origin: &Origin<'py>,
    ) -> PyResult<usize> {
        let rows = self.range.rows.bind(py);
        for row in emitted.try_iter()? {
            let row = row?;
            if rows.len() >= self.stream.rows_max {
                before = self.range.flush_part.bind(py).call1((origin.clone(), before))?.extract()?;
            }
            rows.append(row)?;
        }
        Ok(before)
    }
}

/// Of rows: offset, session, number, event time, and the offset at which they are emitted.
type Origin<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>, Bound<'py, PyAny>);

/// An integer of 64 bits, exactly of that type.
fn word(value: &Bound<'_, PyAny>) -> Option<i64> {
    value.cast_exact::<PyInt>().ok()?.extract().ok()
}

/// Whether an error is one of the message, and none of the machine or a signal.
fn is_of_message(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyException>(py) && !error.is_instance_of::<PyMemoryError>(py)
}
