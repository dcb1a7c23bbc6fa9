//! Reads JSON whose meaning is beyond doubt; everything else is `NotPlain`, and left to the general decoder.
//!
//! Not plain are, besides errors: a field that is there twice, null, surrogate escapes, `-0`, numbers of another
//! kind than the field's, and integers of more digits than fit. So whatever is read here, any strict decoder reads
//! alike, and no verdict on a message is made here.

use std::borrow::Cow;

/// The text is no JSON of the expected shape, or not surely.
#[derive(Debug)]
pub struct NotPlain;

pub type Plain<T> = Result<T, NotPlain>;

/// Digits that fit 64 bits whatever they are.
const INTEGER_DIGITS_MAX: usize = 18;
/// Digits of an integer that a double holds whatever they are.
const EXACT_DIGITS_MAX: usize = 15;
/// Levels of a value that is skipped.
const DEPTH_MAX: usize = 32;

/// A place in a text.
pub struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The end of the text, after white space.
    pub fn end(&mut self) -> Plain<()> {
        if self.next_token().is_none() { Ok(()) } else { Err(NotPlain) }
    }

    /// Reads an object: calls `member` with each name and the cursor at its value.
    pub fn object(&mut self, mut member: impl FnMut(&str, &mut Self) -> Plain<()>) -> Plain<()> {
        self.expect(b'{')?;
        if self.accept(b'}') {
            return Ok(());
        }
        loop {
            let name = self.string()?;
            self.expect(b':')?;
            member(&name, self)?;
            if !self.accept(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// Reads an array: calls `element` with the cursor at each value.
    pub fn array(&mut self, mut element: impl FnMut(&mut Self) -> Plain<()>) -> Plain<()> {
        self.expect(b'[')?;
        if self.accept(b']') {
            return Ok(());
        }
        loop {
            element(self)?;
            if !self.accept(b',') {
                return self.expect(b']');
            }
        }
    }

    pub fn string(&mut self) -> Plain<Cow<'a, str>> {
        self.expect(b'"')?;
        let first = self.at;
        match self.find_special()? {
            b'"' => {
                let found = &self.text[first..self.at];
                self.at += 1;
                Ok(Cow::Borrowed(found))
            }
            _ => self.escaped(first).map(Cow::Owned),
        }
    }

    pub fn boolean(&mut self) -> Plain<bool> {
        let is_true = self.next_token() == Some(b't');
        self.word(if is_true { "true" } else { "false" })?;
        Ok(is_true)
    }

    pub fn integer(&mut self) -> Plain<i64> {
        let (token, is_integer) = self.number()?;
        let digits = token.strip_prefix('-').unwrap_or(token);
        if !is_integer || token == "-0" || digits.len() > INTEGER_DIGITS_MAX {
            return Err(NotPlain);
        }
        token.parse().map_err(|_| NotPlain)
    }

    pub fn float(&mut self) -> Plain<f64> {
        let (token, is_integer) = self.number()?;
        if is_integer && (token == "-0" || token.len() > EXACT_DIGITS_MAX) {
            return Err(NotPlain);
        }
        let value: f64 = token.parse().map_err(|_| NotPlain)?;
        if value.is_finite() { Ok(value) } else { Err(NotPlain) }
    }

    /// Skips a value that nobody reads.
    pub fn skip(&mut self) -> Plain<()> {
        self.skip_below(0)
    }

    fn skip_below(&mut self, depth: usize) -> Plain<()> {
        if depth > DEPTH_MAX {
            return Err(NotPlain);
        }
        match self.next_token().ok_or(NotPlain)? {
            b'{' => self.object(|_, value| value.skip_below(depth + 1)),
            b'[' => self.array(|value| value.skip_below(depth + 1)),
            b'"' => self.string().map(drop),
            b't' | b'f' => self.boolean().map(drop),
            b'n' => self.word("null"),
            _ => self.number().map(drop),
        }
    }

    /// The token of a number, and whether it is an integer.
    fn number(&mut self) -> Plain<(&'a str, bool)> {
        self.next_token();
        let first = self.at;
        self.accept_byte(b'-');
        let leading_zero = self.peek() == Some(b'0');
        let digits = self.digits()?;
        if leading_zero && digits > 1 {
            return Err(NotPlain);
        }
        let until = self.at;
        if self.accept_byte(b'.') {
            self.digits()?;
        }
        if self.accept_byte(b'e') || self.accept_byte(b'E') {
            if !self.accept_byte(b'-') {
                self.accept_byte(b'+');
            }
            self.digits()?;
        }
        Ok((&self.text[first..self.at], self.at == until))
    }

    /// Passes one digit or more, and counts them.
    fn digits(&mut self) -> Plain<usize> {
        let rest = &self.text.as_bytes()[self.at..];
        let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += count;
        if count == 0 { Err(NotPlain) } else { Ok(count) }
    }

    /// Moves to the end of a string, or to its next escape.
    fn find_special(&mut self) -> Plain<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let place = rest.iter().position(|&byte| byte == b'"' || byte == b'\\' || byte < b' ').ok_or(NotPlain)?;
        self.at += place;
        if rest[place] < b' ' { Err(NotPlain) } else { Ok(rest[place]) }
    }

    /// The string that began at `first`, from its first escape on.
    fn escaped(&mut self, first: usize) -> Plain<String> {
        let mut made = String::from(&self.text[first..self.at]);
        loop {
            if self.accept_byte(b'"') {
                return Ok(made);
            }
            self.at += 1;
            made.push(self.escape()?);
            let next = self.at;
            self.find_special()?;
            made.push_str(&self.text[next..self.at]);
        }
    }

    /// The character of an escape; the cursor is after the backslash.
    fn escape(&mut self) -> Plain<char> {
        let kind = self.peek().ok_or(NotPlain)?;
        self.at += 1;
        match kind {
            b'"' | b'\\' | b'/' => Ok(char::from(kind)),
            b'b' => Ok('\u{8}'),
            b'f' => Ok('\u{c}'),
            b'n' => Ok('\n'),
            b'r' => Ok('\r'),
            b't' => Ok('\t'),
            b'u' => {
                let digits = self.text.get(self.at..self.at + 4).ok_or(NotPlain)?;
                self.at += 4;
                if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return Err(NotPlain);
                }
                let code = u32::from_str_radix(digits, 16).map_err(|_| NotPlain)?;
                char::from_u32(code).ok_or(NotPlain) // half of a pair is none
            }
            _ => Err(NotPlain),
        }
    }

    fn word(&mut self, word: &str) -> Plain<()> {
        self.next_token();
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(())
        } else {
            Err(NotPlain)
        }
    }

    /// Skips white space; the byte that follows.
    fn next_token(&mut self) -> Option<u8> {
        while let Some(byte) = self.peek() {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    fn expect(&mut self, byte: u8) -> Plain<()> {
        if self.accept(byte) { Ok(()) } else { Err(NotPlain) }
    }

    fn accept(&mut self, byte: u8) -> bool {
        self.next_token() == Some(byte) && self.accept_byte(byte)
    }

    fn accept_byte(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}
