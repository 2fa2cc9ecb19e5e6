//! Class names as the text of a Python dictionary, which is how tools for ONNX detectors read them.

/// Returns `{0: 'cat', 1: 'dog'}`.
pub fn names(names: &[String]) -> String {
    let entries: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(index, name)| format!("{index}: {}", literal(name)))
        .collect();
    format!("{{{}}}", entries.join(", "))
}

/// Returns a Python string literal: single quotes unless the text has only those.
fn literal(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => literal.push_str("\\\\"),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\t' => literal.push_str("\\t"),
            letter if letter == quote => {
                literal.push('\\');
                literal.push(letter);
            }
            letter if letter.is_control() => {
                literal.push_str(&format!("\\U{:08x}", u32::from(letter)));
            }
            letter => literal.push(letter),
        }
    }
    literal.push(quote);
    literal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_python_does() {
        let given = ["cat", "it's", "both ' and \"", "a\\b\n\u{7}", "größe"].map(String::from);
        assert_eq!(
            names(&given),
            r#"{0: 'cat', 1: "it's", 2: 'both \' and "', 3: 'a\\b\n\U00000007', 4: 'größe'}"#
        );
        assert_eq!(names(&[]), "{}");
    }
}
