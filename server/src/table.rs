//! Tables for people: columns as wide as what stands in them.

use crate::output::Page;
use std::io;

/// Rows of cells under a heading.
#[derive(Debug, Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

#[derive(Debug)]
struct Column {
    title: &'static str,
    right: bool,
}

impl Table {
    /// A table without rows. A title that begins with `>` makes its column flush right, as numbers are.
    pub fn new(titles: &[&'static str]) -> Self {
        let columns = titles.iter().map(|title| match title.strip_prefix('>') {
            Some(title) => Column { title, right: true },
            None => Column {
                title,
                right: false,
            },
        });
        Self {
            columns: columns.collect(),
            rows: Vec::new(),
        }
    }

    /// Add a row, with a cell for each column.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.into());
    }

    /// Print heading and rows; nothing at all where there are no rows.
    ///
    /// # Errors
    ///
    /// If the page cannot be written.
    pub fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let widths = self.widths();
        let titles: Vec<&str> = self.columns.iter().map(|c| c.title).collect();
        let heading = page.paint.bold(&self.line(&titles, &widths));
        page.line(&heading)?;
        for row in &self.rows {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            page.line(&self.line(&cells, &widths))?;
        }
        Ok(())
    }

    fn widths(&self) -> Vec<usize> {
        let cell_widths = |column: usize| self.rows.iter().map(move |row| width(&row[column]));
        let columns = self.columns.iter().enumerate();
        columns
            .map(|(i, column)| cell_widths(i).chain([width(column.title)]).max())
            .map(Option::unwrap_or_default)
            .collect()
    }

    fn line(&self, cells: &[&str], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, column), &wide) in cells.iter().zip(&self.columns).zip(widths) {
            let padding = " ".repeat(wide - width(cell));
            if column.right {
                line.extend([padding.as_str(), cell, "  "]);
            } else {
                line.extend([cell, padding.as_str(), "  "]);
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    fn printed(table: &Table) -> String {
        let mut out = Vec::new();
        let mut page = Page::new(&mut out, Paint::new(false));
        table.print(&mut page).expect("memory can be written");
        String::from_utf8(out).expect("tables are text")
    }

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_space() {
        let mut table = Table::new(&["NAME", ">SIZE", "NOTE"]);
        table.row(["a".into(), "1 B".into(), String::new()]);
        table.row(["länger".into(), "142 KiB".into(), "x".into()]);
        assert_eq!(
            printed(&table),
            "NAME       SIZE  NOTE\na           1 B\nlänger  142 KiB  x\n"
        );
    }

    #[test]
    fn an_empty_table_prints_nothing() {
        assert_eq!(printed(&Table::new(&["NAME"])), "");
    }
}
