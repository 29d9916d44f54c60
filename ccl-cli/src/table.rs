//! Columns that are as wide as what stands in them.

/// Rows of text, aligned.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// Columns from this one on are numbers, and stand to the right.
    numbers_from: usize,
}

impl Table {
    /// A table of text, with these names above its columns.
    pub(crate) fn new<const N: usize>(names: [&str; N]) -> Table {
        Table::with(names.map(str::to_string).to_vec(), N)
    }

    /// A table whose columns from `numbers_from` on are numbers.
    pub(crate) fn with(names: Vec<String>, numbers_from: usize) -> Table {
        Table { rows: vec![names], numbers_from }
    }

    /// A table of text without names.
    pub(crate) fn plain() -> Table {
        Table { rows: Vec::new(), numbers_from: usize::MAX }
    }

    /// One line more.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines, each after `indent` spaces and without spaces at its end.
    pub(crate) fn text(&self, indent: usize) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell =
            |row: &Vec<String>, column| row.get(column).map_or(0, |text: &String| text.chars().count());
        let widths: Vec<usize> =
            (0..columns).map(|c| self.rows.iter().map(|row| cell(row, c)).max().unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column > 0 { "  " } else { "" };
                let cell = match column < self.numbers_from {
                    true => format!("{gap}{cell:<width$}"),
                    false => format!("{gap}{cell:>width$}"),
                };
                line.push_str(&cell);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stands_left_and_numbers_right() {
        let mut table = Table::with(vec!["name".into(), "n".into(), "µs".into()], 1);
        table.row(["a", "1000", "2"]);
        assert_eq!(table.text(1), " name     n  µs\n a     1000   2\n");
        let mut table = Table::plain();
        table.row(["a", ""]);
        table.row(["bcd", "e", "f"]);
        assert_eq!(table.text(0), "a\nbcd  e  f\n");
    }
}
