//! The setting `notify-keyspace-events`.

/// The classes that a watcher needs: keyspace channels (`K`), the events of the module (`d`), ended leases (`x`), and
/// DEL, RENAME, MOVE and RESTORE (`g`).
const NEEDED: &str = "Kdxg";

/// The classes that `A` stands for.
const ALL: &str = "g$lshzxetd";

/// The needed classes that a value of the setting lacks. Empty if none is missing.
pub(super) fn missing(value: &str) -> String {
    let has = |class: char| value.contains(class) || (value.contains('A') && ALL.contains(class));
    NEEDED.chars().filter(|class| !has(*class)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_the_missing_classes() {
        for (value, lacks) in
            [("", "Kdxg"), ("Kdxg", ""), ("AK", ""), ("AE", "K"), ("g$KE", "dx"), ("AKEnm", "")]
        {
            assert_eq!(missing(value), lacks, "{value}");
        }
    }
}
