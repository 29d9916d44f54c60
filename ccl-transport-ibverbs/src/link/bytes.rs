//! Writing and reading what ranks tell each other: little-endian numbers and short texts.

/// Puts numbers and texts one after the other.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// At most `most` bytes of a text.
    pub(super) fn text(&mut self, text: &str, most: u8) {
        let text = &text[..text.floor_char_boundary(most.into())];
        self.u8(text.len() as u8);
        self.0.extend(text.as_bytes());
    }
}

/// Takes them out again; `None` where the bytes end too early or are no text.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// A text without control characters: it ends up in errors.
    pub(super) fn text(&mut self) -> Option<String> {
        let len = usize::from(self.u8()?);
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        let text = std::str::from_utf8(head).ok()?;
        (!text.contains(char::is_control)).then(|| text.to_string())
    }

    /// Something, if nothing is left over.
    pub(super) fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}
