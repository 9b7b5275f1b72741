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

/// The same for a page or an issue, with a first column that says where it was done.
pub(super) fn markdown(scene: &str, heading: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &str| format!("| {cells} |");
    let mut lines = vec![line(&format!("scene | {}", heading.join(" | ")))];
    lines.push(format!("|{}", "---|".repeat(heading.len() + 1)));
    lines.extend(
        rows.iter().map(|row| line(&format!("{scene} | {}", row.join(" | ").replace('\n', " ")))),
    );
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
        let text = markdown("sid", &["boot", "code"], &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            ["| scene | boot | code |", "|---|---|---|", "| sid | kernel swapped | A412 |"]
        );
    }
}
