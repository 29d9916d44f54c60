//! Bytes, read as numbers and pieces.

/// What is left of an input.
#[derive(Clone, Copy, Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// All of an input.
    pub fn new(bytes: &'a [u8]) -> Script<'a> {
        Script(bytes)
    }

    /// Whether all was read.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next number.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// The next number.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next number.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// The next number.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// The next bytes, of which the first two say how many.
    pub fn piece(&mut self) -> &'a [u8] {
        let len = usize::from(self.u16()).min(self.0.len());
        let (piece, rest) = self.0.split_at(len);
        self.0 = rest;
        piece
    }

    /// The next line, without its end; text that is not UTF-8 is made so.
    pub fn line(&mut self) -> String {
        let end = self.0.iter().position(|b| *b == b'\n');
        let (line, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest.get(1..).unwrap_or_default();
        String::from_utf8_lossy(line).into_owned()
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_at(N.min(self.0.len()));
        self.0 = rest;
        std::array::from_fn(|i| head.get(i).copied().unwrap_or_default())
    }
}
