//! Tables in Markdown.

/// A table with these heads. Empty if there are no rows.
pub fn table(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let rows: String = rows.into_iter().map(line).collect();
    if rows.is_empty() {
        return rows;
    }
    let head = line(heads.iter().map(|head| (*head).to_owned()).collect());
    head + &line(vec!["---".to_owned(); heads.len()]) + &rows
}
