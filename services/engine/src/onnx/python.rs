//! Class names as the text of a Python dictionary, which is how tools for ONNX detectors write and read them.

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

/// Reads `{0: 'cat', 1: "it's"}`: text with numbers from 0 on, in their order.
pub fn read_names(text: &str) -> Option<Vec<String>> {
    let mut rest = text
        .trim()
        .strip_prefix('{')?
        .strip_suffix('}')?
        .trim_start();
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (number, value) = rest.split_once(':')?;
        if number.trim().parse() != Ok(names.len()) {
            return None;
        }
        let (name, after) = read_literal(value.trim_start())?;
        names.push(name);
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some(names)
}

/// Reads a string literal and returns it with what follows.
fn read_literal(text: &str) -> Option<(String, &str)> {
    let quote = text
        .chars()
        .next()
        .filter(|&letter| matches!(letter, '\'' | '"'))?;
    let mut letters = text.char_indices().skip(1);
    let mut literal = String::new();
    while let Some((at, letter)) = letters.next() {
        if letter == quote {
            return Some((literal, &text[at + 1..]));
        }
        if letter != '\\' {
            literal.push(letter);
            continue;
        }
        let (_, escaped) = letters.next()?;
        let digits = match escaped {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        literal.push(match escaped {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'x' | 'u' | 'U' => {
                let code: String = letters
                    .by_ref()
                    .take(digits)
                    .map(|(_, digit)| digit)
                    .collect();
                char::from_u32(u32::from_str_radix(&code, 16).ok()?)?
            }
            other => other,
        });
    }
    None
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
        assert_eq!(read_names(&names(&given)).unwrap(), given);
        assert_eq!(read_names("{}").unwrap().len(), 0);
    }

    #[test]
    fn what_is_no_list_of_names_is_refused() {
        for text in [
            "",
            "[]",
            "{1: 'a'}",
            "{0: a}",
            "{0: 'a' 1: 'b'}",
            "{0: 'a",
            "{0: '\\xzz'}",
        ] {
            assert_eq!(read_names(text), None, "{text}");
        }
    }
}
