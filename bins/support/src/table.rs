//! Tables for people.

/// Formats rows as lines, with each column as wide as its widest cell.
pub fn lines<'a>(rows: impl IntoIterator<Item = Vec<&'a str>>) -> Vec<String> {
    let rows: Vec<Vec<&str>> = rows.into_iter().collect();
    let mut widths: Vec<usize> = Vec::new();
    for row in &rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &Vec<&str>| {
        let padded = row.iter().zip(&widths);
        let padded = padded.map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
