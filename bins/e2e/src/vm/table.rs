//! Tables on the console.

/// Formats columns of matching width, with a line below the heading.
pub(super) fn render(heading: &[&str], rows: &[Vec<String>]) -> String {
    let head = std::iter::once(heading.to_vec());
    let rows = rows.iter().map(|row| row.iter().map(String::as_str).collect());
    let mut lines = tec_support::table::lines(head.chain(rows));
    let widest = lines.iter().map(|line| line.chars().count()).max();
    lines.insert(1, "-".repeat(widest.unwrap_or(0)));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["kernel swapped".to_owned(), "A412".to_owned()]];
        let text = render(&["boot", "code"], &rows);
        assert_eq!(text, "boot            code\n--------------------\nkernel swapped  A412");
    }
}
